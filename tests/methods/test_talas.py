"""TALAS: the check value of TAMD, its options, ablations that cost nothing, a student that learns and keeps its own
width.
"""

from __future__ import annotations

import architectures
import pytest
import torch
from contexts import make_context
from samples import make_texts
from torch.nn.functional import cosine_similarity

from distilvec.core.batch import TextBatch
from distilvec.core.errors import DistilvecError
from distilvec.core.outputs import ModelOutputs, OutputSpec
from distilvec.core.registry import build_objective
from distilvec.core.run_folder import RunFolder
from distilvec.losses.contrastive import info_nce
from distilvec.losses.relations import layer_relation_gaps
from distilvec.pipeline.objectives import make_objective, required_outputs
from distilvec.pipeline.prepare import prepare_data
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.run import run
from distilvec.pipeline.student import untrained_student
from distilvec.students.encoder import Encoder
from distilvec.train.metrics import read_metrics
from distilvec.train.trainer import Trainer

pytestmark = pytest.mark.usefixtures("shared_cache")
CONTEXT = make_context(student_hidden_size=3, student_layers=4, teacher_dim=5)
BATCH = TextBatch(torch.arange(4), {"input_ids": torch.ones(4, 2, dtype=torch.long)}, torch.zeros(4, dtype=torch.long))


def talas(weights=None, context=CONTEXT, **options):
    return build_objective("talas", options, {name: float(weight) for name, weight in (weights or {}).items()}, context)


@pytest.fixture
def signals():
    """The check values' layers (index 0 is the embedding output), teacher and heads; a second view."""
    generator = torch.Generator().manual_seed(3)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    layers, teacher = [draw(4, 3) for _ in range(5)], draw(4, 5)
    generator.manual_seed(4)
    heads = [draw(5, 3) for _ in range(5)]
    assert heads[3][0].tolist() == pytest.approx([0.5820176221, -0.3395958330, 1.1916841690], abs=1e-9)
    student = ModelOutputs(
        embedding=layers[4], pre_dense=layers[4], pooled_layers=dict(enumerate(layers[:4])), second_view=draw(4, 3)
    )
    return student, ModelOutputs(embedding=teacher), heads


def test_check_value_of_tamd_and_the_other_terms(signals):
    student, teacher, heads = signals
    objective = talas().double()
    for layer, head in zip((3, 4), heads[-2:], strict=True):
        objective.anchors[str(layer)].weight.data = head
    terms = objective(BATCH, student, teacher)
    assert terms["tamd"].mean().item() == pytest.approx(0.9164192169936, abs=1e-7)  # in fp32
    assert terms["lasd"].mean().item() == pytest.approx(0.8539696804412, abs=1e-12)
    torch.testing.assert_close(terms["simcse"], info_nce(student.embedding, student.second_view, 0.1))
    with_embeddings = talas(include_embeddings=True).double()(BATCH, student, teacher)
    assert with_embeddings["lasd"].mean().item() == pytest.approx(0.8490677164891, abs=1e-12)


def test_tamd_is_equation_3_row_by_row(signals):
    student, teacher, _ = signals
    objective = talas(anchored_layers=3).double()
    assert list(objective.anchors) == ["2", "3", "4"]
    vectors = {**student.pooled_layers, 4: student.pre_dense}
    expected = [
        sum(
            1
            - cosine_similarity(
                objective.anchors[str(layer)].weight @ vectors[layer][row], teacher.embedding[row], dim=0
            )
            for layer in (2, 3, 4)
        )
        / 3
        for row in range(4)
    ]
    torch.testing.assert_close(objective(BATCH, student, teacher)["tamd"], torch.stack(expected))


def test_layers_that_are_related(signals):
    student, teacher, _ = signals
    layers = torch.stack([*student.pooled_layers.values(), student.pre_dense])
    for options, expected in [
        ({}, layers[1:]),
        ({"relation_layers": 2}, layers[3:]),
        ({"include_embeddings": True}, layers),
    ]:
        objective = talas(**options).double()
        torch.testing.assert_close(objective(BATCH, student, teacher)["lasd"], layer_relation_gaps(expected))
        wanted = {*range(5 - len(expected), 4), 3}
        assert set(objective.student_outputs.pooled_layers) == wanted


def test_detach_guide_reaches_the_term(signals):
    student, teacher, _ = signals
    top = student.pre_dense.requires_grad_()
    for detach, reached in ((True, False), (False, True)):
        loss = talas({"tamd": 0, "simcse": 0}, detach_guide=detach).double()(BATCH, student, teacher)["lasd"].sum()
        assert bool(torch.autograd.grad(loss, top)[0].abs().max() > 1e-6) is reached


