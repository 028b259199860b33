"""`distilvec transplant`: another vocabulary for a model."""
