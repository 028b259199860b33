"""`student.built_in_prompt`: the teacher's vectors with a prompt, for texts without one."""

from __future__ import annotations

import json
import shutil

import architectures
import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from labelled import write_task
from refusals import refused
from samples import make_texts
from sentence_transformers import SentenceTransformer
from servers import serving

import distilvec
from distilvec.models.load import load
from distilvec.pipeline.caches import cached_vectors
from distilvec.pipeline.overview import overview
from distilvec.pipeline.resolve import reopen, resolve
from distilvec.pipeline.run import run
from distilvec.report.next_step import next_commands
from distilvec.report.sections.overlap import judgement_note
from distilvec.verbs.plan.plan import make_plan
from distilvec.verbs.serve.model import ServedModel

pytestmark = pytest.mark.usefixtures("shared_cache", "no_pages")
PROMPTS = {"query": "river: ", "passage": "stone: ", "STS": "cloud: "}
TEXTS = make_texts(300)


@pytest.fixture(scope="module")
def prompted(tiny_model, tmp_path_factory):
    """The tiny model with prompts; "passage" is its name for that of documents."""
    folder = shutil.copytree(tiny_model, tmp_path_factory.mktemp("prompted") / "model")
    path = folder / "config_sentence_transformers.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"prompts": PROMPTS}))
    return folder


@pytest.fixture
def built_in(tiny_recipe, prompted):
    """A recipe with a built-in prompt, with changes."""

    def make(prompt="query", **changes):
        return tiny_recipe(**{"teacher__model": str(prompted), "student__built_in_prompt": prompt, **changes})

    return make


def test_a_bare_text_gets_the_vector_of_the_prompt(built_in, prompted, tmp_path, loopback):
    result = run(built_in(), tmp_path / "run")
    job = resolve(built_in(), tmp_path / "run")
    rows = np.arange(len(job.corpus))
    expected = load(prompted, device="cpu").encode([f"river: {text}" for text in job.corpus.stored(rows)])
    np.testing.assert_allclose(cached_vectors(job, rows), expected, atol=2e-3)

    student = SentenceTransformer(str(tmp_path / "run" / "student"), device="cpu")
    assert set(student.prompts.values()) == {""} and student.default_prompt_name is None
    card = (tmp_path / "run" / "student" / "README.md").read_text()
    assert "The prompt `'river: '`" in card.replace('"', "'") and "give texts as they are" in card
    with serving(ServedModel(str(tmp_path / "run" / "student"))) as address:
        asked = [{"input": TEXTS[0], "input_type": role} for role in ("query", "document")]
        answers = [httpx.post(f"{address}/v1/embeddings", json=body).json()["data"][0]["embedding"] for body in asked]
    assert answers[0] == answers[1] == pytest.approx(student.encode(TEXTS[0]).tolist(), abs=1e-5)

    # The words are recorded: the model that names them may be gone when the run is opened again
    assert result.record.student.settings["built_in_prompt"] == "river: "
    assert reopen(result.recipe, tmp_path / "run", result.record).student_prompts == {"query": "", "document": ""}


def test_one_in_eight_training_texts_keeps_the_prompt(built_in, tmp_path):
    job = resolve(built_in(), tmp_path / "run")
    corpus = job.corpus
    given = corpus.prompted(corpus.train_rows)
    with_prompt = sum(text.startswith("river: ") for text in given)
    bare = corpus.stored(corpus.train_rows)
    assert [text.removeprefix("river: ") for text in given] == bare
    assert 0.06 * len(given) < with_prompt < 0.2 * len(given)
    assert corpus.prompted(corpus.holdout_rows) == corpus.stored(corpus.holdout_rows), "it is judged on bare texts"
    assert job.teacher.corpus.prompted([0]) == [f"river: {corpus.stored([0])[0]}"]
    other = resolve(built_in("STS"), tmp_path / "other")
    assert other.fingerprint != job.fingerprint != resolve(built_in(None), tmp_path / "plain").fingerprint


def test_the_plan_says_which_prompt_wins(built_in, tmp_path):
    job = resolve(built_in(), tmp_path / "run")
    line = dict(overview(job))["prompt"]
    assert "'river: ' is built in" in line and "document 'stone: ' is not learned" in line
    assert dict(make_plan(job).lines)["  prompt"] == line and "roles" not in dict(overview(job))
    sts = dict(overview(resolve(built_in("STS"), tmp_path / "sts")))["prompt"]
    assert "'cloud: '" in sts and "query 'river: ' and document 'stone: '" in sts


@pytest.mark.parametrize(
    ("prompt", "words"), [("document", "stone: "), ("passage", "stone: "), ("STS", "cloud: "), ("find this: ",) * 2]
)
def test_a_prompt_has_a_name_or_is_words(prompt, words, built_in, tmp_path):
    assert resolve(built_in(prompt), tmp_path / "run").teacher.info.prompts == {"query": words, "document": words}


