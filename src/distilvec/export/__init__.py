"""Students as folders that other tools load."""
