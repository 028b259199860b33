"""Whole runs on tiny real models: stages, skipping, refusals, bad input that loses nothing."""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from interrupted import interrupt
from jobs import filled
from refusals import refused
from samples import make_texts
from sentence_transformers import SentenceTransformer

from distilvec.__main__ import main as cli_main
from distilvec.__main__ import run_command
from distilvec.config import recipe as recipes
from distilvec.config.schema import PARTS
from distilvec.core.errors import DistilvecError
from distilvec.core.files import write_json
from distilvec.core.run_folder import RunFolder
from distilvec.methods import redact
from distilvec.pipeline import evaluate as run_report
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.run import run
from distilvec.verbs.compare.compare import compare_runs
from distilvec.verbs.plan.plan import SIZES, Fleet, make_plan


@pytest.fixture
def suite(tmp_path):
    texts = make_texts(40, seed=5)
    rows = [
        {"sentence1": a, "sentence2": b, "score": i % 6, "split": "test"}
        for i, (a, b) in enumerate(zip(texts[::2], texts[1::2], strict=True))
    ]
    (tmp_path / "sts.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    folder = tmp_path / "retrieval"
    folder.mkdir()
    (folder / "corpus.jsonl").write_text(
        "\n".join(json.dumps({"id": str(i), "title": "", "text": t}) for i, t in enumerate(texts))
    )
    (folder / "queries.jsonl").write_text(
        "\n".join(json.dumps({"id": str(i), "text": t}) for i, t in enumerate(texts[:10]))
    )
    (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + "\n".join(f"{i}\t{i}\t1" for i in range(10)))
    path = tmp_path / "suite.yaml"
    path.write_text("- {name: sts, type: sts, path: sts.jsonl}\n- {name: find, type: retrieval, path: retrieval}\n")
    return path


def test_whole_run_with_evaluation_and_a_second_run_does_nothing_again(
    tiny_recipe, suite, tmp_path, capsys, monkeypatch, shared_cache, no_pages
):
    from distilvec.cli.terminal import show_end

    recipe = tiny_recipe(evaluation__suite=str(suite), train__epochs=2)
    job = resolve(recipe, tmp_path / "run")
    result = run(job.recipe, job.folder)
    assert list(result.scores) == ["teacher", "untrained", "student", "asymmetric"]
    assert {score.task for score in result.scores["asymmetric"]} == {"sts", "find"}
    assert result.validation["distance"] < result.validation["untrained_distance"]
    record = json.loads((tmp_path / "run" / "student" / "distillation.json").read_text())
    own = json.loads(RunFolder(tmp_path / "run").record.read_text())
    assert own.pop("seal") and "model.safetensors" in record.pop("files") and record == own
    assert record["teacher_compatible"] and record["training"]["steps"] == result.record.training.steps
    card = (tmp_path / "run" / "student" / "README.md").read_text()
    finds = f"finds {record['overlap']['student']['among']['mean']:.2f} of the teacher's ten nearest among"
    assert "eacher-compatible" in card and finds in card and "asymmetric" in card
    show_end(result)
    printed = capsys.readouterr().out
    assert (
        "% of the teacher's average on 2 tasks [" in printed
        and f"overlap@10 {record['overlap']['student']['among']['mean']:.2f}" in printed
    )
    assert printed.splitlines()[-1] == f"next: distilvec export {tmp_path / 'run' / 'student'} --to onnx-int8"
    weights = (tmp_path / "run" / "student" / "model.safetensors").read_bytes()
    monkeypatch.setattr("distilvec.train.trainer.Trainer._step", lambda *a: pytest.fail("trained again"))
    monkeypatch.setattr("distilvec.evaluation.columns.score_task", lambda *a: pytest.fail("evaluated again"))
    monkeypatch.setattr(
        "distilvec.teachers.model_embedder.ModelEmbedder.signals", lambda *a, **k: pytest.fail("ran the teacher again")
    )
    second = run(recipe, tmp_path / "run")
    assert second.scores == result.scores
    assert (tmp_path / "run" / "student" / "model.safetensors").read_bytes() == weights


def record_rows(folder):
    return json.loads(RunFolder(folder).record.read_text())["data"]["holdout_rows"]


@pytest.mark.slow
def test_the_whole_report(tiny_recipe, suite, tmp_path, forked_modules, shared_cache, monkeypatch, figures):
    """Every part, from kept students to the page; a second run finds all of it done, a part that is missing is made
    alone.
    """
    recipe = tiny_recipe(
        evaluation__suite=str(suite),
        evaluation__parts=list(PARTS),
        evaluation__speed_batches=[1, 2],
        evaluation__speed_seconds=30,
        train__epochs=2,
        train__schedule={"name": "cycles"},
        train__keep_students=8,
    )
    result = run(recipe, tmp_path / "run")
    folder = tmp_path / "run"
    report = json.loads(RunFolder(folder).report.read_text())
    assert set(PARTS) <= report.keys() and report["failures"] == [] and report["verdict"]["text"]
    assert len(report["margin"]["points"]) == len(report["margin"]["left_out"]) == 4, "those of epoch 1 are left out"
    assert report["margin"]["fits"].keys() == {"sts", "find", "average"}
    assert {row["precision"] for row in report["compression"]["rows"]} >= {
        "float32",
        "int8",
        "binary",
        "binary_rescored",
    }
    assert 0 <= report["agreement"]["find"]["models"]["asymmetric"]["overlap@10"] <= 1
    listed, texts = report["agreement"]["find"]["queries"], report["texts"]
    values = [row["scores"]["student"] for row in listed["rows"]]
    assert len(values) == listed["count"] and texts["rows"] == record_rows(folder)
    assert np.mean(values) == pytest.approx(report["scores"]["student"][1]["value"], abs=0.01)
    assert texts["mean"] == pytest.approx(result.validation["distance"], rel=2e-3)
    assert texts["trained"]["rows"] == 200 - texts["rows"] and texts["trained"]["mean"] > 0
    assert report["speed"]["ratio"]["query"] > 0
    assert report["history"][0]["eval/distance"] == result.validation["untrained_distance"]
    low, high, _ = report["intervals"]["student"]["average"]
    student, teacher = (report["averages"][name]["all"] for name in ("student", "teacher"))
    assert low <= student - teacher <= high
    page = (folder / "report.html").read_text()
    assert "<svg" in page and list(RunFolder(folder).figures.glob("*.svg"))
    arrays = np.load(RunFolder(folder).samples)
    assert arrays["student/sts/predicted"].shape == arrays["student/sts/gold"].shape == (20,)

    pages = RunFolder(folder).report.read_bytes()
    del report["agreement"], report["seal"]  # a report that lacks one part
    report["measured"].remove("agreement")
    write_json(RunFolder(folder).report, report, sealed=True)
    monkeypatch.setattr("distilvec.report.write.draw_report", lambda folder, found: None)  # the page is as before
    run(recipe, folder)
    again = json.loads(RunFolder(folder).report.read_text())
    before = json.loads(pages)
    assert again["speed"] == before["speed"] and again["agreement"]["find"].keys() == before["agreement"]["find"].keys()


def test_a_task_that_cannot_be_scored_is_named_and_the_others_are_scored(
    tiny_recipe, suite, tmp_path, monkeypatch, capsys
):
    (tmp_path / "pairs.jsonl").write_text('{"sentence1": "a", "sentence2": "b", "label": 1, "split": "test"}\n' * 2)
    (tmp_path / "pairs.jsonl").open("a").write('{"sentence1": "c", "sentence2": "d", "label": 0, "split": "test"}\n')
    suite.write_text(
        suite.read_text()
        + "- {name: lost, type: sts, path: absent.jsonl}\n- {name: one, type: pair, path: pairs.jsonl}\n"
    )
    model = tiny_recipe().teacher.model
    monkeypatch.setattr(
        "sys.argv", ["distilvec", "evaluate", model, "--suite", str(suite), "--json", str(tmp_path / "out.json")]
    )
    with pytest.raises(SystemExit) as stopped:
        cli_main()
    assert stopped.value.code == 1
    printed = capsys.readouterr()
    assert "task 'lost'" in printed.err and "absent.jsonl" in printed.err
    assert {score["task"] for score in json.loads((tmp_path / "out.json").read_text())["student"]} == {
        "sts",
        "find",
        "one",
    }


def test_parts_that_cannot_be_found_out_are_named_and_the_run_is_kept(
    tiny_recipe, suite, tmp_path, monkeypatch, shared_cache
):
    """A task of two pairs fails the scores of every column; kept students of one distance have no line: all else is
    written.
    """
    (tmp_path / "two.jsonl").write_text(
        "".join(
            json.dumps({"sentence1": "a", "sentence2": f"b {n}", "label": n, "split": "test"}) + "\n" for n in (0, 1)
        )
    )
    suite.write_text(suite.read_text() + "- {name: two, type: pair, path: two.jsonl}\n")
    parts = ["agreement", "compression", "margin"]
    recipe = tiny_recipe(evaluation__suite=str(suite), evaluation__parts=parts, train__keep_students=3)
    found = run_report.saved_students
    monkeypatch.setattr(run_report, "saved_students", lambda job: [replace(kept, distance=0.5) for kept in found(job)])
    result = run(recipe, tmp_path / "run")
    named = {(problem.task, problem.column) for problem in result.problems}
    assert named == {("two", column) for column in ("teacher", "untrained", "student", "asymmetric")} | {
        ("margin", None)
    }
    report = json.loads(RunFolder(tmp_path / "run").report.read_text())
    assert report["margin"] is None and {row["task"] for row in report["compression"]["rows"]} == {"sts", "find"}
    assert RunFolder(tmp_path / "run").record.exists() and result.page is not None
    assert "distances of two" not in result.page.read_text() and "margin" in result.page.read_text()


@pytest.mark.parametrize("damage", ["missing", "cut", "no folder of a model"])
def test_a_damaged_kept_student_is_named_and_costs_the_margin_alone(
    tiny_recipe, suite, tmp_path, no_pages, shared_cache, damage
):
    """Weights that were not copied to this machine with the rest of a run, say."""
    changes = {"evaluation__suite": str(suite), "evaluation__columns": ["teacher", "student"], "train__max_steps": 8}
    kept = tiny_recipe(**changes, train__keep_students=4, evaluation__parts=[])
    run(kept, tmp_path / "run")
    folder = [*RunFolder(tmp_path / "run").saved_students.values()][1]
    if damage == "missing":
        (folder / "model.safetensors").unlink()
    elif damage == "cut":
        weights = folder / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-100])
    else:
        shutil.rmtree(folder)
        folder.mkdir()
    with_margin = tiny_recipe(**changes, train__keep_students=4, evaluation__parts=["margin", "compression"])
    result = run(with_margin, tmp_path / "run")
    (problem,) = result.problems
    assert problem.task == "margin" and str(folder) in problem.message and "damaged" in problem.message
    assert result.report.margin is None and result.report.compression is not None and result.record.scores


