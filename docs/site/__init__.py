"""The documentation site: pages made from docstrings, schema, recipes and results, and the check of code blocks."""
