"""mteb's tasks on local folders: mteb's figures equal ours, both models of a pair are used, results are kept, nothing
goes online.
"""

import importlib.util
import os
import socket
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import SERVER
from samples import make_texts

from distilvec.core.errors import DistilvecError
from distilvec.evaluation.evaluator import EmbeddingCache, score_tasks
from distilvec.evaluation.task_files import load_pairs, load_retrieval, load_sts

if importlib.util.find_spec("mteb") is None:  # importing it here would make a folder in the user's home
    pytest.skip("mteb is not installed", allow_module_level=True)

from distilvec.evaluation import mteb as adapter
from distilvec.evaluation.mteb import MtebModel, find_tasks, import_mteb, mteb_scores

TEXTS = make_texts(120)
TASKS = ["STSBenchmark", "SprintDuplicateQuestions", "Banking77Classification", "NFCorpus"]


@pytest.fixture
def data(write_jsonl, tmp_path):
    """A folder with small data for one task of each type."""
    generator = np.random.default_rng(0)
    pairs = [{"sentence1": TEXTS[i], "sentence2": TEXTS[i + 50]} for i in range(50)]
    write_jsonl("data/STSBenchmark/test.jsonl", [pair | {"score": float(generator.uniform(0, 5))} for pair in pairs])
    write_jsonl(
        "data/SprintDuplicateQuestions/test.jsonl", [pair | {"label": int(generator.integers(2))} for pair in pairs]
    )
    rows = [{"text": text, "label": f"topic {i % 3}"} for i, text in enumerate(TEXTS)]
    write_jsonl("data/Banking77Classification/train.jsonl", rows[:80])
    write_jsonl("data/Banking77Classification/test.jsonl", rows[80:])
    write_jsonl(
        "data/NFCorpus/corpus.jsonl", [{"_id": f"d{i}", "title": f"title {i % 7}", "text": TEXTS[i]} for i in range(60)]
    )
    write_jsonl("data/NFCorpus/queries.jsonl", [{"_id": f"q{i}", "text": TEXTS[60 + i]} for i in range(20)])
    judged = [f"q{i}\td{int(d)}\t{1 + i % 2}" for i in range(20) for d in generator.choice(60, 4, replace=False)]
    (tmp_path / "data/NFCorpus/qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + "\n".join(judged) + "\n")
    return tmp_path / "data"


@pytest.fixture(scope="session")
def tiny_teacher(tiny_model):
    from distilvec.config.schema import TeacherSection
    from distilvec.teachers.open import load_teacher

    return load_teacher(TeacherSection(model=str(tiny_model), prompts={"query": "river stone ", "document": ""}), "cpu")


def scored(*arguments, **options):
    problems = []
    found = mteb_scores(*arguments, **options, problems=problems)
    assert not problems
    return found


def figures(scores):
    return {column: {score.task: score.metrics for score in found} for column, found in scores.items()}


def test_figures_equal_ours_for_one_model_and_for_a_pair(data, tiny_teacher, embedder):
    student = embedder("student", width=32)
    models = {
        "teacher": (tiny_teacher, tiny_teacher),
        "student": (student, student),
        "asymmetric": (student, tiny_teacher),
        "mixed": (student, tiny_teacher),
    }
    found = figures(scored(models, ["STSBenchmark", "SprintDuplicateQuestions", "NFCorpus"], data=data))
    tasks = [
        load_sts("STSBenchmark", data / "STSBenchmark"),
        load_pairs("SprintDuplicateQuestions", data / "SprintDuplicateQuestions"),
        load_retrieval("NFCorpus", data / "NFCorpus"),
    ]
    for column, (query, document) in models.items():
        sts, pairs, retrieval = score_tasks(tasks, query, document, mixed=column == "mixed")
        assert found[column]["STSBenchmark"]["cosine_spearman"] == pytest.approx(sts.metrics["spearman"], abs=1e-6)
        assert found[column]["STSBenchmark"]["cosine_pearson"] == pytest.approx(sts.metrics["pearson"], abs=1e-3)
        assert found[column]["SprintDuplicateQuestions"]["cosine_ap"] == pytest.approx(
            pairs.metrics["average_precision"], abs=1e-6
        )
        assert found[column]["NFCorpus"]["ndcg_at_10"] == pytest.approx(retrieval.metrics["ndcg@10"], abs=1e-3)
    assert len({column["STSBenchmark"]["cosine_spearman"] for column in found.values()}) == 3
    assert found["asymmetric"]["STSBenchmark"] == found["student"]["STSBenchmark"]


def test_scores_of_the_four_types(data, embedder):
    model = embedder()
    scores = scored({"student": (model, model)}, TASKS, data=data)["student"]
    assert [(score.task, score.type, score.metric, score.rows) for score in scores] == [
        ("STSBenchmark", "sts", "cosine_spearman", 50),
        ("SprintDuplicateQuestions", "pairclassification", "max_ap", 50),
        ("Banking77Classification", "classification", "accuracy", 40),
        ("NFCorpus", "retrieval", "ndcg_at_10", 20),
    ]
    for score in scores:
        assert score.value == score.metrics[score.metric] == next(iter(score.metrics.values()))
        assert all(isinstance(value, float) and np.isfinite(value) for value in score.metrics.values())
        assert abs(score.value) <= 100 and score.warnings == () and score.seconds >= 0
    assert "f1" in scores[2].metrics and "cosine_ap" in scores[1].metrics


def test_sides_and_roles_of_a_pair(data, embedder):
    for task, sides in {
        "STSBenchmark": ({("document", t) for t in TEXTS[:50]}, {("document", t) for t in TEXTS[50:100]}),
        "Banking77Classification": ({("document", t) for t in TEXTS[80:]}, {("document", t) for t in TEXTS[:80]}),
        "NFCorpus": (
            {("query", t) for t in TEXTS[60:80]},
            {("document", f"title {i % 7} {TEXTS[i]}") for i in range(60)},
        ),
    }.items():
        query, document = embedder("student"), embedder("teacher")
        scored({"mixed": (query, document)}, [task], data=data)
        assert set(query.asked) == sides[0]
        assert set(document.asked) <= sides[1] and document.asked
        assert task == "Banking77Classification" or set(document.asked) == sides[1]


def test_only_retrieval_and_reranking_see_the_teacher(data, embedder):
    """Clustering, summarisation and every other type repeat the student's score (REDACT, table 6)."""
    student, teacher = embedder("student", seed="s"), embedder("teacher")
    models = {"student": (student, student), "asymmetric": (student, teacher)}
    found = scored(models, TASKS, data=data)
    assert found["student"][:3] == found["asymmetric"][:3] and found["student"][3] != found["asymmetric"][3]
    assert {text for _, text in teacher.asked} == {f"title {i % 7} {TEXTS[i]}" for i in range(60)}
    kinds = {task.metadata.type for task in find_tasks(None, "MTEB(eng, v2)")}
    pair = (student, teacher)
    assert {kind for kind in kinds if adapter.mteb_embedders(kind, pair) == pair} == {"Retrieval", "Reranking"}
    both = {kind for kind in kinds if adapter.mteb_embedders(kind, pair, mixed=True) == pair}
    assert kinds - both == {"Clustering", "Summarization"}, "which have no two sides to mix"


def test_columns_share_vectors(data, embedder):
    student, teacher = embedder("student"), embedder("teacher")
    models = {"teacher": (teacher, teacher), "student": (student, student), "asymmetric": (student, teacher)}
    scored(models, ["NFCorpus"], data=data)
    assert len(student.asked) == len(teacher.asked) == 80


def test_results_are_kept_by_model_weights_and_data(data, embedder, write_jsonl, tmp_path):
    def run(seed="", cache=tmp_path / "kept"):
        model = embedder(seed=seed)
        scores = scored({"student": (model, model)}, TASKS[:2], data=data, cache=cache)["student"]
        return [score.value for score in scores], {text for _, text in model.asked} & set(TEXTS)

    first, asked = run()
    again, asked_again = run()
    assert len(asked) == 100 and asked_again == set() and again == pytest.approx(first, abs=1e-4)
    other, asked_other = run(seed="other weights")
    assert len(asked_other) == 100 and other != pytest.approx(first, abs=1e-2)
    rows = [{"sentence1": TEXTS[i], "sentence2": TEXTS[i + 1], "score": i} for i in range(20)]
    write_jsonl("data/STSBenchmark/test.jsonl", rows)
    changed, asked_changed = run()
    assert asked_changed == set(TEXTS[:21]) and changed[0] != pytest.approx(first[0], abs=1e-2)
    assert changed[1] == pytest.approx(first[1], abs=1e-4)


def test_an_interrupted_benchmark_resumes(data, embedder, tmp_path):
    class Interrupted(type(embedder())):
        def embed(self, texts, role="document"):
            if TEXTS[60] in texts and role == "query":
                raise KeyboardInterrupt
            return super().embed(texts, role)

    model, cache = Interrupted(), tmp_path / "kept"
    with pytest.raises(KeyboardInterrupt):
        scored({"student": (model, model)}, ["STSBenchmark", "NFCorpus"], data=data, cache=cache)
    (kept,) = cache.rglob("STSBenchmark.json")
    model = embedder()
    scores = scored({"student": (model, model)}, ["STSBenchmark", "NFCorpus"], data=data, cache=cache)["student"]
    assert [score.task for score in scores] == ["STSBenchmark", "NFCorpus"]
    assert ("document", TEXTS[99]) not in model.asked and ("query", TEXTS[60]) in model.asked
    kept.write_text(kept.read_text()[:200])  # killed while writing
    model = embedder()
    again = scored({"student": (model, model)}, ["STSBenchmark"], data=data, cache=cache)["student"]
    assert again[0].value == pytest.approx(scores[0].value, abs=1e-4) and ("document", TEXTS[99]) in model.asked


def test_a_failing_task_is_reported_and_the_others_run(data, embedder, write_jsonl):
    write_jsonl("data/STS12/test.jsonl", [{"sentence1": "a", "sentence2": "b", "score": 1.0}] * 5)
    write_jsonl("data/TwentyNewsgroupsClustering.v2/test.jsonl", [{"text": "a", "label": "b"}])
    write_jsonl("data/STS17/test.jsonl", [{"sentence1": "a", "sentence2": "b", "score": 1.0}])
    broken = embedder("broken", known={TEXTS[60]: np.full(16, np.nan)})
    sound, problems = embedder("sound"), []
    names = ["STS12", "NFCorpus", "STS13", "TwentyNewsgroupsClustering.v2", "STS17", "STSBenchmark"]
    scores = mteb_scores({"broken": (broken, broken), "sound": (sound, sound)}, names, data=data, problems=problems)
    assert [score.task for score in scores["sound"]] == ["NFCorpus", "STSBenchmark"]
    assert scores["broken"] == []
    found = {(problem.task, problem.column): problem.message for problem in problems}
    assert set(found) == {
        *[(name, None) for name in ("STS12", "STS13", "TwentyNewsgroupsClustering.v2", "STS17")],
        ("NFCorpus", "broken"),
        ("STSBenchmark", "broken"),
    }
    assert "all 5 scores are 1" in found["STS12", None]
    assert "Go online, or put the task's files into" in found["STS13", None]
    assert str(data / "STS13") in found["STS13", None]
    assert (
        "has type Clustering; local data serve tasks of type STS, PairClassification"
        in found["TwentyNewsgroupsClustering.v2", None]
    )
    assert "Make a folder for each" in found["STS17", None]
    assert "NaN or infinite numbers for 1 of" in found["NFCorpus", "broken"]


def test_subsets_have_folders(data, embedder, write_jsonl):
    rows = [{"sentence1": TEXTS[i], "sentence2": TEXTS[i + 1], "score": i % 4} for i in range(20)]
    write_jsonl("data/STS17/en-en/test.jsonl", rows[:10])
    write_jsonl("data/STS17/es-es/test.jsonl", rows)
    model = embedder()
    (score,) = scored({"student": (model, model)}, ["STS17"], data=data)["student"]
    parts = [score_tasks([load_sts("x", data / "STS17" / name)], model)[0].value for name in ("en-en", "es-es")]
    assert score.value == pytest.approx(np.mean(parts), abs=1e-6) and score.rows == 30
    assert score.warnings[0].endswith("subsets have no local data; left out")


def test_equal_similarities_count_as_zero(data, embedder):
    model = embedder(known={text: np.ones(16) for text in TEXTS})
    (score,) = scored({"student": (model, model)}, ["STSBenchmark"], data=data)["student"]
    assert score.value == 0 and "undefined" in score.warnings[0]


def test_equal_similarities_of_one_subset_count_as_zero_there_alone(data, embedder, write_jsonl):
    for folder, first in (("en-en", 0), ("es-es", 20)):
        rows = [
            {"sentence1": TEXTS[row], "sentence2": TEXTS[row + 1], "score": row % 4} for row in range(first, first + 10)
        ]
        write_jsonl(f"data/STS17/{folder}/test.jsonl", rows)
    model = embedder(known={text: np.ones(16) for text in TEXTS[:20]})
    (score,) = scored({"student": (model, model)}, ["STS17"], data=data)["student"]
    other = score_tasks([load_sts("x", data / "STS17" / "es-es")], model)[0].value
    assert other != 0 and score.value == pytest.approx(other / 2, abs=1e-6)
    assert "undefined in 1 of 2 splits and subsets" in score.warnings[-1]


@pytest.mark.slow
def test_benchmark_tasks_are_copies(data, embedder, monkeypatch):
    tasks = find_tasks(None, "MTEB(eng, v2)")
    assert len(tasks) == 41 and {"STSBenchmark", "NFCorpus"} & {task.metadata.name for task in tasks}
    model, problems = embedder(), []
    chosen = [task for task in tasks if task.metadata.name in TASKS]
    monkeypatch.setattr(adapter, "find_tasks", lambda *_: chosen)
    scores = mteb_scores({"student": (model, model)}, benchmark="MTEB(eng, v2)", data=data, problems=problems)[
        "student"
    ]
    assert {score.task for score in scores} == {"STSBenchmark", "SprintDuplicateQuestions", "Banking77Classification"}
    assert not problems and not any(task.data_loaded for task in find_tasks(None, "MTEB(eng, v2)"))


def test_beir_without_msmarco():
    """REDACT's table 1 has 14 data sets."""
    names = [task.metadata.name for task in find_tasks(None, "BEIR-14")]
    assert len(names) == 14 and "MSMARCO" not in names and {"ArguAna", "CQADupstackRetrieval", "Touche2020"} <= {*names}


def test_tr_mteb_has_the_authors_tasks(data, embedder, write_jsonl):
    """26 tasks of six types; data as stored comes from the hub, what their code changes from local folders."""
    tasks = find_tasks(None, "TR-MTEB")
    kinds = [task.metadata.type for task in tasks]
    assert len({task.metadata.name for task in tasks}) == len(tasks) == 26
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "Classification": 8, "PairClassification": 3, "Retrieval": 11, "BitextMining": 1, "Clustering": 2, "STS": 1,
    }  # fmt: skip
    assert all("tur-Latn" in task.metadata.languages or "tur-Latn" in str(task.metadata.eval_langs) for task in tasks)
    pairs = [{"sentence1": TEXTS[i], "sentence2": TEXTS[i + 50]} for i in range(50)]
    for split in ("test_matched", "test_mismatched"):
        write_jsonl(f"data/MnliTr/{split}.jsonl", [pair | {"label": i % 2} for i, pair in enumerate(pairs)])
    write_jsonl("data/STSbTR/test.jsonl", [pair | {"score": i % 5} for i, pair in enumerate(pairs)])
    (data / "NFCorpus").rename(data / "SciFactTR")
    rows = [{"text": text, "label": f"{i % 3}"} for i, text in enumerate(TEXTS)]
    for name, part in (("train", rows[:80]), ("test", rows[80:])):
        write_jsonl(f"data/TurkishIronyClassification/{name}.jsonl", part)
    model, problems = embedder(), []
    scores = mteb_scores({"student": (model, model)}, benchmark="TR-MTEB", data=data, problems=problems)["student"]
    assert {score.task: score.type for score in scores} == {
        "MnliTr": "pairclassification", "STSbTR": "sts", "SciFactTR": "retrieval",
        "TurkishIronyClassification": "classification",
    }  # fmt: skip
    assert len(scores) + len(problems) == 26
    found = {problem.task: problem.message for problem in problems}
    assert "score rows that their code takes from trmteb/snli_tr" in found["SnliTr"]
    assert "cannot be fetched" in found["ArguAnaTR"] and "trmteb/arguana-tr" in found["ArguAnaTR"]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"tasks": ["stsbenchmark", "NFCorpus"]}, "mteb has no task 'stsbenchmark'; did you mean STSBenchmark"),
        ({"benchmark": "MTEB(eng, v3)"}, r"mteb has no benchmark 'MTEB\(eng, v3\)'; did you mean .*MTEB\(eng, v2\)"),
        ({"tasks": ["STS12"], "benchmark": "MTEB(eng, v2)"}, "not both"),
        ({}, "--benchmark"),
        ({"tasks": ["%%%"]}, "available-tasks"),
    ],
)
def test_unknown_names(arguments, message, embedder):
    model = embedder()
    with pytest.raises(DistilvecError, match=message):
        scored({"student": (model, model)}, **arguments)


