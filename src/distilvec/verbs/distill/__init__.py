"""The verb `distill`: a teacher and texts become a small student, with a report."""
