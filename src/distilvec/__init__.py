"""distilvec: distil large text-embedding models into small ones people can ship."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distilvec.models.load import load as load

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`distilvec.load`, which needs torch, when it is first asked for."""
    if name != "load":
        raise AttributeError(f"module 'distilvec' has no attribute '{name}'")
    from distilvec.models.load import load

    return load
