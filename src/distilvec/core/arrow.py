"""Parquet and Arrow files, and what their columns hold: texts and vectors."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq


def open_parquet(path: Path) -> pq.ParquetFile:
    """Open a Parquet file to read it by batches of rows; without a buffer, or with pre_buffer, all of it is read."""
    return pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False)
