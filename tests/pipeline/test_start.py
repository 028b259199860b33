"""The start of training: the nearest layers, linear layers by ridge regression, resuming, refusals."""

from __future__ import annotations

import asyncio
import functools
import json
import shutil
from pathlib import Path

import architectures
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from accelerate import Accelerator
from interrupted import interrupt
from jobs import train
from labelled import write_task
from refusals import refused
from safetensors.torch import load_file
from samples import make_texts
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from transformers import CONFIG_MAPPING

import distilvec
from distilvec.core.errors import DistilvecError
from distilvec.core.run_folder import RunFolder
from distilvec.data import docstrings
from distilvec.models.load import load
from distilvec.pipeline.objectives import make_objective, required_outputs
from distilvec.pipeline.prepare import prepare, prepare_data
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.run import run
from distilvec.pipeline.start import CHOICE_TEXTS, Start, _batches, read_start
from distilvec.pipeline.student import untrained_student
from distilvec.students import narrow
from distilvec.students.encoder import Encoder
from distilvec.students.regression import mean_distance
from distilvec.train.metrics import read_metrics
from distilvec.train.validation import validate_student
from distilvec.verbs.plan.plan import make_plan

pytestmark = pytest.mark.usefixtures("shared_cache")
BEST = {"count": 1, "choose": "best"}
RIDGE = {"student__start": "ridge", "student__dense": "always"}


@pytest.fixture
def started(tiny_recipe, tmp_path):
    """The job of a recipe in a folder, and its start."""

    def make(name="run", **changes):
        job = resolve(tiny_recipe(**changes), tmp_path / name)
        return job, prepare(job).start

    return make


def first_distance(folder):
    return read_metrics(RunFolder(folder).metrics)[0]["eval/distance"]


def test_the_nearest_layers_are_those_of_brute_force(started, tiny_recipe):
    job, start = started(student__layers=BEST)
    data = prepare_data(job, untrained_student(job))
    found = {}
    for layer in range(4):
        other = tiny_recipe(student__layers=[layer]).student
        encoder, distances = Encoder(untrained_student(job, other)).eval(), []
        with torch.no_grad():
            for batch, teacher in _batches(job, data, job.required, CHOICE_TEXTS, torch.device("cpu")):
                ours = encoder(batch, job.required).embedding
                distances += (ours - teacher.embedding).norm(dim=-1).tolist()
        found[layer] = sum(distances) / len(distances)
    assert start.layers == [min(found, key=found.get)] and start.choices == len(found) == 4
    assert start.layer_distances == pytest.approx((found[0], min(found.values())), abs=1e-5)
    assert start.layers != [0], "else the choice shows nothing"


def test_a_run_begins_at_its_start_and_records_it(tiny_recipe, tmp_path, capsys):
    for name, changes in {
        "plain": {"student__layers": 1},
        "best": {"student__layers": BEST},
        "both": {"student__layers": BEST, **RIDGE},
    }.items():
        result = run(tiny_recipe(train__max_steps=2, **changes), tmp_path / name)
        written = json.loads(RunFolder(tmp_path / name).record.read_text())
        assert ("start" in written["training"]) is (name != "plain")
    said = "".join(capsys.readouterr())
    assert first_distance(tmp_path / "both") < first_distance(tmp_path / "best") < first_distance(tmp_path / "plain")
    start = read_start(resolve(tiny_recipe(train__max_steps=2, student__layers=BEST, **RIDGE), tmp_path / "both"))
    assert f"start: {start.label}" in said and written["training"]["start"] == start.label
    assert f"layers {start.layers}, the best of 4 choices" in start.label and "ridge student.2.linear" in start.label
    assert result.record.student.kept_layers == start.layers
    card = (tmp_path / "both" / "student" / "README.md").read_text()
    assert f"layers {start.layers[0]} of" in card


