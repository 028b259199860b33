"""Public data that the built-in recipes read: where it is published, its licence, download and conversion."""
