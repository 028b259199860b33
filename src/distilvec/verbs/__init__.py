"""The verbs, a folder each: its Python function, its command, and what only it needs."""
