"""Requests to models that others serve over HTTP: retries, rates, pauses, counts, caps."""
