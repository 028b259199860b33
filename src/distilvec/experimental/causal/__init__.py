"""Causal language models: DistillMoE's objective beside next-token cross-entropy (paper 001, table 16), as a small part of its own."""
