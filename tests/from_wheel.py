"""`python -m from_wheel FOLDER COMMANDS`: commands (JSON) of the distilvec in a folder, also where another is imported.

A process that `commands.Command` has forked need not import torch and transformers again, which takes seconds.
"""

from __future__ import annotations

import json
import sys

if __name__ == "__main__":
    folder, lines = sys.argv[1:]
    for name in [name for name in sys.modules if name.partition(".")[0] == "distilvec"]:
        del sys.modules[name]
    sys.path.insert(0, folder)
    import distilvec
    from distilvec.__main__ import run_command

    print(distilvec.__file__)
    for line in json.loads(lines):
        if status := run_command(line):
            sys.exit(f"{line} ended with {status}")
