"""`distilvec export`: a student in another form, compared with PyTorch."""
