"""The papers' tables on local data: shootouts, ablations, and the tables in README and docs made from results/."""