def test_a_resumed_run_ends_with_the_same_weights_and_fits_nothing_again(tiny_recipe, tmp_path, monkeypatch):
    recipe = tiny_recipe(student__layers=BEST, **RIDGE, train__checkpoint_steps=2, train__max_steps=6)
    whole, halved = (resolve(recipe, tmp_path / name) for name in ("whole", "halved"))
    train(whole)
    interrupt(halved, 5, monkeypatch, execute=train)
    monkeypatch.setattr("distilvec.pipeline.start._find_start", lambda *arguments: pytest.fail("fitted again"))
    train(halved)
    first, second = (load_file(job.files.checkpoint) for job in (whole, halved))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first if name.startswith("model/"))


def test_a_start_of_another_recipe_is_found_again(started, tmp_path):
    _, first = started(student__layers=BEST)
    RunFolder(tmp_path / "run").start.rename(tmp_path / "kept")
    _, again = started(student__layers=BEST)
    assert first == again and RunFolder(tmp_path / "run").start.exists()
    _, other = started(student__layers={"count": 3, "choose": "best"})
    assert len(other.layers) == 3 != len(first.layers)


def test_a_wider_teacher_is_approached(started, tmp_path):
    folder = architectures.sentence_transformer(
        tmp_path / "wide", architectures.bert(tmp_path / "backbone", seed=3), "mean dense:48 normalize"
    )
    small = architectures.bert(tmp_path / "small")
    changes = {"teacher__model": str(folder), "student__model": str(small), "train__max_steps": 1}
    job, start = started(**changes, student__layers=BEST, student__start="ridge")
    before, after = start.ridge_distances["student.2.linear"]
    assert after < 0.8 * before, "a random layer leads nowhere near the teacher"
    assert start.layer_distances[1] <= start.layer_distances[0] < before, "layers are compared behind a ridge"
    train(job)
    assert first_distance(job.folder) == pytest.approx(after, rel=0.15), "on texts that the fit has not read"


@pytest.fixture
def wide_teacher(tmp_path):
    """A teacher of 48 dimensions, whose student of 32 needs a linear layer."""
    return architectures.sentence_transformer(
        tmp_path / "wide", architectures.bert(tmp_path / "backbone", seed=3), "mean dense:48 normalize"
    )


def test_a_new_layer_that_ships_is_fitted_by_default(started, tmp_path, wide_teacher):
    changes = {
        "teacher__model": str(wide_teacher),
        "student__model": str(architectures.bert(tmp_path / "small")),
        "train__max_steps": 1,
    }
    distances = {}
    for start in ("auto", "ridge", "random"):
        job, _ = started(start, **changes, student__start=start)
        train(job)
        distances[start] = first_distance(job.folder)
    assert distances["auto"] == distances["ridge"] < 0.8 * distances["random"]


@pytest.mark.parametrize("method", ["talas", "simcse", "emo"])
def test_layers_that_only_help_training_begin_as_in_their_papers(method, started, tiny_model, wide_teacher):
    _, start = started(teacher__model=str(wide_teacher), student__model=str(tiny_model), method__name=method)
    assert start == Start()


def kinds(folder):
    return [type(module).__name__ for module in SentenceTransformer(str(folder / "student"), device="cpu")]


def test_a_student_of_another_family_gets_a_fitted_layer_at_equal_widths(tiny_recipe, tiny_model, tmp_path):
    """Its vectors have as many dimensions as its teacher's, and nothing in common with them."""
    stranger = architectures.sentence_transformer(tmp_path / "stranger", architectures.bert(tmp_path / "b", seed=5))
    changes = {"student__model": str(stranger), "student__layers": None, "train__max_steps": 1}
    result = run(tiny_recipe(**changes), tmp_path / "run")
    assert kinds(tmp_path / "run").count("Dense") == 1
    assert "ridge student.2.linear" in result.record.training.start
    plain = run(tiny_recipe(**changes, student__dense="never"), tmp_path / "plain")
    assert "Dense" not in kinds(tmp_path / "plain")
    assert result.validation["untrained_distance"] < plain.validation["untrained_distance"]