def test_what_has_no_single_vector_is_refused(built_in, tiny_recipe, tiny_model, tmp_path):
    with refused("student.built_in_prompt", "querry"):
        resolve(built_in("querry"), tmp_path / "run")
    with refused("student.built_in_prompt", "none"):
        resolve(tiny_recipe(student__built_in_prompt="query"), tmp_path / "run")
    with refused("student.built_in_prompt", "several teachers"):
        resolve(built_in(more_teachers=[{"model": str(tiny_model)}]), tmp_path / "run")
    write_task(tmp_path / "task.jsonl", "classification")
    task = {"type": "classification", "path": str(tmp_path / "task.jsonl")}
    with refused("student.built_in_prompt", "labelled"):
        resolve(built_in(corpus=None, task=task, method={"name": "task"}), tmp_path / "run")
    with refused("student.built_in_prompt", "compares tokens"):
        resolve(built_in(method={"name": "emo"}), tmp_path / "run")


@pytest.fixture
def index(tmp_path, prompted):
    """Documents that the prompted model has embedded, and queries."""
    vectors = load(prompted, device="cpu").encode([f"stone: {text}" for text in TEXTS])
    pq.write_table(pa.table({"text": TEXTS, "embedding": list(vectors)}), tmp_path / "dump.parquet")
    (tmp_path / "queries.txt").write_text("\n".join(make_texts(120, seed=7)))
    return tmp_path / "dump.parquet"


def test_of_an_index_it_is_the_query_side(index, prompted, tmp_path):
    options = {"built_in_prompt": "query", "student": str(prompted), "out": tmp_path / "run", "epochs": 1}
    options["overrides"] = {"train.device": "cpu", "train.precision": "fp32", "teacher.name": "old"}
    queries = tmp_path / "queries.txt"
    with refused("built_in_prompt", "--queries"):
        distilvec.distill(index, made_by=[str(prompted)], **options)
    with refused("made_by", "--made-by"):
        distilvec.distill(index, queries=queries, **options)
    result = distilvec.distill(index, queries=queries, made_by=[str(prompted)], **options)
    job = resolve(result.recipe, result.folder)
    assert set(job.corpus.roles) == {"query"} and len(job.corpus) == 120
    rows = np.arange(len(job.corpus))
    expected = load(prompted, device="cpu").encode([f"river: {text}" for text in job.corpus.stored(rows)])
    np.testing.assert_allclose(cached_vectors(job, rows), expected, atol=2e-3)

    judgement = result.record.overlap
    assert judgement.origin == "index" and judgement.candidates == len(TEXTS), "the whole index is searched"
    held_out = job.corpus.stored(job.corpus.holdout_rows)
    stored = load(prompted, device="cpu").encode([f"stone: {text}" for text in TEXTS])
    student = SentenceTransformer(str(result.student_folder), device="cpu")
    assert judgement.queries == len(held_out)
    shares = []
    for text in held_out:
        wanted = np.argsort(-stored @ load(prompted, device="cpu").encode(f"river: {text}"))[:10]
        found = np.argsort(-stored @ student.encode(text))[:10]
        shares.append(len(set(wanted) & set(found)) / 10)
    assert judgement.student.among.mean == pytest.approx(np.mean(shares), abs=0.02)
    card = (result.student_folder / "README.md").read_text()
    assert "This model embeds queries alone" in card
    assert "documents keep their stored vectors" in dict(overview(job))["prompt"]
    assert judgement.start is not None and judgement.gain is not None, "it was trained, and is advised so"
    assert "Train one for this index" not in card and "held-out queries search all" in judgement_note(judgement)
    commands = next_commands(result.report, result.student_folder)
    assert not any(line.startswith("distilvec check") for line in commands), "it has no documents"


def test_an_array_has_no_prompt(tmp_path):
    with refused("built_in_prompt"):
        distilvec.distill(np.ones((4, 8), dtype=np.float32), TEXTS[:4], built_in_prompt="query", out=tmp_path / "run")


def test_a_students_own_prompts_give_way(built_in, tmp_path, prompted):
    """A student of another model with prompts has none in its folder either."""
    stranger = architectures.sentence_transformer(tmp_path / "stranger", architectures.bert(tmp_path / "b", seed=5))
    path = stranger / "config_sentence_transformers.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"prompts": {"query": "ask: ", "document": "tell: "}}))
    changes = {"student__model": str(stranger), "student__layers": None, "train__epochs": 0}
    result = run(built_in(**changes), tmp_path / "run")
    assert not any(result.record.student.prompts.values())