def test_a_report_that_was_changed_is_measured_again(tiny_recipe, suite, tmp_path, capsys, no_pages, shared_cache):
    """A score that was edited by hand, and a damaged file, are not believed: the run finds its own figures again."""
    changes = {"evaluation__suite": str(suite), "evaluation__columns": ["student"], "train__max_steps": 2}
    recipe, folder = tiny_recipe(**changes), tmp_path / "run"
    scores = run(recipe, folder).scores
    path = RunFolder(folder).report
    edited = json.loads(path.read_text())
    edited["scores"]["student"][0]["value"] = 99.9
    for content in (json.dumps(edited), path.read_text()[:100]):
        path.write_text(content)
        with refused("report.json"):
            compare_runs([folder])
        again = run(recipe, folder).scores
        values = [[score.value for column in found.values() for score in column] for found in (scores, again)]
        assert values[0] == values[1] and "measuring everything again" in capsys.readouterr().err
        assert compare_runs([folder]).rows[0].mean["sts"] == scores["student"][0].value


def test_a_report_without_matplotlib_says_so(tiny_recipe, suite, tmp_path, monkeypatch, capsys, shared_cache):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    changes = {"evaluation__suite": str(suite), "evaluation__columns": ["student"], "train__max_steps": 2}
    result = run(tiny_recipe(**changes), tmp_path / "run")
    assert result.page is None and RunFolder(tmp_path / "run").report.exists()
    printed = capsys.readouterr()
    assert "no report.html" in printed.out + printed.err and "matplotlib" in printed.out + printed.err


