"""Pure functions of tensors: one value per example, the equation cited on the line."""
