"""Students: building, cutting, encoding."""