def test_a_suite_of_which_nothing_can_be_read_is_named(tiny_model, tmp_path, monkeypatch, capsys):
    (tmp_path / "suite.yaml").write_text("- {name: lost, type: sts, path: absent.jsonl}\n")
    monkeypatch.setattr("sys.argv", ["distilvec", "evaluate", str(tiny_model), "--suite", str(tmp_path / "suite.yaml")])
    with pytest.raises(SystemExit) as stopped:
        cli_main()
    assert stopped.value.code == 1
    assert "task 'lost'" in capsys.readouterr().err


def test_the_plan_of_a_sweep_counts_its_runs(tiny_recipe, tmp_path, monkeypatch, capsys, shared_cache):
    recipes_file = tmp_path / "two.yaml"
    recipes_file.write_text(recipes.dump(tiny_recipe()))
    words = ["distilvec", "plan", str(recipes_file), "sweep={seeds: [0, 1]}", "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        cli_main()
    shown = capsys.readouterr().out
    assert not ended.value.code and "2 runs" in shown
    assert str(tmp_path / "out" / "seed=0") in re.sub(r"[\s│]", "", shown)  # paths may be broken


def test_a_plan_has_the_stated_suite_instead_of_the_built_in_one(tiny_recipe, suite, tmp_path, capsys, shared_cache):
    recipe = tiny_recipe()
    changes = [f"teacher.model={recipe.teacher.model}", f"corpus.sources={recipe.corpus.sources[0].path}"]
    changes += ["student.layers=2", f"evaluation.suite={suite}"]
    assert run_command(["plan", "quickstart", *changes, "--json", str(tmp_path / "plan.json")]) == 0
    rows = {row["item"]: row["value"] for row in json.loads((tmp_path / "plan.json").read_text())["rows"]}
    assert rows["evaluation"] == "2 tasks: sts, find"


def test_a_changed_method_file_is_named(tiny_recipe, tmp_path, shared_cache):
    method = tmp_path / "own.py"
    method.write_text(Path(redact.__file__).read_text())
    run(tiny_recipe(method__name=str(method), train__max_steps=2), tmp_path / "run")
    method.write_text(method.read_text() + "\n# changed\nFACTOR = 2\n")
    with refused("--out", "own.py"):
        run(tiny_recipe(method__name=str(method), train__max_steps=2), tmp_path / "run")


def test_other_weights_in_the_students_folder_are_other_data(tiny_recipe, tiny_model, tmp_path, shared_cache):
    shutil.copytree(tiny_model, tmp_path / "mine")
    recipe = tiny_recipe(student__model=str(tmp_path / "mine"), student__layers=None, train__max_steps=2)
    run(recipe, tmp_path / "run")
    model = SentenceTransformer(str(tmp_path / "mine"), device="cpu")
    model[0].auto_model.embeddings.word_embeddings.weight.data *= 2
    model.save_pretrained(str(tmp_path / "mine"))
    with refused("--out", "files changed"):
        run(recipe, tmp_path / "run")


def test_the_start_is_scored_with_the_teachers_documents(tiny_recipe, suite, tmp_path, no_pages, shared_cache):
    columns = ["teacher", "student", "asymmetric", "untrained_asymmetric"]
    recipe = tiny_recipe(evaluation__suite=str(suite), evaluation__columns=columns, train__max_steps=2)
    result = run(recipe, tmp_path / "run")
    assert [*result.scores] == columns
    report = json.loads(RunFolder(tmp_path / "run").report.read_text())
    change = result.scores["asymmetric"][1].value - result.scores["untrained_asymmetric"][1].value
    low, high, _ = report["changes"]["training_asymmetric"]["find"]
    assert low - 1e-6 <= change <= high + 1e-6 and "training" not in report["changes"]


def test_a_folder_of_another_recipe_is_refused_until_restart(tiny_recipe, tmp_path, shared_cache):
    run(tiny_recipe(train__max_steps=2), tmp_path / "run")
    other = tiny_recipe(train__max_steps=2, train__learning_rate=5e-4)
    with refused("--out", "train.learning_rate"):
        run(other, tmp_path / "run")
    before = (tmp_path / "run" / "student" / "model.safetensors").read_bytes()
    assert run(other, tmp_path / "run", restart=True).record.training.steps
    (aside,) = tmp_path.glob("run.old-*")
    assert (aside / "student" / "model.safetensors").read_bytes() == before


def test_a_restart_leaves_a_folder_that_holds_an_input(tiny_recipe, tmp_path, shared_cache, monkeypatch):
    """A student, teacher, adapter, source or suite would be gone when the new run reads it."""
    folder = tmp_path / "run"
    run(tiny_recipe(train__max_steps=2), folder)
    (folder / "texts.txt").write_text("\n".join(make_texts(200)))
    (folder / "sts.csv").write_text("sentence1,sentence2,score\nriver,stone,1\nbridge,river,3\nstone,stone,5\n")
    (tmp_path / "suite.yaml").write_text("- {name: mini, type: sts, path: run/sts.csv}\n")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    student = str(folder / "student")
    monkeypatch.chdir(tmp_path)
    for changes in (
        {"student__model": student, "student__layers": None},
        {"student__model": "run/student", "student__layers": None},
        {"teacher__model": student},
        {"corpus__sources": [{"path": str(folder / "texts.txt")}]},
        {"evaluation__suite": str(tmp_path / "suite.yaml")},
    ):
        with refused("--restart", "run"):
            run(tiny_recipe(train__max_steps=2, **changes), folder, restart=True)
        assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
        assert not list(tmp_path.glob("run.old-*"))


def test_a_student_of_another_width_gets_a_linear_layer(tiny_recipe, tmp_path):
    import architectures

    architectures.sentence_transformer(tmp_path / "wide", architectures.bert(tmp_path / "backbone"), "cls dense:48")
    result = run(tiny_recipe(teacher__model=str(tmp_path / "wide"), train__epochs=2), tmp_path / "run")
    student = SentenceTransformer(str(tmp_path / "run" / "student"), device="cpu")
    kinds = [type(module).__name__ for module in student]
    assert kinds[1:] == ["Pooling", "Dense"] and student.encode(["a"]).shape == (1, 48)
    assert student[2].linear.bias is None and student[1].pooling_mode == "cls"
    assert result.validation["distance"] < result.validation["untrained_distance"]


def test_a_fresh_student_with_its_own_tokenizer(tiny_recipe, tmp_path, shared_cache):
    import architectures

    backbone = architectures.xlm_roberta(tmp_path / "other")
    config = json.loads((backbone / "config.json").read_text())
    keep = (
        "model_type",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "max_position_embeddings",
    )
    section = {"config": {k: config[k] for k in keep}, "tokenizer": str(backbone)}
    assert run(tiny_recipe(student=section, train__max_steps=2), tmp_path / "run").record.training.steps


def test_a_table_of_vectors_as_teacher(tiny_recipe, suite, tmp_path, no_pages, shared_cache):
    texts = (tmp_path / "texts.txt", make_texts(200))
    texts[0].write_text("\n".join(texts[1]))
    vectors = np.random.default_rng(0).normal(size=(200, 20)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    table = pa.table({"text": texts[1], "teacher_embedding_final": list(vectors)})
    pq.write_table(table, tmp_path / "vectors.parquet")
    recipe = tiny_recipe(evaluation__suite=str(suite), train__max_steps=2)
    tree = recipe.model_dump(mode="json")
    tree["student"]["model"] = tree["teacher"]["model"]
    tree["teacher"] = {"vectors": str(tmp_path / "vectors.parquet"), "name": "an-api"}
    result = run(recipes.validate(tree), tmp_path / "run")
    assert list(result.scores) == ["untrained", "student", "asymmetric"] and result.record.teacher.width == 20
    pq.write_table(table.slice(0, 150), tmp_path / "vectors.parquet")
    with pytest.raises(DistilvecError, match=r"50"):
        run(recipes.validate(tree), tmp_path / "other")


def test_a_cache_of_another_teacher_is_refused(tiny_recipe, tmp_path):
    recipe = tiny_recipe(cache__path=str(tmp_path / "vectors"))
    filled(recipe, tmp_path / "run")
    changed = tiny_recipe(cache__path=str(tmp_path / "vectors"), teacher__max_length=16)
    with pytest.raises(DistilvecError, match="max_length"):
        filled(changed, tmp_path / "run")


def test_in_batch_methods_refuse_token_budgets(tiny_recipe, tmp_path, shared_cache):
    method = tmp_path / "contrast.py"
    method.write_text(
        "from distilvec.core.objective import Objective\n\n\nclass Contrast(Objective):\n    needs_fixed_batch = True\n"
        "    default_weights = {'x': 1.0}\n\n"
        "    def forward(self, batch, student, teacher):\n        return {'x': student.embedding.sum(-1)}\n"
    )
    with refused("train.max_tokens"):
        run(tiny_recipe(method__name=str(method), train__max_tokens=100), tmp_path / "run")


def test_fixed_batches_resume_with_the_same_weights(tiny_recipe, tmp_path, shared_cache, monkeypatch):
    changes = {"train__fixed_batches": True, "train__epochs": 3, "train__checkpoint_steps": 4}
    stopped, whole = (resolve(tiny_recipe(**changes), tmp_path / name) for name in ("stopped", "whole"))
    interrupt(stopped, 15, monkeypatch)
    for job in (stopped, whole):
        run(job.recipe, job.folder)
    student = "student/model.safetensors"
    assert (tmp_path / "stopped" / student).read_bytes() == (tmp_path / "whole" / student).read_bytes()
    other = resolve(tiny_recipe(**changes | {"train__fixed_batches": False}), tmp_path / "other")
    run(other.recipe, other.folder)
    assert (tmp_path / "other" / student).read_bytes() != (tmp_path / "whole" / student).read_bytes()


def test_a_plan_also_for_many_workers(tiny_recipe, tmp_path):
    job = resolve(tiny_recipe(), tmp_path / "run")
    rows = dict(make_plan(job).lines)
    assert rows["texts"] == "200 (32 for validation)" and rows["teacher vectors to compute"].startswith("200 of 200")
    assert rows["training"].startswith("11 steps of 16 texts")
    assert not (tmp_path / "run").exists() and "  preset" not in rows
    by_tokens = dict(make_plan(resolve(tiny_recipe(train__max_tokens=400), tmp_path / "run")).lines)["training"]
    steps, texts = map(int, re.match(r"(\d+) steps of (\d+) texts", by_tokens).groups())
    assert texts != 16 and steps * texts == pytest.approx(168, rel=0.25)
    rows = dict(make_plan(job, Fleet(4, 3.5)).lines)
    assert ", cost 0.00; " in rows["with 4 workers"] and "keys in memory 2.0 GB" in rows["  100 M texts"]
    hundred, billion = (
        float(re.search(r"cost ([0-9,.]+)", rows[f"  {size} texts"])[1].replace(",", "")) for size in SIZES
    )
    assert billion == pytest.approx(10 * hundred, rel=0.01) and hundred > 0
    assert "80.0 GB of vectors" in rows["  1 B texts"]  # 16 bytes of key, 32 dimensions of 2 bytes
    assert "cost" not in dict(make_plan(job, Fleet(1)).lines)["with 1 worker"]


def test_a_plan_shows_the_prompts_of_a_preset(tiny_recipe, tmp_path, shared_cache):
    rows = dict(make_plan(resolve(tiny_recipe(teacher__preset="arctic-embed-v2"), tmp_path / "run")).lines)
    assert rows["  preset"] == "arctic-embed-v2" and rows["  prompts"] == "query 'query: '"


def test_a_plan_tells_what_is_left_out_and_whose_code_runs(tiny_recipe, tmp_path, capsys):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "a" / "texts.txt").write_text("\n".join([*make_texts(200), "", "the document", "The  QUERY"]))
    (tmp_path / "b" / "texts.txt").write_text("\n".join(make_texts(201)))
    (tmp_path / "search").mkdir()
    (tmp_path / "search" / "corpus.jsonl").write_text('{"id": "d", "text": "the document"}\n')
    (tmp_path / "search" / "queries.jsonl").write_text('{"id": "q", "text": "the query"}\n')
    (tmp_path / "search" / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq\td\t1\n")
    (tmp_path / "suite.yaml").write_text("- {name: search, type: retrieval, path: search}\n")
    (tmp_path / "own.py").write_text(Path(redact.__file__).read_text())
    changes = {
        "corpus__sources": [{"path": str(tmp_path / name / "texts.txt")} for name in ("a", "b")],
        "evaluation__suite": str(tmp_path / "suite.yaml"),
        "method__name": str(tmp_path / "own.py"),
        "student__trust_remote_code": True,
        "cache__path": str(tmp_path / "vectors"),
    }
    (tmp_path / "vectors").mkdir()
    for value, excluded, kept in (
        (True, "1 in the evaluation suite (queries: 1", "202"),
        ("documents", "2 in the evaluation suite (queries: 1, documents: 1", "201"),
    ):
        rows = make_plan(resolve(tiny_recipe(**changes, corpus__exclude_evaluation=value), tmp_path / "run")).lines
        left_out = [what for name, what in rows if name == "  left out"]
        assert left_out == ["200 duplicates", "1 empty", f"{excluded}; corpus.exclude_evaluation)"]
        assert dict(rows)["texts"] == f"{kept} (32 for validation)"
        assert f"{kept} texts, 32 of them for validation; left out: {'; '.join(left_out)}" in capsys.readouterr().err
    assert dict(rows)["  texts (corpus.sources.0)"] == "200" and dict(rows)["  texts (corpus.sources.1)"] == "1"
    code = [what for name, what in rows if name == "runs code"]
    assert code == [
        f"the code in {tmp_path / 'own.py'} (method.name)",
        "the code that comes with teacher (student.trust_remote_code)",
    ]
    assert not list((tmp_path / "vectors").iterdir()) and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no text|zero|empty"),
        (b"\n \n\t\n", "no text|zero|empty"),
        (b"\xff\xfe\x00bad", "UTF-8"),
        (None, "not found|no such|does not exist"),
    ],
)
def test_bad_corpora_are_named(tiny_recipe, tmp_path, content, message):
    recipe = tiny_recipe()
    path = tmp_path / "texts.txt"
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(DistilvecError, match=message):
        run(recipe, tmp_path / "run")


