"""The sections of a run's page: one file per topic, each with `section(report)`."""