@pytest.mark.parametrize(
    ("weights", "student", "teacher"),
    [
        ({"simcse": 0}, OutputSpec(pre_dense=True, pooled_layers=(1, 2, 3), layer_pooling="mean"), True),
        ({"tamd": 0, "lasd": 0}, OutputSpec(embedding=True, second_view=True, layer_pooling="mean"), False),
        ({"simcse": 0, "lasd": 0}, OutputSpec(pre_dense=True, pooled_layers=(3,), layer_pooling="mean"), True),
        ({"simcse": 0, "tamd": 0}, OutputSpec(pre_dense=True, pooled_layers=(1, 2, 3), layer_pooling="mean"), False),
    ],
)
def test_a_term_of_weight_0_asks_for_nothing(weights, student, teacher, signals):
    objective = talas(weights).double()
    assert objective.student_outputs == student and objective.teacher_outputs == OutputSpec(embedding=teacher)
    found = objective(BATCH, only(signals[0], objective.student_outputs), only(signals[1], objective.teacher_outputs))
    assert set(found) == {"simcse", "tamd", "lasd"} - set(weights)


def only(found, required):
    """What a model would give for these wants, and no more."""
    return ModelOutputs(
        embedding=found.embedding if required.embedding else None,
        pre_dense=found.pre_dense if required.pre_dense else None,
        pooled_layers={layer: found.pooled_layers[layer] for layer in required.pooled_layers},
        second_view=found.second_view if required.second_view else None,
    )


def test_the_student_runs_half_the_rows_without_simcse(tiny_model):
    from sentence_transformers import SentenceTransformer

    encoder, rows = Encoder(SentenceTransformer(str(tiny_model), device="cpu")), []
    encoder.backbone.register_forward_pre_hook(
        lambda module, args, kwargs: rows.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    tokens = encoder.model.tokenizer(make_texts(4), padding=True, return_tensors="pt")
    batch = TextBatch(BATCH.rows, {name: tokens[name] for name in ("input_ids", "attention_mask")}, BATCH.sources)
    for weights in ({}, {"simcse": 0}):
        encoder(
            batch,
            talas(weights, make_context(student_hidden_size=32, student_layers=4, teacher_dim=32)).student_outputs,
        )
    assert rows == [8, 4]


@pytest.mark.parametrize(
    ("layers", "weights", "options", "message"),
    [
        (4, {}, {"anchored_layers": 5}, r"anchored_layers\] found 5; expected 1 to 4"),
        (4, {}, {"relation_layers": 1}, r"relation_layers\] found 1"),
        (4, {}, {"relation_layers": 6, "include_embeddings": True}, r"relation_layers\] found 6"),
        (4, {"simcse": 0, "tamd": 0, "lasd": 0}, {}, r"^\[method.weights\]"),
        (1, {}, {"anchored_layers": 1}, r"\[method.weights.lasd\] .* found 1 layer"),
    ],
)
def test_what_cannot_be_is_refused(layers, weights, options, message):
    with pytest.raises(DistilvecError, match=message):
        talas(weights, make_context(student_hidden_size=3, student_layers=layers, teacher_dim=5), **options)


def test_a_single_layer_can_be_anchored():
    assert (
        talas(
            {"lasd": 0}, make_context(student_hidden_size=3, student_layers=1, teacher_dim=5), anchored_layers=1
        ).student_outputs.pooled_layers
        == ()
    )


@pytest.fixture
def wide_teacher(tmp_path):
    """A BERT of another width than the tiny student's."""
    backbone = architectures.bert(tmp_path / "wide", seed=5, hidden_size=48)
    return architectures.sentence_transformer(tmp_path / "teacher", backbone)


def test_learns_in_its_own_width(tiny_recipe, tiny_model, wide_teacher, tmp_path):
    recipe = tiny_recipe(
        teacher__model=str(wide_teacher),
        student__model=str(tiny_model),
        method__name="talas",
        train__epochs=6,
        train__learning_rate_factors={"objective.anchors": 5},
    )
    job = resolve(recipe, tmp_path / "run")
    model = untrained_student(job)
    assert model.get_embedding_dimension() == 32 and len(model) == 3, (
        "backbone, pooling, normalisation: no linear layer"
    )
    encoder = Encoder(model)
    objective = make_objective(job.stages[-1], job.context)
    assert {anchor.weight.shape for anchor in objective.anchors.values()} == {(48, 32)}, "to the teacher's width"
    Trainer(
        encoder,
        objective,
        prepare_data(job, model).training_data(required_outputs(objective, job.examples)),
        recipe.train,
        RunFolder(tmp_path / "run").training,
        "mark",
    ).run()
    lines = read_metrics(RunFolder(tmp_path / "run").metrics)
    logged = [line for line in lines if "train/loss" in line]
    for term in ("loss", "loss_tamd", "loss_lasd"):
        assert logged[-1][f"train/{term}"] < 0.8 * logged[0][f"train/{term}"], term
    gaps = [line["eval/similarity_gap"] for line in lines if "eval/similarity_gap" in line]
    assert min(gaps[1:]) < 0.8 * gaps[0]
    assert not any("eval/distance" in line for line in lines), "vectors of two spaces have no distance"


def test_an_ablation_trains_without_the_teacher(tiny_recipe, tmp_path, no_pages):
    recipe = tiny_recipe(method__name="talas", method__weights={"tamd": 0, "lasd": 0, "simcse": 1}, train__max_steps=2)
    result = run(recipe, tmp_path / "run")
    assert result.record.method.weights["tamd"] == 0
    assert not result.record.teacher_compatible, "as wide as the teacher, but in a space of its own"
    assert result.validation["similarity_gap"] > 0 and "distance" not in result.validation