def test_the_teachers_own_layers_and_what_was_made_of_them_get_none(tiny_recipe, tiny_model, tmp_path):
    run(tiny_recipe(train__max_steps=1), tmp_path / "first")
    texts = tmp_path / "texts.txt"
    texts.write_text("rain on the roof\na train to Ankara\n")
    distilvec.transplant(str(tiny_model), texts, tmp_path / "trimmed", options={"letters": "seen"})
    for name, model in {
        "same": tiny_model,
        "again": tmp_path / "first" / "student",
        "cut": tmp_path / "trimmed",
    }.items():
        recipe = tiny_recipe(student__model=str(model), student__layers=None, train__max_steps=1)
        run(recipe, tmp_path / name)
        assert "Dense" not in kinds(tmp_path / name), name


def test_the_teachers_folder_has_many_spellings(tiny_recipe, tiny_model, tmp_path, monkeypatch):
    folder = shutil.copytree(tiny_model, tmp_path / "sub" / "teacher")
    (tmp_path / "link").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    for spelling in ("sub/teacher", "sub/teacher/", "./sub/teacher", str(folder), "link"):
        recipe = tiny_recipe(teacher__model="sub/teacher", student__model=spelling, student__layers=None)
        assert resolve(recipe, tmp_path / "run").recipe.student.dense == "auto", spelling


