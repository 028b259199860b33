"""What every part needs and nothing of embeddings: errors, files, locks, checksums, logs, processes, and the types that methods share."""
