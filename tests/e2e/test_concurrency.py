"""Several commands on one cold cache root at once: each builds what is missing or waits for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from distilvec.config import recipe as recipes
from distilvec.teachers.cache.store import TeacherCache

# The children are forked once everything is imported, so that they race for the same folders.
TOGETHER = """
import os, sys
import distilvec.pipeline.run
from distilvec.__main__ import run_command

children = []
for number in range(3):
    child = os.fork()
    if child == 0:
        status = run_command(sys.argv[1:])
        sys.stdout.flush()
        os._exit(status)
    children.append(child)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""


def test_three_commands_fill_one_cold_root(tiny_recipe, tmp_path):
    file = tmp_path / "tiny.yaml"
    file.write_text(
        recipes.dump(tiny_recipe(student__vocabulary={}, evaluation__builtin="python-docstrings", cache__shard_rows=20))
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(
        [sys.executable, "-c", TOGETHER, "cache", str(file)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    (folder,) = set(result.stdout.split())
    assert result.stdout.split() == [folder] * 3 and "waiting for process" in result.stderr
    with_all = TeacherCache.open(tmp_path / "cache" / "teachers" / Path(folder).name)
    assert len(with_all) == 200 and with_all.verify() == []
    left = [
        path.name for path in (tmp_path / "cache").rglob("*") if ".distilvec-" in path.name or "damaged" in path.name
    ]
    assert left == [] and "damaged" not in result.stderr