def test_another_revision_of_the_teachers_model_is_another_model(tiny_recipe, tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("transformers.utils.hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    repository = tmp_path / "hub" / "models--me--tiny"
    for name, commit in (("v1", "1" * 40), ("v2", "2" * 40)):
        shutil.copytree(tiny_model, repository / "snapshots" / commit)
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs" / name).write_text(commit)
    teacher = {"teacher__model": "me/tiny", "teacher__revision": "v1", "student__layers": None}
    for revision, dense in (("v1", "auto"), ("1" * 40, "auto"), ("v2", "always")):
        recipe = tiny_recipe(**teacher, student__model="me/tiny", student__revision=revision)
        assert resolve(recipe, tmp_path / "run").recipe.student.dense == dense, revision


def test_a_teacher_is_known_by_its_weights(tiny_recipe, tiny_model, tmp_path):
    """Many models lie in a folder named model, and a folder may be renamed: names say little."""
    renamed = shutil.copytree(tiny_model, tmp_path / "renamed")
    namesake = architectures.sentence_transformer(
        tmp_path / "other" / tiny_model.name, architectures.bert(tmp_path / "backbone", seed=5)
    )
    run(tiny_recipe(train__max_steps=1), tmp_path / "first")
    texts = tmp_path / "texts.txt"
    texts.write_text("rain on the roof\na train to Ankara\n")
    distilvec.transplant(str(tiny_model), texts, tmp_path / "trimmed", options={"letters": "seen"})
    for student in (tmp_path / "first" / "student", tmp_path / "trimmed"):
        for teacher, dense in ((tiny_model, "auto"), (renamed, "auto"), (namesake, "always")):
            changes = {"teacher__model": str(teacher), "student__model": str(student), "student__layers": None}
            assert resolve(tiny_recipe(**changes), tmp_path / "run").recipe.student.dense == dense, (student, teacher)


def test_a_record_without_weights_has_the_teachers_name(tiny_recipe, tiny_model, tmp_path):
    run(tiny_recipe(train__max_steps=1), tmp_path / "first")
    student = tmp_path / "first" / "student"
    record = json.loads((student / "distillation.json").read_text())
    del record["teacher"]["weights"]
    for name, dense in ((record["teacher"]["name"], "auto"), ("another", "always")):
        record["teacher"]["name"] = name
        (student / "distillation.json").write_text(json.dumps(record))
        recipe = tiny_recipe(student__model=str(student), student__layers=None)
        assert resolve(recipe, tmp_path / "run").recipe.student.dense == dense


def test_a_student_of_an_index_stays_its_student_when_the_index_grows(tiny_recipe, tiny_model, tmp_path):
    texts = make_texts(260)
    vectors = list(load(tiny_model, device="cpu").encode(texts))

    def student_of(count, student, folder):
        table = pa.table({"text": texts[:count], "embedding": vectors[:count]})
        pq.write_table(table, tmp_path / "dump.parquet")
        recipe = tiny_recipe(
            teacher={"vectors": str(tmp_path / "dump.parquet")},
            student={"model": str(student)},
            corpus={"sources": [{"builtin": "teacher"}], "validation_rows": 40},
            train__max_steps=1,
        )
        return resolve(recipe, tmp_path / folder)

    run(student_of(200, tiny_model, "first").recipe, tmp_path / "first")
    assert student_of(200, tiny_model, "again").recipe.student.dense == "always"
    for count in (200, 260):
        job = student_of(count, tmp_path / "first" / "student", "later")
        assert job.recipe.student.dense == "fold", "its own layer goes on"


def test_a_student_goes_on_behind_its_own_layer(tiny_recipe, tmp_path, wide_teacher):
    """An earlier student of this teacher has a layer to its width: that one is trained on, not a second one."""
    small = architectures.bert(tmp_path / "small")
    changes = {"teacher__model": str(wide_teacher), "student__layers": None}
    first = run(tiny_recipe(**changes, student__model=str(small), train__epochs=2), tmp_path / "first")
    student = str(tmp_path / "first" / "student")
    second = run(tiny_recipe(**changes, student__model=student, train__max_steps=1), tmp_path / "second")
    assert kinds(tmp_path / "second").count("Dense") == 1
    assert second.validation["untrained_distance"] == pytest.approx(first.validation["distance"], abs=1e-5)


@pytest.fixture
def teacher_with_layers(tmp_path):
    """A teacher with two linear layers after its pooling, to another width than that of its states."""
    return architectures.sentence_transformer(
        tmp_path / "dense", architectures.bert(tmp_path / "dense-backbone", seed=3), "mean dense:128 dense:48 normalize"
    )


def test_the_teachers_layers_after_the_pooling_are_the_start(tiny_recipe, tmp_path, teacher_with_layers):
    """By its name, by its folder, and in what was made of it; nothing is fitted."""
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(make_texts(200)))
    distilvec.transplant(str(teacher_with_layers), texts, tmp_path / "cut", options={"letters": "all"})
    for name, student in {
        "own": "teacher",
        "folder": str(teacher_with_layers),
        "trimmed": str(tmp_path / "cut"),
        "later": str(tmp_path / "own" / "student"),
    }.items():
        changes = {"teacher__model": str(teacher_with_layers), "student__model": student, "student__layers": None}
        recipe = tiny_recipe(**changes, train__max_steps=1, train__learning_rate=1e-9)
        result = run(recipe, tmp_path / name)
        assert kinds(tmp_path / name) == ["Transformer", "Pooling", "Dense", "Normalize"]
        assert result.validation["untrained_distance"] < 0.02, name
        assert result.record.training.start is None and result.record.training.linear_layer is None
        run(recipe, tmp_path / name)  # opens the finished run


def test_the_best_layers_and_a_size_keep_the_teachers_layers(started, tiny_recipe, tmp_path, teacher_with_layers):
    teacher = {"teacher__model": str(teacher_with_layers)}
    job, start = started(student__layers={"count": 3, "choose": "best"}, **teacher)
    assert start.ridge_distances == {} and start.layer_distances[1] <= start.layer_distances[0]
    student = start.student(job)
    own = SentenceTransformer(str(teacher_with_layers), device="cpu")
    product = own[3].linear.weight @ own[2].linear.weight
    torch.testing.assert_close(student[2].linear.weight, product, atol=1e-4, rtol=1e-4)

    # in the order of the plan: the layers after the pooling, whose they are, and their parameters
    lines = dict(make_plan(job).lines)
    assert (
        "32 → 48" in lines["  after the pooling"] and "teacher's own, 1,536 parameters" in lines["  after the pooling"]
    )

    changes = {"student__size": "90%", "student__layers": None, **teacher}
    sized = resolve(tiny_recipe(**changes), tmp_path / "sized")
    built = untrained_student(sized)
    assert sized.recipe.student.dense == "fold" and built[2].linear.weight.shape == (48, 32)
    most = 0.9 * sum(weight.numel() for weight in own.parameters())
    assert 0.5 * most < sum(weight.numel() for weight in built.parameters()) <= most

    static = resolve(tiny_recipe(**changes | {"student__size": "10%"}), tmp_path / "static")
    assert static.recipe.student.is_static and static.recipe.student.dense == "auto"


def test_embedding_gemma2_is_cut_and_its_best_layers_are_chosen(started, tiny_recipe, tmp_path):
    """Its states are wider than its hidden size, and each of its layers reads inputs of its own."""
    if "embedding_gemma2_text" not in CONFIG_MAPPING:
        pytest.skip("needs a later transformers")
    plain = architectures.embedding_gemma2(tmp_path / "plain")
    modules = [Transformer(str(plain)), Pooling(48, "mean"), Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(tmp_path / "gemma"))
    teacher = {"teacher__model": str(tmp_path / "gemma"), "train__max_steps": 1, "train__learning_rate": 1e-9}
    whole = run(tiny_recipe(**teacher, student__layers=None), tmp_path / "whole")
    assert whole.validation["untrained_distance"] < 0.02
    assert kinds(tmp_path / "whole") == ["Transformer", "Pooling", "Normalize"]

    job, start = started(**teacher, student__layers={"count": 3, "choose": "best"})
    assert start.layers[-1] in (2, 5) and start.choices == 11, "the last layer has full attention"
    train(job)
    assert first_distance(job.folder) == pytest.approx(start.layer_distances[1], rel=0.15)


def test_another_pooling_than_the_teachers_gets_a_fitted_layer(started, teacher_with_layers):
    job, start = started(teacher__model=str(teacher_with_layers), student__layers=None, student__pooling="cls")
    ((before, after),) = start.ridge_distances.values()
    assert job.recipe.student.dense == "always" and after < before


def test_the_own_layers_of_a_teacher_with_cut_vectors_begin_as_the_teacher(started):
    _, start = started(teacher__truncate_dim=16, student__layers=None)
    ((_, after),) = start.ridge_distances.values()
    assert after < 1e-3


def test_python_starts_from_ridge(tmp_path, wide_teacher):
    texts = [f"text number {number} about {word}" for number in range(60) for word in ("rivers", "stars")]
    small = str(architectures.bert(tmp_path / "small"))
    distilvec.distill(str(wide_teacher), texts, student=small, out=tmp_path / "run", epochs=1)
    record = json.loads(RunFolder(tmp_path / "run").record.read_text())
    assert "ridge student.2.linear" in record["training"]["start"]


@pytest.mark.parametrize("method", ["talas", "emo", "redact"])
def test_layers_of_the_objective_are_fitted(method, started, tiny_model, tmp_path):
    other = architectures.sentence_transformer(
        tmp_path / "wide", architectures.bert(tmp_path / "backbone", seed=3), "mean dense:48 normalize"
    )
    changes = {"talas": {"student__model": str(tiny_model), "teacher__model": str(other)}, "emo": {}}
    changes["redact"] = {"more_teachers": [{"model": str(other)}]}
    names = {"talas": ["anchors.1", "anchors.2"], "emo": ["projection"], "redact": ["projections.0"]}[method]
    job, start = started(method__name=method, student__start="ridge", **changes[method])
    assert list(start.ridge_distances) == [f"objective.{name}" for name in names]
    assert all(after < 0.9 * before for before, after in start.ridge_distances.values())
    objective = make_objective(job.stages[0], job.context)
    start.set_objective(objective)
    encoder = Encoder(start.student(job)).eval()
    data = prepare_data(job, encoder.model)
    required = required_outputs(objective, None)
    ours = objective.student_outputs | type(job.required)(pre_dense=True)
    batch, teacher = next(_batches(job, data, required, (64, 128), torch.device("cpu")))
    with torch.no_grad():
        inputs, targets = objective.linear_maps()[names[-1]](batch, encoder(batch, ours, rows(teacher)), teacher)
        fitted = mean_distance(objective.get_submodule(names[-1])(inputs), targets)
    assert fitted < start.ridge_distances[f"objective.{names[-1]}"][0]


def rows(teacher):
    return None if teacher.selected is None else teacher.selected[..., 0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"student__start": "ridge"}, r"^\[student.start\] .*student.dense=always"),
        ({"student__layers": {"count": 9, "choose": "best"}}, r"^\[student.layers\] found 9; .*1 to 4"),
        ({"student__layers": {"count": 0}}, r"^\[student.layers.count\] .*greater than 0; found 0"),
        ({"student__layers": {"count": 2, "choose": "worst"}}, r"^\[student.layers.choose\] .*'spread' or 'best'"),
        ({"student__layers": BEST, "student__reinitialize": 1}, r"^\[student.layers.choose\] .*leave out reinitialize"),
        ({"student__start": "lasso"}, r"^\[student.start\] .*'random'; found 'lasso'"),
    ],
)
def test_refusals(changes, message, tiny_recipe, tmp_path):
    with pytest.raises(DistilvecError, match=message):
        run(tiny_recipe(**changes), tmp_path / "run")


