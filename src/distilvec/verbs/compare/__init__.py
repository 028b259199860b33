"""`distilvec compare`: runs side by side, with intervals."""
