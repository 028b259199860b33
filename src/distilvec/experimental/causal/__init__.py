"""Causal language models: DistillMoE with next-token cross-entropy (paper 001, table 16)."""
