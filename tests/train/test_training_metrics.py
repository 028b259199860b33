"""metrics.jsonl: equal, line by line, however often a run was killed; torn and damaged lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from interrupted import interrupt
from jobs import train
from loops import make_loop, stop_after
from refusals import refused

from distilvec.core.run_folder import RunFolder
from distilvec.pipeline.resolve import resolve
from distilvec.train.metrics import MetricsLog, read_metrics

pytestmark = pytest.mark.usefixtures("shared_cache")

THROUGHPUT = ("train/texts_per_second", "train/tokens_per_second", "train/wait")
PLAIN = {"train__epochs": 2, "train__logging_steps": 4}
EXPERTS = {
    **PLAIN,
    "method__name": "distillmoe",
    "method__weights": {"dynamic_cka": 0.0},
    "student__experts": {"count": 3, "width": 24},
    "train__batch_size": 4,  # so few texts that the last looks at the gate are judged together
    "train__epochs": 1,
    "train__logging_steps": 3,
}
STAGED = {
    **PLAIN,
    "stages": [
        {"name": "short", "set": {"train.max_steps": 9}},
        {"name": "rest", "set": {"train.update": {"name": "sam"}}},
    ],
}


def lines(folder: Path) -> dict[str, list[dict]]:
    """The lines of every metrics.jsonl below a run folder, without the figures that depend on the clock."""
    return {
        str(path.relative_to(folder)): [
            {k: v for k, v in line.items() if k not in THROUGHPUT} for line in read_metrics(path)
        ]
        for path in sorted(folder.rglob("metrics.jsonl"))
    }


@pytest.mark.parametrize(
    ("changes", "every", "kills"),
    [(PLAIN, 5, (6, 12, 18, 21)), (PLAIN, 3, (11, 13)), (EXPERTS, 4, (6, 17, 31)), (STAGED, 5, (7, 4, 14))],
    ids=["plain", "at the end of an epoch", "experts", "stages"],
)
def test_equal_after_kills(tiny_recipe, tmp_path, monkeypatch, changes, every, kills):
    """Checkpoints fall between logged lines; a kill loses whatever came after the last one."""
    recipe = tiny_recipe(train__checkpoint_steps=every, **changes)
    train(resolve(recipe, tmp_path / "whole"))
    expected = lines(tmp_path / "whole")
    assert all(len(found) > 4 for found in expected.values()) and len(expected) == 1 + (changes is STAGED)
    for step in kills:
        interrupt(resolve(recipe, tmp_path / "parts"), step, monkeypatch, execute=train)
        with RunFolder(tmp_path / "parts").metrics.open("a") as file:
            file.write('{"step": 9, "epo')  # torn by the kill
    train(resolve(recipe, tmp_path / "parts"))
    assert lines(tmp_path / "parts") == expected


def test_equal_after_a_collapse_that_was_said_before_the_kill(tiny_recipe, tmp_path):
    """The warning is there once, and the looks before the kill count in the one after it."""
    recipe = tiny_recipe(**EXPERTS, train__checkpoint_steps=4)

    def collapsing(folder):
        loop = make_loop(recipe, folder)
        loop.module.encoder.model[2].gate.bias.data[1] = 9.0
        return loop

    collapsing(tmp_path / "whole").run()
    stop_after(collapsing(tmp_path / "parts"), 4).run()
    stop_after(make_loop(recipe, tmp_path / "parts"), 7).run()
    make_loop(recipe, tmp_path / "parts").run()
    expected = lines(tmp_path / "whole")
    assert sum("warning" in line for line in expected["details/metrics.jsonl"]) == 1
    assert lines(tmp_path / "parts") == expected


def test_a_checkpoint_without_the_loops_memory_goes_on(tiny_recipe, tmp_path, monkeypatch):
    """Made before that was kept: only the first line after it differs."""
    from distilvec.train import trainer as module

    save = module.save_checkpoint
    recipe = tiny_recipe(**PLAIN)
    with monkeypatch.context() as patched:
        patched.setattr(module, "save_checkpoint", lambda *arguments: save(*arguments[:-1], {}))
        stop_after(make_loop(recipe, tmp_path / "run"), 6).run()
    assert make_loop(recipe, tmp_path / "run").run().finished
    assert [line["step"] for line in read_metrics(RunFolder(tmp_path / "run").metrics)] == [
        0,
        4,
        8,
        11,
        12,
        16,
        20,
        22,
        22,
    ]


def test_a_torn_last_line_is_dropped_and_a_damaged_one_is_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1, "epoch": 0.1}\n{"step": 2, "epoch": 0.2}\n{"step": 3, "ep\xc3')
    assert [line["step"] for line in read_metrics(path)] == [1, 2]
    for damaged in (
        b'{"step": 2, "epo',
        b'{"step": \xff}',
        b"",
        b"[1]",
        b'{"epoch": 1}',
        b'{"step": "two"}',
        b"[" * 100_000,
    ):
        path.write_bytes(b'{"step": 1, "epoch": 0.1}\n' + damaged + b'\n{"step": 3, "epoch": 0.3}\n')
        with refused("metrics.jsonl", "line 2"):
            read_metrics(path)
    assert read_metrics(tmp_path / "absent") == []


def test_a_kill_while_the_lines_are_rewritten_keeps_the_file(tmp_path, monkeypatch, tiny_recipe):
    from distilvec.train.accelerator import make_accelerator

    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps({"step": step, "epoch": 0.0}) + "\n" for step in range(9)))
    before = path.read_bytes()
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("pathlib.Path.replace", lambda *paths: (_ for _ in ()).throw(KeyboardInterrupt))
        MetricsLog(path, make_accelerator(tiny_recipe().train, tmp_path)).resume(5)
    assert path.read_bytes() == before


@pytest.mark.parametrize("value", [{"a": 1}, [1], "high"])
@pytest.mark.parametrize("name", ["train/loss", "epoch", "eval/distance"])
def test_a_line_with_something_else_for_a_number_is_damaged(name, value, tmp_path):
    (tmp_path / "metrics.jsonl").write_text(
        json.dumps({"step": 1, name: 0.5}) + "\n" + json.dumps({"step": 2, name: value}) + "\n"
    )
    with refused("metrics.jsonl", "line 2"):
        read_metrics(tmp_path / "metrics.jsonl")
