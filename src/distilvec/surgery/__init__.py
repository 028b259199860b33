"""Tokenizer surgery: another vocabulary for a model whose backbone stays as it is."""
