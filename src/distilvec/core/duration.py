"""Times for people."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Seconds in the unit that fits."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds >= 72 * 3600:
        return f"{seconds / 86400:,.1f} days"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
