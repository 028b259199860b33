"""Which tokens of a student and of its teacher are the same piece of text, and where pairs are stored."""