def test_labels_alone_have_no_start(tiny_recipe, tmp_path):
    write_task(tmp_path / "task.jsonl", "classification")
    task = {"type": "classification", "path": str(tmp_path / "task.jsonl"), "encode": "joint"}
    recipe = tiny_recipe(corpus=None, task=task, method={"name": "task"}, student__layers=BEST)
    with refused("student.layers.choose", "task"):
        train(resolve(recipe, tmp_path / "run"))


def test_a_spread_choice_is_the_number_and_a_plan_needs_no_start(started, tiny_recipe, tmp_path):
    job, start = started(student__layers={"count": 2, "choose": "spread"})
    plain = untrained_student(resolve(tiny_recipe(), tmp_path / "plain"))
    assert start == Start() and not job.files.start.exists()
    weights = start.student(job).state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in plain.state_dict().items())
    planned = resolve(tiny_recipe(student__layers=BEST, **RIDGE), tmp_path / "planned")
    assert make_plan(planned).lines and not RunFolder(planned.folder).start.exists()


def test_on_real_text_the_start_is_nearer_to_the_teacher(tiny_recipe, tmp_path, monkeypatch):
    package = Path(asyncio.__file__).parent  # all of the standard library takes seconds to parse
    monkeypatch.setattr(docstrings, "docstrings", functools.partial(docstrings.docstrings, package))

    def distance(name, **changes):
        recipe = tiny_recipe(
            teacher__model="all-MiniLM-L6-v2",
            teacher__max_length=24,  # fast
            corpus__sources=[{"builtin": "python-docstrings", "limit": 300}],
            student__layers=[0, 5],
            **changes,
        )
        job = resolve(recipe, tmp_path / name)
        encoder, objective = prepare(job).student, make_objective(job.stages[0], job.context)
        data = prepare_data(job, encoder.model).training_data(required_outputs(objective, None))
        return validate_student(encoder, objective, data, Accelerator(cpu=True), 16)[0]["distance"]

    assert distance("ridge", **RIDGE) < 0.9 * distance("plain")


@pytest.mark.parametrize("layers", [None, BEST])
def test_narrower_layers_are_fitted_once_and_by_a_plan_never(layers, tiny_recipe, tmp_path, monkeypatch, no_pages):
    monkeypatch.setenv("DISTILVEC_CACHE", str(tmp_path / "cache"))  # another test may have kept this student's counts
    fits = []
    monkeypatch.setattr("distilvec.students.narrow._read", lambda *a, read=narrow._read: fits.append(1) or read(*a))
    recipe = tiny_recipe(student__layers=layers, student__intermediate_size=16, train__max_steps=2)
    make_plan(resolve(recipe, tmp_path / "planned"))
    planned = len(fits)
    run(recipe, tmp_path / "run")
    assert (planned, len(fits) - planned) == (0 if layers else 1, 1), "a plan describes the student, which is kept"