def test_empty_and_very_long_texts(tiny_recipe, tmp_path):
    recipe = tiny_recipe(corpus__validation_rows=16)
    texts = [*make_texts(100), "", "   ", "word " * 50_000]
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    job = resolve(recipe, tmp_path / "run")
    assert job.corpus.report["empty"] == 2 and len(job.corpus) == 101
    assert run(job.recipe, job.folder).record.training.steps


def test_a_finished_run_keeps_no_checkpoint_and_is_still_finished(tiny_recipe, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    recipe = tiny_recipe(train__keep_checkpoint=False, evaluation__parts=[])
    first = run(recipe, folder)
    assert not RunFolder(folder).checkpoint.parent.exists() and not RunFolder(folder).last.exists()
    written = {path: path.stat().st_mtime_ns for path in (folder / "student").rglob("*") if path.is_file()}
    assert "student/" in RunFolder(folder).readme.read_text()
    shown = {"README.txt", "recipe.yaml", "report.html", "student", "details"}
    assert {path.name for path in folder.iterdir()} == shown

    monkeypatch.setattr("distilvec.pipeline.run.prepare", lambda job: pytest.fail("prepared again"))
    again = run(recipe, folder)
    assert again.record.training == first.record.training and again.validation == first.validation
    assert {path: path.stat().st_mtime_ns for path in written} == written
    with refused("--out", "train.epochs"):
        run(tiny_recipe(train__keep_checkpoint=False, train__epochs=2), folder)
