"""distilvec: distil large text-embedding models into small ones people can ship."""

__version__ = "0.1.0"
