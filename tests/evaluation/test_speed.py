"""Measuring speed: statistics against numpy, the plan of settings, rules on made-up rows, and one small real
measurement.
"""

from __future__ import annotations

import functools
import itertools
import statistics
import sys
import threading
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from architectures import bert, sentence_transformer
from commands import SERVER
from sentence_transformers import SentenceTransformer
from torch.utils.flop_counter import FlopCounterMode

from distilvec.evaluation import memory, speed
from distilvec.evaluation.memory import machine_info, measure_memory, random_tokens
from distilvec.evaluation.speed import (
    LEAST_REPEATS,
    Setting,
    Speed,
    SpeedRatio,
    SpeedRow,
    Timing,
    interleaved,
    largest_batch,
    latency_statistics,
    measure,
    measure_speed,
    plan_settings,
    speed_ratios,
)
from distilvec.report.json_values import from_json, to_json


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SentenceTransformer]:
    root = tmp_path_factory.mktemp("speed")
    layers = {"teacher": 8, "student": 2}
    folders = {
        name: sentence_transformer(root / name, bert(root / f"{name}-backbone", num_hidden_layers=count))
        for name, count in layers.items()
    }
    return {name: SentenceTransformer(str(folder), device="cpu") for name, folder in folders.items()}


@pytest.fixture(scope="module")
def report(models: dict[str, SentenceTransformer]) -> Speed:
    pytest.importorskip("onnxruntime")
    return measure_speed(models, batch_sizes=(1, 3), lengths=(16, 128, 256), timing=Timing(1, 6, 0.2), memory=False)


# -- statistics ------------------------------------------------------------------------------------------------------


def test_statistics_equal_numpys_and_the_standard_librarys() -> None:
    seconds = np.random.default_rng(0).gamma(2.0, 0.01, 200).tolist()
    found = latency_statistics(seconds, 8)
    assert found["mean_ms"] == pytest.approx(1e3 * statistics.fmean(seconds))
    assert found["median_ms"] == pytest.approx(1e3 * statistics.median(seconds))
    assert found["std_ms"] == pytest.approx(1e3 * statistics.stdev(seconds))
    assert found["p99_ms"] == pytest.approx(1e3 * np.percentile(seconds, 99))
    assert found["texts_per_second"] == pytest.approx(8 / np.mean(seconds))
    assert found["texts_per_second_std"] == pytest.approx(statistics.stdev(8 / second for second in seconds))
    assert found["repeats"] == 200


def scripted(costs: list[float]):
    """Calls that take these seconds on a clock of their own, and the order in which they ran."""
    now, order = [0.0], []

    def make(number, cost):
        def call():
            order.append(number)
            now[0] += cost

        return call

    return [make(number, cost) for number, cost in enumerate(costs)], lambda: now[0], order


def test_calls_alternate_and_warm_up_is_not_counted() -> None:
    calls, clock, order = scripted([0.5, 0.25])
    seconds = interleaved(calls, Timing(warmup=3, repeats=7, budget_seconds=None), clock)
    assert order == [0, 1] * 10
    assert seconds == [[0.5] * 7, [0.25] * 7]


@pytest.mark.parametrize(
    ("cost", "rounds", "warm"),
    [(0.001, 200, 20), (0.0625, 32, 8), (1.0, LEAST_REPEATS, 1)],  # all rounds; 2 s for each of two; the least
)
def test_a_budget_cuts_rounds_but_leaves_five(cost: float, rounds: int, warm: int) -> None:
    calls, clock, order = scripted([cost, cost])
    seconds = interleaved(calls, Timing(warmup=20, repeats=200, budget_seconds=2.0), clock)
    assert [len(kept) for kept in seconds] == [rounds, rounds] and len(order) == 2 * (rounds + warm)


def test_the_papers_counts_hold_without_a_budget() -> None:
    calls, clock, order = scripted([100.0])
    assert len(interleaved(calls, Timing(20, 200, None), clock)[0]) == 200 and len(order) == 220


# -- rules on made-up rows -------------------------------------------------------------------------------------------


def rows_of(medians: dict[str, dict[int, float]], role: str = "query", backend: str = "pytorch") -> list[SpeedRow]:
    rows = []
    for model, values in medians.items():
        for size, value in values.items():
            rows.append(SpeedRow(model, backend, role, size, 16, value, value, value, 0.0, 1.0))
    return rows


