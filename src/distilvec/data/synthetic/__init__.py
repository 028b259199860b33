"""Texts about words, written by a language model: prompts, checks of answers, the journal, the loop."""
