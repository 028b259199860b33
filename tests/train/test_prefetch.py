"""Data loaded ahead in a thread: the same weights, the same order, errors that surface, no thread that stays."""

from __future__ import annotations

import itertools
import threading
import time
from contextlib import contextmanager

import pytest
import torch
from loops import make_loop, stop_after

from distilvec.core.errors import DistilvecError
from distilvec.teachers.cached import CachedTeacher, SeveralTeachers, read_ahead
from distilvec.train.metrics import read_metrics
from distilvec.train.prefetch import AHEAD, prefetched
from distilvec.train.trainer import Trainer

pytestmark = pytest.mark.usefixtures("shared_cache")


def threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("prefetch")]


@contextmanager
def one_by_one(make, numbers):
    """What `prefetched` replaces: every step makes its own data."""
    yield (make(number) for number in numbers)


@pytest.mark.parametrize("count", [0, 1, AHEAD, 7])
def test_gives_all_in_their_order_and_at_most_ahead(count):
    begun = []

    def make(number):
        begun.append(number)
        return threading.current_thread().name, number

    with prefetched(make, range(5, 5 + count)) as results:
        for taken, (name, number) in enumerate(results, 1):
            assert name.startswith("prefetch") and number == 4 + taken
            assert len(begun) <= taken + AHEAD
    assert begun == list(range(5, 5 + count)) and not threads()


def test_makes_the_next_while_the_caller_works():
    made = threading.Event()
    with prefetched(lambda number: made.set() if number == 1 else None, range(2)) as results:
        next(results)
        assert made.wait(10)


def test_an_error_is_raised_where_its_result_is_taken_and_nothing_further_begins():
    begun = []

    def make(number):
        begun.append(number)
        if number == 2:
            raise DistilvecError("row 7 is damaged.", "Fill the cache again.", key="cache")
        return number

    taken = []
    with pytest.raises(DistilvecError, match=r"^\[cache\] row 7 is damaged"), prefetched(make, range(50)) as results:
        for result in results:
            taken.append(result)
    assert taken == [0, 1]
    assert max(begun) <= 2 + AHEAD and not threads()


def test_leaving_early_begins_nothing_further():
    begun = []
    with pytest.raises(KeyboardInterrupt), prefetched(begun.append, range(50)) as results:
        next(results)
        raise KeyboardInterrupt
    assert len(begun) <= 1 + AHEAD and not threads()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"train__update": {"name": "disam"}, "train__gradient_accumulation_steps": 2},
        {"method__name": "redact_scores", "method__options": {"queue": 24}, "train__gradient_steps": 3},
    ],
    ids=["plain", "disam", "queue"],
)
def test_weights_and_metrics_are_those_without_a_thread(tiny_recipe, tmp_path, monkeypatch, changes):
    recipe = tiny_recipe(train__epochs=2, train__batch_size=32, train__logging_steps=4, **changes)
    ahead = make_loop(recipe, tmp_path / "ahead")
    assert ahead.run().finished and not threads()
    with monkeypatch.context() as patched:
        patched.setattr("distilvec.train.trainer.prefetched", one_by_one)
        alone = make_loop(recipe, tmp_path / "alone")
        assert alone.run().finished
    for name, value in ahead.module.state_dict().items():
        assert torch.equal(value, alone.module.state_dict()[name]), name
    found, expected = (
        [{key: value for key, value in line.items() if not key.endswith(("per_second", "wait"))} for line in lines]
        for lines in (read_metrics(loop.folder.metrics) for loop in (ahead, alone))
    )
    assert found == expected and len(found) > 3


def test_a_stop_ends_the_thread(tiny_recipe, tmp_path):
    loop = stop_after(make_loop(tiny_recipe(), tmp_path / "run"), 2)
    assert not loop.run().finished and not threads()


def test_a_reader_that_fails_stops_the_run_with_its_own_error(tiny_recipe, tmp_path, monkeypatch):
    loop, read = make_loop(tiny_recipe(), tmp_path / "run"), CachedTeacher.read
    batches = itertools.count()

    def failing(self, batch):
        if threading.current_thread() is not threading.main_thread() and next(batches) == 5:
            raise DistilvecError("shard 0 is gone.", "Fill the cache again.", key="cache")
        return read(self, batch)

    monkeypatch.setattr(CachedTeacher, "read", failing)
    with pytest.raises(DistilvecError, match=r"^\[cache\] shard 0 is gone"):
        loop.run()
    assert 0 < loop.state.step <= 5 and not threads()


def test_the_log_has_the_share_of_time_spent_waiting(tiny_recipe, tmp_path, monkeypatch):
    load = Trainer._load

    def slow(self, batches, index):
        time.sleep(0.1)
        return load(self, batches, index)

    monkeypatch.setattr(Trainer, "_load", slow)
    loop = make_loop(tiny_recipe(train__logging_steps=2, train__max_steps=4), tmp_path / "run")
    loop.run()
    waits = [line["train/wait"] for line in read_metrics(loop.folder.metrics) if "train/wait" in line]
    assert len(waits) == 2 and all(0 < wait <= 1 for wait in waits) and max(waits) > 0.1


def test_several_teachers_are_read_ahead(tiny_recipe, tmp_path):
    data = make_loop(tiny_recipe(), tmp_path / "run").data
    teacher, batch = SeveralTeachers(data.teacher, [data.teacher]), data.batch(data.train_rows[:3].copy())
    found, expected = read_ahead(teacher, batch)(batch), teacher.signals(batch)
    assert torch.equal(found.embedding, expected.embedding)
    assert torch.equal(found.others[0].embedding, expected.others[0].embedding)
