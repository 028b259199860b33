"""Sharpness against exact Hessians and known spectra, through the real attention, and the command from end to end."""

from __future__ import annotations

import json
import math
import shutil

import numpy as np
import pytest
import torch
from refusals import refused
from safetensors.torch import load_file
from torch import nn

from distilvec.core.errors import DistilvecError
from distilvec.core.method_file import method_names
from distilvec.core.run_folder import RunFolder
from distilvec.pipeline.evaluate import saved_students
from distilvec.pipeline.finished_run import FinishedRun
from distilvec.pipeline.objectives import make_objective, required_outputs
from distilvec.pipeline.prepare import prepare_data
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.run import run
from distilvec.pipeline.student import untrained_student
from distilvec.students.encoder import Encoder
from distilvec.train.distillation import Distillation
from experiments.sharpness.__main__ import main
from experiments.sharpness.curvature import (
    gradient,
    hessian_product,
    hutchinson_trace,
    largest_eigenvalue,
    loss_value,
    rise,
)
from experiments.sharpness.figure import draw_sharpness, sharpness_figure, sharpness_table
from experiments.sharpness.landscape import Landscape, Landscapes, Settings, measure_runs

pytestmark = pytest.mark.usefixtures("shared_cache")
QUICK = Settings(texts=32, draws=2, tolerance=0.05)


