"""`distilvec cache`: a teacher's vectors on disk, on one machine or several."""
