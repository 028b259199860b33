"""How sharp the minimum is at the saved checkpoints of a run (TALAS, table 4)."""