def test_largest_batch_is_the_last_within_100_ms() -> None:
    rows = rows_of({"teacher": {1: 20.0, 8: 99.0, 16: 100.0, 24: 100.1}, "slow": {1: 100.5}})
    rows += rows_of({"teacher": {1: 30.0, 24: 90.0}}, backend="onnx") + rows_of(
        {"teacher": {1: 101.0}}, role="document"
    )
    assert largest_batch(rows, "teacher", "pytorch", "query") == 16
    assert largest_batch(rows, "teacher", "onnx", "query") == 24
    assert largest_batch(rows, "teacher", "pytorch", "document") is None
    assert largest_batch(rows, "slow", "pytorch", "query") is None


def test_ratio_is_the_geometric_mean_over_batch_sizes() -> None:
    rows = rows_of(
        {"teacher": {1: 8.0, 2: 20.0, 4: 30.0}, "student": {1: 4.0, 2: 2.5, 8: 1.0}}
    )  # 2 and 8 times; no pair for 4 and 8
    found = speed_ratios(rows, "student", "teacher")
    assert found == {"pytorch": {"query": SpeedRatio(pytest.approx(4.0), 2.0, 8.0)}}


# -- the plan --------------------------------------------------------------------------------------------------------


def test_plan_has_every_role_at_every_size_and_every_length() -> None:
    found = [(setting.role, setting.batch_size, setting.tokens) for setting in plan_settings((1, 4), (16, 512), 200)]
    small = [("query", 1, 16), (None, 1, 16), ("query", 4, 16), ("document", 1, 200)]
    assert found == [*small, (None, 1, 512), ("document", 4, 200)], "the fewest tokens first"


def test_documents_are_equally_long_and_lengths_left_out(
    models: dict[str, SentenceTransformer], tmp_path: Path
) -> None:
    """A student that reads half as much as its teacher is not compared with it on half the text."""
    short = SentenceTransformer(str(sentence_transformer(tmp_path / "m", bert(tmp_path / "b"))), device="cpu")
    short.max_seq_length = 32
    both = {"teacher": models["teacher"], "student": short}
    found = measure_speed(both, ("pytorch",), (1,), (16, 64), Timing(0, 2, None), memory=False)
    rows = {
        (row.role, row.tokens): [other.model for other in found.rows if other.role == row.role
                                       and other.tokens == row.tokens]
        for row in found.rows
    }  # fmt: skip
    pair = ["teacher", "student"]
    assert rows == {("query", 16): pair, (None, 16): pair, ("document", 32): pair, (None, 64): ["teacher"]}
    assert found.notes == [
        "documents have 32 tokens for every model, the most that student takes",
        "student takes 32 tokens: it has no rows for longer texts",
    ]


def test_queries_are_no_longer_than_a_model_reads() -> None:
    assert {setting.tokens for setting in plan_settings((1,), (), 8)} == {8}


# -- the limit of a whole table ----------------------------------------------------------------------------------------


