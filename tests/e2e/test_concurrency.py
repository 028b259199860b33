"""Several commands on one cold cache root at once: each builds what is missing or waits for it."""

from __future__ import annotations

from pathlib import Path

from commands import Command

from distilvec.config import recipe as recipes
from distilvec.teachers.cache.store import TeacherCache


def test_three_commands_fill_one_cold_root(tiny_recipe, tmp_path):
    file = tmp_path / "tiny.yaml"
    file.write_text(
        recipes.dump(tiny_recipe(student__vocabulary={}, evaluation__builtin="python-docstrings", cache__shard_rows=20))
    )
    commands = [Command("cache", file, DISTILVEC_CACHE=str(tmp_path / "cache")) for _ in range(3)]
    out, err = map("".join, zip(*(command.communicate() for command in commands), strict=True))
    assert [command.returncode for command in commands] == [0, 0, 0], err
    (folder,) = set(out.split())
    assert out.split() == [folder] * 3 and "waiting for process" in err
    with_all = TeacherCache.open(tmp_path / "cache" / "teachers" / Path(folder).name)
    assert len(with_all) == 200 and with_all.verify() == []
    left = [
        path.name for path in (tmp_path / "cache").rglob("*") if ".distilvec-" in path.name or "damaged" in path.name
    ]
    assert left == [] and "damaged" not in err
