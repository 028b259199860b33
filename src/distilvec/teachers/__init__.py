"""Teachers: local models, tables of vectors, and the cache of their vectors."""
