"""Report page, tables, figures and the model card."""
