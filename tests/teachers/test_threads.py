"""Independent work on several threads."""

from __future__ import annotations

import threading

import pytest
import torch

from distilvec.teachers.encode import map_on_threads


@pytest.fixture
def four_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def test_results_are_in_order_and_each_thread_computes_alone(four_threads):
    begun = threading.Barrier(4, timeout=60)  # only passes if four items are worked on at once

    def work(number):
        begun.wait()
        return number, torch.get_num_threads(), threading.current_thread().name

    found = list(map_on_threads(work, range(20)))
    assert [number for number, _, _ in found] == list(range(20))
    assert {count for _, count, _ in found} == {1} and len({name for _, _, name in found}) == 4
    assert torch.get_num_threads() == 4
    counts = []
    thread = threading.Thread(target=lambda: counts.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert counts == [4], "a thread that begins later has all of them again"


def test_few_items_stay_here(four_threads):
    assert set(map_on_threads(lambda item: threading.current_thread(), range(7))) == {threading.current_thread()}


def test_an_error_ends_the_work(four_threads):
    done = []

    def work(number):
        if number == 3:
            raise ValueError("three")
        done.append(number)
        return number

    with pytest.raises(ValueError, match="three"):
        list(map_on_threads(work, range(1000)))
    assert len(done) < 999 and torch.get_num_threads() == 4
