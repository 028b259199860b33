"""`distilvec runs`: the runs in a folder, what state they are in, and how good their students are."""
