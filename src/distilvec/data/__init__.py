"""Texts: reading, mixing, tokenising, batching."""
