"""Scores on local tasks, standard and asymmetric."""