class Clock:
    """Seconds that pass only when a batch is encoded: 1 ms a token of each model."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(speed.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(speed, "interleaved", functools.partial(speed.interleaved, clock=lambda: self.now))
        backends = dict.fromkeys(("pytorch", "onnx"), self.encoders)
        monkeypatch.setattr(speed, "BACKENDS", backends)

    def encoders(self, models: dict, folder: Path, notes: list, seconds: float) -> dict:
        return dict.fromkeys(models, self.encode)

    def encode(self, tokens: dict) -> None:
        self.now += 1e-3 * tokens["input_ids"].numel()


def limited(models: dict, seconds: float | None, **settings: Any) -> dict:
    return measure_speed(
        models, batch_sizes=(1, 8), lengths=(16, 64), timing=Timing(20, 200, 1.0), memory=False,
        limit_seconds=seconds, **settings,
    )  # fmt: skip


def test_a_table_keeps_to_its_limit_and_says_what_it_leaves_out(
    models: dict[str, SentenceTransformer], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    found = limited(models, 20.0)
    assert clock.now <= 20.0 and found.settings["limit_seconds"] == 20.0
    rows = {(row.backend, row.batch_size, row.tokens) for row in found.rows}
    assert {("pytorch", 1, 16), ("pytorch", 1, 64), ("pytorch", 1, 128), ("onnx", 1, 64)} <= rows
    (note,) = [note for note in found.notes if "left out" in note]
    missing = [f"{backend} 8 x 128 tokens" for backend in ("pytorch", "onnx") if (backend, 8, 128) not in rows]
    assert missing and all(setting in note for setting in missing)
    assert "evaluation.speed_seconds" in note and "`distilvec speed`" in note
    assert all(row.repeats >= LEAST_REPEATS for row in found.rows)


def test_without_a_limit_nothing_is_left_out(
    models: dict[str, SentenceTransformer], monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock(monkeypatch)
    found = limited(models, None)
    assert not [note for note in found.notes if "left out" in note] and len(found.rows) == 2 * 2 * 6


def test_both_roles_are_compared_however_short_the_limit(
    models: dict[str, SentenceTransformer], monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock(monkeypatch)
    found = limited(models, 1e-6)
    rows = {(row.backend, row.role, row.batch_size) for row in found.rows}
    assert rows == {("pytorch", "query", 1), ("pytorch", "document", 1)}
    assert found.ratio["document"] == pytest.approx(1.0)


def test_an_export_that_takes_too_long_is_left_out_and_noted(models: dict[str, SentenceTransformer]) -> None:
    notes: list[str] = []
    assert speed.onnx_encoders(models, Path("nowhere"), notes, seconds=0.0) == {}
    assert [note.split(",")[0] for note in notes] == ["student: no ONNX rows", "teacher: no ONNX rows"]


def test_memory_that_takes_too_long_is_noted(models: dict[str, SentenceTransformer]) -> None:
    found = measure_speed({"only": models["student"]}, ("pytorch",), (1,), (), Timing(0, 2, None), limit_seconds=0.01)
    assert found.models["only"].memory_mb is None
    assert any("its memory could not be measured: it takes more than 0 s" in note for note in found.notes)


def test_random_tokens_are_ordinary_and_the_same_each_time(models: dict[str, SentenceTransformer]) -> None:
    model = models["student"]
    tokens = random_tokens(model, 3, 50)
    ids = tokens["input_ids"]
    assert ids.shape == (3, 50) and ids.dtype == torch.int64 and bool(tokens["attention_mask"].all())
    assert not set(ids.flatten().tolist()) & set(model[0].tokenizer.all_special_ids)
    assert int(ids.min()) >= 0 and int(ids.max()) < model[0].auto_model.config.vocab_size
    assert torch.equal(ids, random_tokens(model, 3, 50)["input_ids"])


# -- real measurements -----------------------------------------------------------------------------------------------


def test_every_row_is_there_with_every_figure(report: Speed) -> None:
    wanted = {
        (model, backend, role, size, tokens)
        for model, backend in itertools.product(("teacher", "student"), ("pytorch", "onnx"))
        for role, size, tokens in (("query", 1, 16), ("query", 3, 16), ("document", 1, 128), ("document", 3, 128))
    }
    wanted |= {
        (m, b, None, 1, tokens) for m in ("teacher", "student") for b in ("pytorch", "onnx") for tokens in (16, 128)
    }
    found = [(row.model, row.backend, row.role, row.batch_size, row.tokens) for row in report.rows]
    assert len(found) == len(wanted) and set(found) == wanted
    for row in report.rows:
        assert 2 <= row.repeats <= 6
        assert 0 < row.median_ms <= row.p99_ms and row.std_ms >= 0
        assert row.texts_per_second == pytest.approx(1e3 * row.batch_size / row.mean_ms)
    assert from_json(Speed, to_json(report)) == report


def test_models_are_described(report: Speed, models: dict[str, SentenceTransformer]) -> None:
    for name, model in models.items():
        info = report.models[name]
        table = model[0].auto_model.embeddings.word_embeddings.weight
        assert info.parameters == sum(weight.numel() for weight in model.parameters())
        assert info.embedding_parameters == table.numel()
        assert 4 * info.parameters / 1e6 <= info.megabytes < 4 * info.parameters / 1e6 + 0.05  # and the file's header
        assert info.largest_batch_under_100_ms == info.largest_batch_by_backend["pytorch"]
        assert set(info.largest_batch_by_backend) == {"pytorch", "onnx"}
        assert info.memory_mb is None and info.memory is None
    assert report.ratio.keys() == {"query", "document"}
    assert report.ratio["query"] == report.ratios["student"]["pytorch"]["query"].ratio
    assert report.machine["torch"] == torch.__version__ and report.machine["threads"] == torch.get_num_threads()
    assert report.machine["processor"] and report.machine["cores"] >= 1 and report.machine["onnxruntime"]
    assert report.settings["repeats"] == 6 and report.settings["budget_seconds"] == 0.2
    assert report.reference == "teacher"
    assert [note.split(":")[0] for note in report.notes] == [
        "documents have 128 tokens for every model, the most that teacher, student takes",
        "teacher takes 128 tokens",
        "student takes 128 tokens",
    ]


def test_a_quarter_of_the_layers_is_faster(
    models: dict[str, SentenceTransformer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock of floating-point operations, which goes alike on every machine."""
    setting = Setting("document", 1, 12)
    with FlopCounterMode(display=False) as counter:
        monkeypatch.setattr(
            speed, "interleaved", functools.partial(speed.interleaved, clock=lambda: counter.get_total_flops() / 1e9)
        )
        found = measure(
            "pytorch",
            setting,
            {name: lambda tokens, model=model: model(dict(tokens)) for name, model in models.items()},
            models,
            Timing(1, 3, None),
        )
    medians = {row.model: row.median_ms for row in found}
    assert 1.5 < medians["teacher"] / medians["student"] < 8


