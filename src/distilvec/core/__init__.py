"""What every part needs and nothing of embeddings: errors, files, locks, logs, processes; and what methods share."""
