"""The student: its backbone, layers, neurons, token table, pooling and heads, before and during training."""