def test_without_onnxruntime_the_pytorch_rows_still_come(
    models: dict[str, SentenceTransformer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    shown: list[tuple[str, int, int]] = []
    found = measure_speed(
        {"only": models["student"]},
        batch_sizes=(1,),
        lengths=(),
        timing=Timing(0, 2, 2.0),
        memory=False,
        progress=lambda *step: shown.append(step),
    )
    assert {row.backend for row in found.rows} == {"pytorch"} and len(found.rows) == 2
    assert any("only: no ONNX rows" in note and "pip install" in note and "[onnx]" in note for note in found.notes)
    assert found.ratio == {"query": None, "document": None} and found.ratios == {} and found.reference == "only"
    assert found.models["only"].memory_mb is None
    assert found.models["only"].largest_batch_by_backend["onnx"] == {"query": None, "document": None}
    assert [done for _, done, _ in shown] == sorted(done for _, done, _ in shown)
    assert shown[0][1] == 0 and shown[-1][1] == shown[-1][2] and len({total for *_, total in shown}) == 1


@pytest.mark.slow
def test_memory_is_measured_in_a_process_of_its_own(
    models: dict[str, SentenceTransformer], forked_modules: None
) -> None:
    found = measure_speed({"student": models["student"]}, ("pytorch",), (1, 16), (), Timing(0, 2, 2.0))
    memory = found.models["student"].memory
    assert memory["batch_size"] == 16 and memory["tokens"] == 128 and memory["method"].startswith("psutil")
    assert 0.3 < memory["memory_mb"] < 300 and memory["loading_mb"] <= memory["memory_mb"]
    assert found.models["student"].memory_mb == memory["memory_mb"] and not any(
        "memory" in note for note in found.notes
    )


@pytest.mark.slow
def test_memory_that_cannot_be_measured_is_said(tmp_path: Path, forked_modules: None) -> None:
    found = measure_memory(tmp_path / "missing", 1, 8, 1)
    assert found["memory_mb"] is None and found["problem"]


def peak_of_a_call(results: SimpleQueue) -> None:
    sampled = threading.Event()
    before = psutil.Process().memory_info().rss

    def call() -> None:
        block = np.ones(25_000_000)  # 200 MB
        block += 1
        sampled.wait(60)  # until the other thread has had its turn

    class Sampled(psutil.Process):
        def memory_info(self) -> Any:
            found = super().memory_info()
            if found.rss - before > 150e6:
                sampled.set()
            return found

    memory.psutil.Process = Sampled
    results.put((before, memory.peak_memory(call), psutil.Process().memory_info().rss))


def test_peak_sees_memory_that_is_given_back() -> None:
    """In a process of its own: here earlier tests have left memory that would be taken again."""
    results = SERVER.SimpleQueue()
    process = SERVER.Process(target=peak_of_a_call, args=(results,))
    process.start()
    before, peak, last = results.get()
    process.join()
    assert peak - before > 150e6 and last < peak


def test_the_machine_is_described() -> None:
    assert machine_info().keys() >= {"processor", "cores", "threads", "torch", "onnxruntime"}
