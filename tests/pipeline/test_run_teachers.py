"""Runs that learn from several teachers: models and tables of different widths, cached side by side or asked in every
step.
"""

from __future__ import annotations

import json
import shutil

import architectures
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from interrupted import interrupt
from jobs import answering, filled, train, training_data
from labelled import write_task
from refusals import refused
from safetensors.torch import load_file
from samples import make_texts

from distilvec.__main__ import main as cli_main
from distilvec.config import recipe as recipes
from distilvec.config.schema import TeacherSection
from distilvec.core.batch import TextBatch
from distilvec.core.errors import DistilvecError
from distilvec.core.run_folder import RunFolder
from distilvec.pipeline import describe
from distilvec.pipeline import job as jobs
from distilvec.pipeline.caches import open_cache
from distilvec.pipeline.overview import overview
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.run import run
from distilvec.teachers.cache.store import TeacherCache
from distilvec.teachers.cached import CachedTeacher, LiveTeacher, SeveralTeachers
from distilvec.teachers.model_embedder import ModelEmbedder
from distilvec.teachers.open import load_teacher
from distilvec.train.metrics import read_metrics
from distilvec.train.trainer import Trainer
from distilvec.verbs.plan.plan import make_plan
from experiments.sharpness.landscape import Settings, measure_runs


@pytest.fixture(scope="module")
def second(tmp_path_factory):
    """A teacher with another tokenizer, 48 wide, its vectors not normalised."""
    folder = tmp_path_factory.mktemp("second")
    return architectures.sentence_transformer(
        folder / "second", architectures.roberta(folder / "backbone"), "cls dense:48"
    )


