"""Requests share batches; order, limits, failures and clients that leave."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

from distilvec.verbs.serve.model import Batcher, Overloaded


class Slow:
    """Gives each text's number as its vector, when it is let."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.gate = threading.Event()

    def __call__(self, texts):
        self.batches.append(list(texts))
        self.gate.wait(10)
        if "bad" in texts:
            raise ValueError("bad text")
        return np.array([[float(text)] for text in texts], dtype=np.float32)


def run(work):
    async def whole():
        model = Slow()
        batcher = Batcher(model, batch_texts=4, most_waiting=6)
        batcher.start()
        try:
            return await work(batcher, model), model
        finally:
            model.gate.set()
            await batcher.stop()

    return asyncio.run(whole())


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


def test_what_arrives_while_the_model_works_shares_a_batch():
    async def work(batcher, model):
        first = asyncio.create_task(batcher.vectors(["0"]))
        await until(lambda: model.batches)
        others = [asyncio.create_task(batcher.vectors(texts)) for texts in (["1", "2"], ["3"], ["4", "5"])]
        await until(lambda: batcher.waiting_texts == 5)
        model.gate.set()
        return await asyncio.gather(first, *others)

    found, model = run(work)
    assert model.batches == [["0"], ["1", "2", "3"], ["4", "5"]]  # four at most, requests whole
    assert [vectors[:, 0].tolist() for vectors in found] == [[0], [1, 2], [3], [4, 5]]


def test_a_request_larger_than_a_batch_goes_alone():
    async def work(batcher, model):
        model.gate.set()
        return await batcher.vectors([str(i) for i in range(9)])

    found, model = run(work)
    assert found[:, 0].tolist() == list(range(9)) and len(model.batches) == 1


def test_too_many_waiting_texts_are_refused_and_later_ones_served():
    async def work(batcher, model):
        first = asyncio.create_task(batcher.vectors(["0"]))
        await until(lambda: model.batches)
        second = asyncio.create_task(batcher.vectors(["1"] * 5))
        await until(lambda: batcher.waiting_texts == 5)
        with pytest.raises(Overloaded):
            await batcher.vectors(["2", "2"])
        model.gate.set()
        await asyncio.gather(first, second)
        return await batcher.vectors(["3"])

    found, _ = run(work)
    assert found.tolist() == [[3.0]]


def test_a_failure_reaches_its_batch_and_the_next_one_is_served():
    async def work(batcher, model):
        model.gate.set()
        with pytest.raises(ValueError, match="bad text"):
            await batcher.vectors(["bad"])
        return await batcher.vectors(["7"])

    found, _ = run(work)
    assert found.tolist() == [[7.0]]


def test_a_bad_text_fails_its_own_request_alone():
    async def work(batcher, model):
        first = asyncio.create_task(batcher.vectors(["0"]))
        await until(lambda: model.batches)
        others = [asyncio.create_task(batcher.vectors(texts)) for texts in (["1"], ["bad"], ["2", "3"])]
        await until(lambda: batcher.waiting_texts == 4)
        model.gate.set()
        return await asyncio.gather(first, *others, return_exceptions=True)

    found, model = run(work)
    assert [found[1].tolist(), found[3].tolist()] == [[[1.0]], [[2.0], [3.0]]]
    assert isinstance(found[2], ValueError)
    assert model.batches == [["0"], ["1", "bad", "2", "3"], ["1"], ["bad"], ["2", "3"]]


@pytest.mark.parametrize("others", [["2"], []], ids=["others wait", "nobody waits"])
def test_texts_of_a_client_that_left_are_not_embedded(others):
    async def work(batcher, model):
        first = asyncio.create_task(batcher.vectors(["0"]))
        await until(lambda: model.batches)
        gone, *stay = (asyncio.create_task(batcher.vectors([text])) for text in ("1", *others))
        await until(lambda: batcher.waiting_texts == 1 + len(others))
        gone.cancel()
        await asyncio.sleep(0)
        model.gate.set()
        await asyncio.gather(first, *stay)
        async with asyncio.timeout(10):
            return await batcher.vectors(["3"])

    found, model = run(work)
    assert found.tolist() == [[3.0]] and model.batches == [["0"], *([others] if others else []), ["3"]]


def test_stopping_ends_requests_that_wait():
    async def work(batcher, model):
        first = asyncio.create_task(batcher.vectors(["0"]))
        await until(lambda: model.batches)
        second = asyncio.create_task(batcher.vectors(["1"]))
        await until(lambda: batcher.waiting_texts == 1)
        threading.Timer(0.05, model.gate.set).start()
        await batcher.stop()
        return await asyncio.gather(first, second, return_exceptions=True)

    found, model = run(work)
    assert [type(one) for one in found] == [asyncio.CancelledError] * 2 and model.batches == [["0"]]
