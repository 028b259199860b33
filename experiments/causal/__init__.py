"""Causal language models: DistillMoE and its baselines with next-token cross-entropy (paper 001, table 16)."""
