"""Pages of the documentation; site/ has the code that `make docs` runs."""
