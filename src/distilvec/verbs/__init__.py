"""One folder for each verb: its function, its command, its screens. A verb can be deleted as a folder."""
