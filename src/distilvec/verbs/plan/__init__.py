"""`distilvec plan`: what a recipe does and costs, before any work."""
