"""`distilvec corpus`: texts for the terms of a field, written by a language model."""