def small_model():
    """A network with a loss in two parts of 3 and 5 rows, all in float64; (parts, parameters, exact Hessian)."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    x, y = torch.randn(8, 3, dtype=torch.float64), torch.randn(8, 2, dtype=torch.float64)
    parameters = list(model.parameters())
    rows = [(0, 3), (3, 8)]

    def parts():
        for first, last in rows:
            yield (model(x[first:last]) - y[first:last]).pow(2).mean(-1).sum() / 8

    def flat_loss(flat):
        pieces = flat.split([p.numel() for p in parameters])
        w1, b1, w2, b2 = (piece.view_as(p) for piece, p in zip(pieces, parameters, strict=True))
        return (torch.tanh(x @ w1.T + b1) @ w2.T + b2 - y).pow(2).mean(-1).mean()

    flat = torch.cat([p.detach().reshape(-1) for p in parameters])
    return parts, parameters, torch.autograd.functional.hessian(flat_loss, flat)


def test_products_with_the_exact_hessian():
    parts, parameters, hessian = small_model()
    for seed in range(3):
        vector = torch.randn(len(hessian), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        torch.testing.assert_close(hessian_product(parts, parameters, vector), hessian @ vector, atol=1e-12, rtol=1e-10)


def test_the_largest_eigenvalue_and_the_trace_of_a_small_model():
    parts, parameters, hessian = small_model()
    exact = torch.linalg.eigvalsh(hessian)

    def product(vector):
        return hessian_product(parts, parameters, vector)

    start = torch.randn(len(hessian), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = largest_eigenvalue(product, start, tolerance=1e-8)
    assert found.value == pytest.approx(exact[-1].item(), rel=1e-10) and found.residual <= 1e-8 * found.value
    mean, error = hutchinson_trace(product, parameters, 400, torch.Generator().manual_seed(0))
    assert abs(mean - exact.sum().item()) < 3 * error and error < 0.2 * mean


@pytest.mark.parametrize(
    "spectrum", [[5.0, 3.0, 1.0, 0.5], [2.0, -9.0, 1.0, -4.0], [-1.0, -2.0, -3.0, -4.0], [0.0, 0.0, 0.0, 0.0]]
)
def test_the_largest_algebraic_eigenvalue_of_a_quadratic(spectrum):
    """Where negative curvature prevails the largest in magnitude is another one, and it is told as the smallest."""
    rotation = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64))[0]
    matrix = rotation @ torch.diag(torch.tensor(spectrum, dtype=torch.float64)) @ rotation.T
    weights = torch.randn(4, generator=torch.Generator().manual_seed(2), dtype=torch.float64).requires_grad_()

    def parts():
        yield weights @ matrix @ weights / 2

    found = largest_eigenvalue(
        lambda v: hessian_product(parts, [weights], v), torch.ones(4, dtype=torch.float64), tolerance=1e-6
    )
    assert found.value == pytest.approx(max(spectrum), abs=1e-9) and found.smallest == pytest.approx(
        min(spectrum), abs=1e-9
    )
    mean, error = hutchinson_trace(lambda v: matrix @ v, [weights], 200, torch.Generator().manual_seed(0))
    assert abs(mean - sum(spectrum)) <= 3 * error + 1e-12


def test_lanczos_in_single_precision_on_a_large_spread_spectrum():
    """A thousand dimensions, most of them flat, as a student's: the value is found in few products and its error is
    known.
    """
    spectrum = torch.cat([torch.zeros(900), torch.linspace(0, 1, 97), torch.tensor([-30.0, 7.0, 7.5])])
    start = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    found = largest_eigenvalue(lambda v: spectrum * v, start, tolerance=1e-2)
    assert found.value == pytest.approx(7.5, rel=2e-3) and found.products < 30
    assert abs(found.value - 7.5) <= found.residual
    assert largest_eigenvalue(lambda v: spectrum * v, start, tolerance=1e-9, limit=5).products == 5


def test_a_linear_loss_has_no_curvature_and_unused_parameters_do_no_harm():
    used, unused = torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)

    def parts():
        yield used.sum()

    assert torch.equal(hessian_product(parts, [used, unused], torch.ones(5)), torch.zeros(5))
    assert [g.tolist() for g in gradient(parts, [used, unused])] == [[1, 1], [0, 0, 0]]


def test_the_rise_of_the_loss_and_weights_that_come_back():
    parts, parameters, _ = small_model()
    before = [p.detach().clone() for p in parameters]
    slopes = gradient(parts, parameters)
    sum(parts()).backward()
    for slope, parameter in zip(slopes, parameters, strict=True):
        torch.testing.assert_close(slope, parameter.grad)
    for adaptive in (False, True):
        found = rise(parts, parameters, slopes, 0.05, adaptive)
        assert all(torch.equal(p, copy) for p, copy in zip(parameters, before, strict=True))
        scaled = [
            (p.detach().abs() if adaptive else torch.ones_like(p)) * slope
            for p, slope in zip(parameters, slopes, strict=True)
        ]
        length = torch.cat([value.reshape(-1) for value in scaled]).norm()
        with torch.no_grad():
            for parameter, value in zip(parameters, scaled, strict=True):
                parameter += 0.05 * (parameter.abs() if adaptive else 1) * value / length
        after = loss_value(parts)
        with torch.no_grad():
            for parameter, copy in zip(parameters, before, strict=True):
                parameter.copy_(copy)
        assert found == pytest.approx(after - loss_value(parts), rel=1e-9) and found > 0


def test_the_rise_on_a_quadratic_in_closed_form():
    """L = a w^2 / 2 at w = 2: SAM goes rho further out, ASAM rho times |w|."""
    weight = torch.tensor([2.0], dtype=torch.float64, requires_grad=True)

    def parts():
        yield 3 * weight.pow(2).sum() / 2

    slopes = gradient(parts, [weight])
    assert rise(parts, [weight], slopes, 0.05, adaptive=False) == pytest.approx(1.5 * (2.05**2 - 4), rel=1e-9)
    assert rise(parts, [weight], slopes, 0.05, adaptive=True) == pytest.approx(1.5 * (2.1**2 - 4), rel=1e-9)


# -- runs --------------------------------------------------------------------------------------------------------------

METHOD = '''
import torch
from torch import nn
from distilvec.core.outputs import OutputSpec
from distilvec.losses.contrastive import info_nce
from distilvec.core.objective import Objective


class Views(Objective):
    """A projection of its own, two views under dropout, and a buffer that every forward pass changes."""

    in_teacher_space = False  # as TALAS: the held-out figure is not a distance
    needs_fixed_batch = True

    default_weights = {"match": 1.0, "views": 0.5}

    def __init__(self, context, weights):
        super().__init__(context, weights)
        self.student_outputs = OutputSpec(embedding=True, pooled_layers=(-1,), second_view=True)
        self.teacher_outputs = OutputSpec(embedding=True)
        self.project = nn.Linear(context.student.hidden_size, context.teacher.dim, bias=False)
        self.register_buffer("seen", torch.ones(()))

    def forward(self, batch, student, teacher):
        match = (self.project(student.pooled_layers[-1]) - teacher.embedding).pow(2).mean(-1) * self.seen.clone()
        self.seen += 1
        return {"match": match, "views": info_nce(student.embedding, student.second_view, 0.5)}
'''


@pytest.fixture
def views_run(tiny_recipe, tmp_path, common_folder, no_pages):
    """A copy of a finished run of a method with parameters, a second view and a buffer, three students kept; (folder,
    recipe).
    """
    method = common_folder / "views.py"
    method.write_text(METHOD)
    recipe = tiny_recipe(method__name=str(method), train__epochs=2, train__keep_students=3)
    if not RunFolder(common_folder / "views").record.exists():
        run(recipe, common_folder / "views")
    return shutil.copytree(common_folder / "views", tmp_path / "run"), recipe


def landscapes_of(folder, texts=32, dropout=None):
    return Landscapes(FinishedRun.open(folder), texts, 0, dropout)


def test_kept_students_have_the_objectives_parameters_beside_them(views_run):
    folder, recipe = views_run
    steps = sorted(landscapes_of(folder).students)
    names = [f"students/step-{step}" for step in steps] + ["student", "last"]
    assert all(RunFolder(folder).objective(name).exists() for name in names)
    assert not list((folder / "student").glob("objective*"))
    assert list(RunFolder(folder).saved_students) == steps == [7, 13, 20]
    assert saved_students(resolve(recipe, folder)) == [], "its method has no distance, and so no robustness margin"


def test_the_landscape_is_one_fixed_function_of_the_trained_weights(views_run):
    folder, _ = views_run
    landscape = landscapes_of(folder).landscape(20)
    assert landscape.rows == 32 and [len(batch) for batch, _ in landscape.batches] == [16, 16]
    assert landscape.module.training  # two views are wanted
    kept = load_file(RunFolder(folder).objective("last"))
    assert torch.equal(landscape.module.objective.project.weight, kept["project.weight"])
    first, second = loss_value(landscape.parts), loss_value(landscape.parts)
    assert first == second and math.isfinite(first)
    assert torch.equal(landscape.module.objective.seen, kept["seen"]), "buffers are as they were saved"
    assert first != loss_value(landscapes_of(folder, dropout=False).landscape(20).parts)
    assert first != loss_value(landscapes_of(folder).landscape(7).parts)


@pytest.mark.parametrize("dropout", [True, False])
def test_products_through_the_real_attention_are_differences_of_gradients(views_run, dropout):
    folder, _ = views_run
    assert_differences_of_gradients(landscapes_of(folder, dropout=dropout).landscape(20))


KINKED = {"triplet", "uld", "absolute", "sinkhorn", "cross_entropy", "moe", "diversity", "dynamic_cka"}
# hinges, absolute values, classes in an order that may change, ReLU, tokens that are chosen: differences see the kinks,
# products do not


@pytest.mark.parametrize("name", method_names())
def test_every_method_can_be_differentiated_twice(tiny_recipe, tmp_path, name):
    if name == "task":
        pytest.skip("has labels alone; test_run_task trains it")
    if name == "clicks":
        pytest.skip("has pairs of an index; test_clicks trains it")
    layers = 2 if name == "tinybert" else 3  # its student's layers must divide the teacher's four
    experts = {"student__experts": {"count": 3, "width": 16}} if name == "distillmoe" else {}
    job = resolve(tiny_recipe(method__name=name, student__layers=layers, **experts), tmp_path / "run")
    encoder = Encoder(untrained_student(job))
    objective = make_objective(job.stages[-1], job.context)
    data = prepare_data(job, encoder.model).training_data(required_outputs(objective, job.examples))
    batch = data.batch(data.train_rows[:16].copy())
    module = Distillation(encoder, objective).train(objective.student_outputs.second_view)
    landscape = Landscape(module, [(batch, data.teacher.signals(batch))], 0)
    ones = torch.ones(sum(parameter.numel() for parameter in landscape.parameters))
    assert torch.isfinite(hessian_product(landscape.parts, landscape.parameters, ones)).all()
    smooth = {term: 0.0 if term in KINKED else weight for term, weight in objective.weights.items()}
    objective.weights = smooth
    if any(smooth.values()):
        assert_differences_of_gradients(landscape)


def assert_differences_of_gradients(landscape):
    """The Hessian's product with the gradient's direction, by central differences in fp32."""
    parameters = landscape.parameters
    vector = torch.cat([slope.reshape(-1) for slope in gradient(landscape.parts, parameters)])
    vector /= vector.norm()
    product = hessian_product(landscape.parts, parameters, vector)
    pieces = [v.view_as(p) for v, p in zip(vector.split([p.numel() for p in parameters]), parameters, strict=True)]
    slopes, step = [], 3e-4
    for change in (step, -2 * step):
        with torch.no_grad():
            torch._foreach_add_([p.detach() for p in parameters], pieces, alpha=change)
        slopes.append(torch.cat([slope.reshape(-1) for slope in gradient(landscape.parts, parameters)]))
    difference = (slopes[0] - slopes[1]) / (2 * step)
    assert product.norm() > 0
    assert torch.cosine_similarity(product, difference, 0) > 0.9999
    assert product.norm() == pytest.approx(difference.norm().item(), rel=0.02)


def test_the_command_from_end_to_end(views_run, monkeypatch, capsys, tmp_path):
    folder, _ = views_run
    monkeypatch.setattr("distilvec.teachers.open.load_teacher", lambda *a, **k: pytest.fail("loaded the teacher"))
    monkeypatch.setattr("distilvec.pipeline.describe.open_teacher", lambda *a, **k: pytest.fail("loaded the teacher"))

    main([str(folder), "--texts", "32", "--steps", "7,20", "--json", str(tmp_path / "out.json")])
    printed = capsys.readouterr().out
    assert "eigenvalue" in printed and "±" in printed and "figures/sharpness.svg" in printed
    content = json.loads((folder / "sharpness.json").read_text())
    assert json.loads((tmp_path / "out.json").read_text())[0]["points"] == content["points"]
    assert [point["step"] for point in content["points"]] == [7, 20] and content["dropout"] and content["rows"] == 32
    assert (
        content["points"][1]["epoch"] == 2.0
        and content["method"].endswith("views.py")
        and content["update"]["name"] == "plain"
    )
    for point in content["points"]:
        assert point["residual"] <= 0.01 * point["lambda_max"] and point["asam"] > 0 and point["trace_error"] > 0
        assert point["loss"] > 0 and point["lambda_max"] > point["lambda_min"] and point["products"] > 2
    for name in ("sharpness.svg", "sharpness.png"):
        assert (RunFolder(folder).figures / name).exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--steps", "9"], "has no checkpoint of step 9; it has 7, 13, 20"),
        (["--steps", "last"], "argument --steps"),
        (["--rho", "0"], "argument --rho"),
        (["--rho", "nan"], "argument --rho"),
        (["--figure", "."], "--figure"),
    ],
)
def test_mistakes_in_the_command(views_run, capsys, words, message):
    with pytest.raises(SystemExit) as stopped:
        main([str(views_run[0]), *words])
    assert stopped.value.code == 2 and message in capsys.readouterr().err


def test_resumes_where_it_was_left_and_starts_anew_for_other_settings(views_run, monkeypatch):
    folder, _ = views_run
    measured = measure_runs([folder], [7], QUICK, trace=False)[0]["points"]
    assert "trace" not in measured[0]
    whole = measure_runs([folder], [7], QUICK, trace=True)[0]["points"]
    assert whole[0].items() >= measured[0].items() and whole[0]["trace_error"] > 0
    both = measure_runs([folder], [7, 13], QUICK, trace=True)[0]["points"]
    assert both[0] == whole[0] and both[1]["step"] == 13
    with monkeypatch.context() as patched:
        patched.setattr("experiments.sharpness.landscape.measure_curvature", lambda *a: pytest.fail("measured again"))
        assert measure_runs([folder], [7, 13], QUICK, trace=True)[0]["points"] == both
    assert len(measure_runs([folder], [7], Settings(texts=16, draws=2), trace=False)[0]["points"]) == 1
    assert [point["step"] for point in json.loads((folder / "sharpness.json").read_text())["points"]] == [7]


def test_runs_side_by_side(tiny_recipe, tmp_path, no_pages):
    folders = []
    for name, update in (("adamw", {"name": "plain"}), ("asam", {"name": "asam", "rho": 0.05})):
        folders.append(tmp_path / name)
        run(tiny_recipe(train__update=update, train__keep_students=2), folders[-1])
    found = measure_runs(folders, None, QUICK, trace=False)
    assert [run["name"] for run in found] == ["tiny (adamw)", "tiny (asam)"] and not found[1]["dropout"]
    assert [run["update"]["name"] for run in found] == ["plain", "asam"]
    axes = sharpness_figure(*found).draw().axes
    assert [panel.get_title() for panel in axes[:3]] == ["largest eigenvalue", "rise by SAM", "rise by ASAM"]
    assert [len(panel.containers) for panel in axes[:3]] == [2, 2, 2]
    line = axes[0].containers[1][0]
    assert np.allclose(line.get_ydata(), [point["lambda_max"] for point in found[1]["points"]])
    assert [row[0].text for row in sharpness_table(*found).rows][-1] == "tiny (asam)"
    assert draw_sharpness(found, None) == [tmp_path / "sharpness.svg", tmp_path / "sharpness.png"]


def test_the_last_student_alone_where_none_was_kept(tiny_recipe, tmp_path, no_pages):
    run(tiny_recipe(), tmp_path / "run")
    assert [point["step"] for point in measure_runs([tmp_path / "run"], None, QUICK, trace=False)[0]["points"]] == [11]


def test_refusals(views_run, tmp_path, monkeypatch):
    folder, _ = views_run
    with refused("run folder"):
        measure_runs([tmp_path], None, QUICK, trace=False)
    with refused("run folder"):
        measure_runs([tmp_path / "absent"], None, QUICK, trace=False)
    with pytest.raises(DistilvecError, match=r"^\[--steps\] .* 9; it has 7, 13, 20"):
        measure_runs([folder], [9], QUICK, trace=False)
    RunFolder(folder).objective("students/step-13").unlink()
    with refused("step-13.objective.safetensors", "--restart"):
        measure_runs([folder], [13], QUICK, trace=False)
    (folder / "sharpness.json").write_text("{")
    with refused("sharpness.json"):
        measure_runs([folder], [13], QUICK, trace=False)
    (folder / "sharpness.json").unlink()
    monkeypatch.setenv("DISTILVEC_CACHE", str(tmp_path / "gone"))
    with refused("cache"):
        measure_runs([folder], None, QUICK, trace=False)