@pytest.fixture
def table(tmp_path):
    """A table of vectors of unit length, 20 wide, of the tiny recipe's texts."""
    vectors = np.random.default_rng(0).normal(size=(200, 20)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    pq.write_table(
        pa.table({"text": make_texts(200), "teacher_embedding_final": list(vectors)}), tmp_path / "vectors.parquet"
    )
    return tmp_path / "vectors.parquet"


@pytest.fixture
def two(tiny_recipe, second):
    """A recipe with two teachers; call it with dotted changes, those of the second teacher's section as keywords of
    `other`.
    """

    def make(other=None, **changes):
        return tiny_recipe(
            more_teachers=[{"model": str(second), "dtype": "float32", **(other or {})}],
            evaluation__columns=["student"],
            **changes,
        )

    return make


def last(folder):
    """Everything that a run has learnt: the student's weights and the objective's."""
    return {**load_file(RunFolder(folder).last / "model.safetensors"), **load_file(RunFolder(folder).objective("last"))}


def losses(folder):
    return [line["train/loss"] for line in read_metrics(RunFolder(folder).metrics) if "train/loss" in line]


def batch_of(rows):
    """A batch of these corpus rows, as a teacher looks at one."""
    numbers = torch.as_tensor(list(rows))
    return TextBatch(numbers, {"input_ids": numbers[:, None]}, torch.zeros_like(numbers))


def test_two_cached_teachers_killed_and_resumed(two, tmp_path, monkeypatch, shared_cache):
    recipe = two({"weight": 3.0}, cache__path=str(tmp_path / "caches"), train__checkpoint_steps=3)
    job = resolve(recipe, tmp_path / "run")
    training = train(job)
    folders = sorted(path.name for path in (tmp_path / "caches").iterdir())
    assert len(folders) == 2 and folders[0].startswith("model-") and folders[1].startswith("second-")
    caches = [TeacherCache.open(open_cache(job, one).folder) for one in job.teachers]
    assert [cache.manifest.width for cache in caches] == [32, 48] and [len(cache) for cache in caches] == [200, 200]

    lines = [line for line in read_metrics(RunFolder(tmp_path / "run").metrics) if "train/loss" in line]
    for line in lines:
        assert line["train/loss"] == pytest.approx(
            0.25 * line["train/loss_l2"] + 0.75 * line["train/loss_l2_2"], rel=1e-4
        )
    assert lines[-1]["train/loss_l2_2"] < lines[0]["train/loss_l2_2"] and 0 < training.shipped.numbers["distance"] < 2

    def look(loop):
        assert all(
            isinstance(teacher, CachedTeacher) for teacher in (loop.data.teacher.first, *loop.data.teacher.others)
        )

    again = resolve(recipe, tmp_path / "again")
    interrupt(again, 7, monkeypatch, look, train)
    assert train(again).state.finished
    whole, resumed = last(tmp_path / "run"), last(tmp_path / "again")
    assert whole["projections.0.weight"].shape == (48, 32) and not any(
        name.startswith("encoder.projections") for name in whole
    )
    assert whole.keys() == resumed.keys() and all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_what_is_left_names_both(two, tmp_path, shared_cache):
    pairs = zip(make_texts(40)[::2], make_texts(40)[1::2], strict=True)
    suite = [{"sentence1": a, "sentence2": b, "score": n % 6, "split": "test"} for n, (a, b) in enumerate(pairs)]
    (tmp_path / "sts.jsonl").write_text("\n".join(json.dumps(row) for row in suite))
    (tmp_path / "suite.yaml").write_text("- {name: sts, type: sts, path: sts.jsonl}\n")
    job = resolve(
        two({"weight": 3.0, "name": "the-second"}, evaluation__suite=str(tmp_path / "suite.yaml"), train__max_steps=2),
        tmp_path / "run",
    )
    result = run(job.recipe, job.folder)
    record = json.loads(RunFolder(tmp_path / "run").record.read_text())
    (other,) = record["more_teachers"]
    assert (record["teacher"]["weight"], other["weight"], other["name"], other["width"]) == (1.0, 3.0, "the-second", 48)
    assert (
        other["fingerprint"] == job.teachers[1].manifest.fingerprint
        and other["parameters"] > 1000
        and not other["normalized"]
    )
    assert record["teacher_compatible"] and record["student"]["width"] == 32
    assert record["method"]["weights"] == {"l2": 0.25, "l2_2": 0.75}
    card = (tmp_path / "run" / "student" / "README.md").read_text()
    assert f"| model | 32 | {record['teacher']['parameters']:,} | 0.25 |" in card
    assert f"| the-second | 48 | {other['parameters']:,} | 0.75 |" in card
    assert "from `model` and further teachers" in card and "vectors are in the first teacher's space" in card
    page = result.page.read_text()
    assert "the-second" in page and other["fingerprint"] in page


def test_one_model_at_a_time_is_in_memory_and_a_filled_cache_needs_none(two, tmp_path, monkeypatch):
    loaded, in_memory, load = [], [], describe.open_teacher

    class Counted(ModelEmbedder):
        def __exit__(self, *error):
            in_memory.remove(self.name)
            super().__exit__(*error)

    def counted(section, *others):
        assert not in_memory
        loaded.append(section.model)
        teacher = load(section, *others)
        teacher.__class__ = Counted
        in_memory.append(teacher.name)
        return teacher

    def step(loop, *arguments):
        assert not in_memory, "no cached teacher is in memory while the student trains"
        return own_step(loop, *arguments)

    own_step = Trainer._step
    monkeypatch.setattr(Trainer, "_step", step)
    for module in (describe, jobs):
        monkeypatch.setattr(module, "open_teacher", counted)
    job = resolve(two(train__max_steps=2), tmp_path / "run")
    train(job)
    assert len(loaded) <= 4, "each once to know its width, and once for its cache"
    loaded.clear()
    assert not in_memory
    train(resolve(two(train__max_steps=2), tmp_path / "other"))
    assert loaded == []


def test_what_a_model_states_of_itself_is_read_again_when_it_changes(tiny_recipe, tiny_model, tmp_path, shared_cache):
    """Its similarity and its prompts, which change no weight; the description of the model is stored."""
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    path = folder / "config_sentence_transformers.json"
    first = resolve(tiny_recipe(teacher__model=str(folder)), tmp_path / "run").teacher.info
    assert first.similarity == "cosine" and not any(first.prompts.values())
    stated = {"similarity_fn_name": "dot", "prompts": {"query": "ask: ", "document": ""}}
    path.write_text(json.dumps(json.loads(path.read_text()) | stated))
    second = resolve(tiny_recipe(teacher__model=str(folder)), tmp_path / "run").teacher.info
    assert second.similarity == "dot" and second.prompts["query"] == "ask: "
    asked = tiny_recipe(teacher__model=str(folder), teacher__similarity="euclidean")
    assert resolve(asked, tmp_path / "run").teacher.info.similarity == "euclidean"


def test_the_second_teacher_changes_the_training_s_fingerprint(two, tiny_recipe, tmp_path, shared_cache):
    def mark(recipe):
        return resolve(recipe, tmp_path / "run").fingerprint

    plain = mark(two())
    assert mark(two({"batch_tokens": 512, "name": "called otherwise"})) == plain
    other = [
        {"weight": 2.0},
        {"max_length": 32},
        {"live": True},
        {"truncate_dim": 16},
        {"prompts": {"document": "text: "}},
    ]
    marks = {mark(two(changes)) for changes in other} | {plain, mark(two(teacher__weight=2.0)), mark(tiny_recipe())}
    assert len(marks) == len(other) + 3
    assert mark(tiny_recipe(teacher__weight=2.0)) == mark(tiny_recipe()), (
        "one teacher's weight is compared with nothing"
    )
    run(two(train__max_steps=2), tmp_path / "run")
    with pytest.raises(DistilvecError, match=r"another recipe.*more_teachers"):
        run(two({"weight": 2.0}, train__max_steps=2), tmp_path / "run")


def test_a_live_second_beside_a_cached_first(two, tmp_path, capsys):
    train(resolve(two(train__max_steps=6), tmp_path / "cached"))
    job = resolve(two({"live": True}, train__max_steps=6), tmp_path / "live")
    assert run(job.recipe, job.folder).record.more_teachers[0].live is True
    assert "teacher second: runs in every step (more_teachers.0.live is set)" in "".join(capsys.readouterr())
    teacher = answering(job)
    assert (
        isinstance(teacher, SeveralTeachers)
        and isinstance(teacher.first, CachedTeacher)
        and isinstance(teacher.others[0], LiveTeacher)
    )
    np.testing.assert_allclose(losses(tmp_path / "live"), losses(tmp_path / "cached"), rtol=1e-2)
    assert len(filled(two({"live": True}), tmp_path / "fill")) == 200 and "second: runs in every step" in "".join(
        capsys.readouterr()
    )
    rows = [value for name, value in make_plan(job).lines if name == "teacher vectors to compute"]
    assert rows == ["0 of 200: about 0 s", "none: the teacher runs in every step"]


def test_sharpness_with_several_teachers_and_with_live_ones(two, tiny_recipe, tmp_path, monkeypatch, shared_cache):
    short = {"train__max_steps": 2}
    recipes_of = {
        "cached": two(**short),
        "mixed": two({"live": True}, **short),
        "live": tiny_recipe(teacher__live=True, **short),
    }
    for name, recipe in recipes_of.items():
        run(recipe, tmp_path / name)
    found = {}
    for name in recipes_of:
        with monkeypatch.context() as patched:
            if name == "cached":
                patched.setattr("distilvec.pipeline.job.open_teacher", lambda *a, **k: pytest.fail("loaded a teacher"))
            (measured,) = measure_runs([tmp_path / name], None, Settings(texts=32, tolerance=0.05), trace=False)
        (found[name],) = measured["points"]
        assert found[name]["lambda_max"] > 0
    assert found["mixed"]["loss"] == pytest.approx(found["cached"]["loss"], rel=1e-2)


def test_a_table_of_vectors_as_second(tiny_recipe, table, tmp_path, shared_cache):
    recipe = tiny_recipe(
        more_teachers=[{"vectors": str(table), "name": "an-api"}],
        teacher__prompts={"document": "text: "},
        train__max_steps=4,
    )
    job = resolve(recipe, tmp_path / "run")
    result = run(job.recipe, job.folder)
    assert job.teachers[1].manifest.width == 20 and result.record.more_teachers[0].parameters is None
    vectors = np.stack(pq.read_table(table)["teacher_embedding_final"].to_numpy())
    texts = job.corpus.texts(range(200))
    answer = answering(job).others[0].signals(batch_of(range(200)))
    order = [make_texts(200).index(text) for text in texts]
    np.testing.assert_allclose(answer.embedding.numpy(), vectors[order], atol=1e-3)
    lines = [line for line in read_metrics(RunFolder(tmp_path / "run").metrics) if "train/loss_l2_2" in line]
    assert lines[-1]["train/loss_l2_2"] < 2  # both of unit length
    pq.write_table(pq.read_table(table).slice(0, 150), table)
    with refused("more_teachers.0.vectors", "50 of the corpus's 200"):
        run(recipe, tmp_path / "other")


@pytest.mark.parametrize("live", [False, True])
def test_every_teacher_reads_its_own_prompts(two, second, tmp_path, live):
    """Rows of one text in two roles, which the first teacher's prompts tell apart, have one vector from the second one."""  # noqa: E501
    texts = make_texts(60)
    for name in ("queries", "documents"):
        (tmp_path / f"{name}.txt").write_text("\n".join(texts[:40] if name == "queries" else texts[20:]))
    sources = [{"path": str(tmp_path / "queries.txt"), "role": "query"}, {"path": str(tmp_path / "documents.txt")}]
    prompts = {"query": "search for: ", "document": "read: "}
    for other in ({}, {"prompts": {"query": "q ", "document": "d "}}):
        recipe = two({**other, "live": live}, teacher__prompts=prompts, corpus__sources=sources, cache__shard_rows=16)
        job = resolve(recipe, tmp_path / "run")
        answer = answering(job).signals(batch_of(range(80)))
        roles = ["query"] * 40 + ["document"] * 40
        assert [job.corpus.roles[source] for source in job.corpus.sources] == roles
        assert job.corpus.prompted([0, 79]) == ["search for: " + texts[0], "read: " + texts[59]], (
            "as the student reads them"
        )
        sections = [
            TeacherSection(model=recipe.teacher.model, prompts=prompts),
            TeacherSection(model=str(second), **other),
        ]
        for section, found in zip(sections, (answer, *answer.others), strict=True):
            teacher = load_teacher(section, "cpu")
            expected = [
                teacher.embed(job.corpus.texts(half), role)
                for half, role in ((range(40), "query"), (range(40, 80), "document"))
            ]
            np.testing.assert_allclose(found.embedding.numpy(), np.concatenate(expected), atol=2e-3, rtol=1e-3)
        if not live:
            cache = open_cache(job, job.teachers[1])
            assert len(cache) == (80 if other else 60) and [shard.rows for shard in cache._shards][:3] == [16, 16, 16]
            assert len(list((job.store.root / "keys").glob("[!.]*"))) == (2 if other else 1)


def test_the_first_screen_counts_the_vectors_of_all_teachers(two, tmp_path):
    job = resolve(two(corpus__validation_rows=8, cache__dtype="float32"), tmp_path / "run")
    bytes_of_both = 200 * ((16 + 4 * 32) + (16 + 4 * 48))  # keys and vectors
    line = dict(overview(job))["disk"]
    assert line == f"{bytes_of_both / 1e6:.1f} MB for the teachers' vectors, kept for later runs"


@pytest.mark.parametrize(
    ("prompts", "roles", "named"),
    [
        ({"query": "q: ", "document": "d: "}, ["document"], "--queries"),
        ({"query": "q: "}, ["query"], "role: document"),
        ({"query": "q: ", "document": "d: "}, ["document", "query"], None),
        ({"query": "same: ", "document": "same: "}, ["document"], None),
        ({}, ["document"], None),
    ],
)
def test_first_screen_and_plan_name_a_role_that_no_text_has(tiny_recipe, tmp_path, prompts, roles, named):
    sources = []
    for role in roles:
        path = tmp_path / f"{role}.txt"
        path.write_text("\n".join(f"{role} {number}" for number in range(200)))
        sources.append({"path": str(path), "role": role})
    job = resolve(tiny_recipe(teacher__prompts=prompts, corpus__sources=sources), tmp_path / "run")
    line = dict(overview(job)).get("roles")
    assert line is None if named is None else named in line
    assert dict(make_plan(job).lines).get("  roles") == line


@pytest.mark.parametrize(
    ("method", "named"),
    [
        ({"name": "emo"}, True),
        ({"name": "mined"}, True),
        ({"name": "emo", "options": {"simcse": True}}, False),
        ({"name": "redact"}, False),
    ],
)
def test_first_screen_and_plan_say_that_a_method_has_no_labels(tiny_recipe, tmp_path, method, named):
    job = resolve(tiny_recipe(method=method), tmp_path / "run")
    line = dict(overview(job)).get("method")
    assert line == (f"{method['name']} without its term 'task': the texts have no labels" if named else None)
    assert dict(make_plan(job).lines).get("  method") == line


def test_caches_are_filled_and_planned_one_by_one(two, tmp_path, monkeypatch, capsys):
    (tmp_path / "recipe.yaml").write_text(recipes.dump(two({"weight": 0.5})))
    rows = make_plan(resolve(two({"weight": 0.5}), tmp_path / "run")).lines
    names = [name for name, _ in rows]
    assert names.count("teacher vectors to compute") == names.count("disk for them") == 2
    assert (
        dict(rows)["teacher"] == "model, 32 dimensions, weight 1"
        and dict(rows)["further teacher"] == "second, 48 dimensions, weight 0.5"
    )
    monkeypatch.setattr("sys.argv", ["distilvec", "cache", str(tmp_path / "recipe.yaml")])
    with pytest.raises(SystemExit) as stopped:
        cli_main()
    assert stopped.value.code == 0
    folders = capsys.readouterr().out.split()
    assert len(folders) == 2 and [
        TeacherCache.open(folder).manifest.width for folder in map(type(tmp_path), folders)
    ] == [
        32,
        48,
    ]


def test_relative_paths_of_further_teachers(two, table, tmp_path):
    tree = two().model_dump(mode="json")
    tree["more_teachers"] = [{"vectors": "vectors.parquet"}, {"model": "./near"}]
    (tmp_path / "recipe.yaml").write_text(json.dumps(tree))
    vectors, model = recipes.load(tmp_path / "recipe.yaml").more_teachers
    assert vectors.vectors == str(table) and model.model == str(tmp_path / "near")


METHOD = """
from distilvec.core.outputs import TokenOutputSpec, OutputSpec
from distilvec.methods.base.terms import task_term
from distilvec.core.objective import Objective


class Odd(Objective):
    max_teachers = None

    def __init__(self, context, weights):
        super().__init__(context, weights, {{"x": 1.0, **({{"task": 1.0}} if context.task else {{}})}})
        self.teacher_outputs = {required}
        self.add_task_head()

    def forward(self, batch, student, teacher):
        for answer, width in zip((teacher, *teacher.others), {widths}, strict=True):
            {check}
        return self.weighted_terms(task=lambda: task_term(batch, student), x=lambda: student.embedding.square().sum(-1))
"""


def odd(tmp_path, required, check="pass", widths=(32, 32)):
    path = tmp_path / "odd.py"
    path.write_text(METHOD.format(required=required, check=check, widths=widths))
    return str(path)


def test_hidden_states_of_both_come_from_their_caches(two, tmp_path):
    check = "assert answer.hidden_layers[-2].shape == (*answer.mask.shape, width) and answer.hidden_layers.keys() == {-1, -2}"  # noqa: E501
    method = odd(tmp_path, "OutputSpec(embedding=True, tokens=TokenOutputSpec(None, hidden=(-1, -2)))", check)
    job = resolve(two(method__name=method, train__max_steps=2), tmp_path / "run")
    train(job)
    assert [list(open_cache(job, one).signals) for one in job.teachers] == [["embedding", "hidden", "hidden-2"]] * 2
    live = resolve(two({"live": True}, method__name=method, teacher__live=True), tmp_path / "live")
    training_data(live)
    rows = batch_of([3, 150, 7])
    found, exact = (answering(each).signals(rows) for each in (job, live))
    assert found.mask.shape != found.others[0].mask.shape, "each in its own tokens"
    for ours, theirs in ((found, exact), (found.others[0], exact.others[0])):
        assert torch.equal(ours.mask, theirs.mask)
        states, back = theirs.hidden_layers[-2], ours.hidden_layers[-2]
        assert ((back - states).abs() <= states.abs().amax(-1, keepdim=True) / 254 + 1e-4)[ours.mask].all()


@pytest.mark.parametrize("kind", ["classification", "pair"])
def test_labelled_tasks(two, second, tmp_path, kind, shared_cache):
    check = "assert answer.vector.shape == (len(batch), width)"
    tree = two(method__name=odd(tmp_path, "OutputSpec(vector=True)", check), train__max_steps=4).model_dump(mode="json")
    del tree["corpus"]
    tree["task"] = {"type": kind, "path": str(write_task(tmp_path / "task.jsonl", kind)), "encode": "joint"}
    tree["teacher"]["prompts"] = {"document": "text: "}
    job = resolve(recipes.validate(tree), tmp_path / "run")
    train(job)
    assert job.corpus.paired == (kind == "pair")
    expected = load_teacher(TeacherSection(model=str(second)), "cpu").model
    texts = job.corpus.texts([0, 5])
    if kind == "pair":
        assert all(isinstance(text, tuple) for text in texts)
    features = expected[1](expected[0](dict(expected.tokenizer(texts, padding=True, return_tensors="pt"))))
    vectors = features["sentence_embedding"]
    np.testing.assert_allclose(
        answering(job).others[0].signals(batch_of([0, 5])).vector.numpy(), vectors.detach().numpy(), atol=5e-3
    )


def test_what_does_not_hold_together_is_refused(two, tiny_recipe, tiny_model, second, table, tmp_path, shared_cache):
    def problem(recipe):
        with pytest.raises(DistilvecError) as raised:
            train(resolve(recipe, tmp_path / "run"))
        return str(raised.value)

    same = problem(
        tiny_recipe(
            more_teachers=[{"model": str(second)}, {"model": str(tiny_model), "name": "other", "dtype": "float32"}]
        )
    )
    assert "[more_teachers.1] other gives the same vectors as model (teacher)" in same
    assert "[more_teachers] Rkd" in problem(two(method__name="rkd"))
    inside = problem(
        tiny_recipe(more_teachers=[{"vectors": str(table)}], method__name=odd(tmp_path, "OutputSpec(vector=True)"))
    )
    assert "[more_teachers.0.vectors] vectors is a table of vectors" in inside and "Set more_teachers.0.model" in inside
    aligned = odd(tmp_path, "OutputSpec(tokens=TokenOutputSpec('offsets', gram_layers=(4,)))")
    assert "aligns the student's tokens with the tokens of a single teacher; found 2" in problem(
        two(method__name=aligned)
    )
    assert "[more_teachers.0.max_length] found 4000" in problem(two({"max_length": 4000}))
    assert "[more_teachers.0.model] cannot load" in problem(two({"model": str(tmp_path / "absent")}))
    filled(tiny_recipe(cache__path=str(tmp_path / "one")), tmp_path / "one-run")
    assert "is the cache of one teacher; the recipe has 2" in problem(two(cache__path=str(tmp_path / "one")))
    with pytest.raises(DistilvecError, match=r"more_teachers.0.weight"):
        two({"weight": 0.0})
