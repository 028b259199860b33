"""`distilvec run`: a recipe, its sweep, its processes."""
