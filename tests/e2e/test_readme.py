"""The commands of docs/guide.md against the built wheel, as a newcomer would run them, only on less data."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from commands import Command

from benchmarks.printed import blocks_of, commands

ROOT = Path(__file__).parents[2]
LESS = ("corpus.sources.0.limit=60 train.batch_size=8 train.max_steps=2 evaluation={}").split()
WHOLE = "student.size=100%"  # the small model has no 5M


def guide_commands() -> list[list[str]]:
    """The commands of the blocks that are marked as tested."""
    blocks = re.findall(
        r"<!-- tested -->\n```bash\n(.*?)```", (ROOT / "docs" / "guide.md").read_text(encoding="utf-8"), flags=re.DOTALL
    )
    lines = [line for block in blocks for line in block.splitlines()]
    return [words for line in lines if (words := shlex.split(line, comments=True))]


@pytest.mark.slow
def test_commands_run_from_the_wheel(tmp_path, small_minilm):
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    wheel = [*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run(wheel, check=True)
    install = [*pip, "install", "--quiet", "--no-deps", "--no-compile", "--target", str(tmp_path / "site")]
    subprocess.run([*install, str(next(tmp_path.glob("distilvec-*.whl")))], check=True)
    cache, commands = str(tmp_path / "cache"), guide_commands()
    assert len(commands) >= 6 and {command[0] for command in commands} == {"distilvec"}
    small = []
    for _, *words in commands:
        less = LESS if words[0] in ("quickstart", "run", "plan", "cache") else []
        small.append([*words, *less, *([WHOLE] if less and "student.layers=2" not in words else [])])
    work = (tmp_path / "site", small_minilm, json.dumps(small))
    command = Command(*work, module="from_wheel", folder=tmp_path, DISTILVEC_CACHE=cache)
    out, problems = command.communicate()
    assert command.returncode == 0, problems
    assert out.startswith(str(tmp_path / "site"))
    assert (tmp_path / "runs" / "quickstart" / "student" / "modules.json").exists()


def test_every_file_the_readme_names_exists():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in re.findall(r"recipes/[a-z_]+\.yaml", text):
        assert (ROOT / name).exists(), name


def test_the_readme_has_two_commands_for_a_fresh_clone():
    blocks = [commands(block.code) for block in blocks_of(ROOT / "README.md") if block.language == "bash"]
    assert any(block[:2] == [["make", "quickstart"], ["make", "test"]] for block in blocks)
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("quickstart", "test"):
        assert f"\n{target}: $(VENV)/" in makefile, f"make {target} sets up its environment"
