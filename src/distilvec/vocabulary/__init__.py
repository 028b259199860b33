"""Tokenizer surgery: choosing, training and reading tokenizers, and the embedding table of a model for a new one."""
