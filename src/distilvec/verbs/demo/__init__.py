"""`distilvec demo`: a page that searches with the student in a browser."""
