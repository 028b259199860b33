"""The documentation site: pages that are made of docstrings, schema, recipes and results, links and equations."""
