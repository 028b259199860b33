"""`distilvec evaluate`: scores of a model on a suite or on MTEB."""