def test_the_encoder_is_what_mteb_expects(embedder):
    from mteb.models import CrossEncoderProtocol, EncoderProtocol, SearchProtocol

    model = MtebModel(embedder("owner/a model: x"), embedder("b"), "abc", EmbeddingCache())
    assert isinstance(model, EncoderProtocol) and not isinstance(model, (SearchProtocol, CrossEncoderProtocol))
    assert (model.mteb_model_meta.name, model.mteb_model_meta.revision) == ("distilvec/owner_a_model_x+b", "abc")
    vectors = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    cosines = np.asarray(model.similarity(vectors, vectors))
    assert np.allclose(np.diag(cosines), np.asarray(model.similarity_pairwise(vectors, vectors)), atol=1e-6)
    assert np.allclose(cosines, np.corrcoef(np.hstack([vectors, -vectors])), atol=1e-6)
    dot = MtebModel(embedder(), embedder(similarity="dot"), "abc", EmbeddingCache())
    assert np.allclose(np.asarray(dot.similarity(vectors, vectors)), vectors @ vectors.T, atol=1e-6)
    assert np.allclose(np.asarray(dot.similarity_pairwise(vectors, vectors)), (vectors**2).sum(axis=1), atol=1e-6)
    assert dot.mteb_model_meta.revision == "abc-dot"  # mteb keeps results by revision
    far = MtebModel(embedder(), embedder(similarity="euclidean"), "abc", EmbeddingCache())
    assert far.similarity(vectors, vectors)[0, 1] == pytest.approx(-np.linalg.norm(vectors[0] - vectors[1]), abs=1e-5)
    assert float(far.similarity_pairwise(vectors[:1], vectors[1:2])[0]) == pytest.approx(
        float(far.similarity(vectors, vectors)[0, 1]), abs=1e-5
    )


@pytest.mark.slow
def test_nothing_is_made_in_the_home_folder(tmp_path):
    process = SERVER.Process(target=import_at, args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == 0 and not (tmp_path / ".cache" / "mteb").exists()


def import_at(home):
    """Import mteb for the first time in a process whose home folder this is."""
    os.environ.pop("MTEB_CACHE", None)
    os.environ["HOME"] = str(home)
    assert "mteb" not in sys.modules
    import_mteb()
    assert "mteb" in sys.modules and "MTEB_CACHE" not in os.environ


def test_sockets_are_refused_here():
    with pytest.raises(AssertionError, match="network"):
        socket.create_connection(("huggingface.co", 443))


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "mteb", None)
    with pytest.raises(DistilvecError, match=r"^\[--mteb\] .*pip install .*\[mteb\]'"):
        import_mteb(Path("unused"))
