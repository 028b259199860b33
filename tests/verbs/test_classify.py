"""The verb `classify` on tiny models: whole runs, what they return, kills, refusals before any work."""

from __future__ import annotations

import json
import math
import re
import shlex
import shutil
import subprocess
import sys

import architectures
import numpy as np
import pytest
from labelled import MARKS
from refusals import refused
from samples import make_texts
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer

import distilvec
from distilvec.__main__ import run_command
from distilvec.core.run_folder import RunFolder
from distilvec.pipeline.claim import own_folder
from distilvec.students.task_head import head_info
from distilvec.train.trainer import Trainer

pytestmark = pytest.mark.usefixtures("shared_cache", "no_pages")

FAST = {"train.batch_size": 16, "train.learning_rate": 2e-3, "train.device": "cpu", "train.precision": "fp32"}
OWN_CONFIG = "from transformers import BertConfig\n\n\nclass Own(BertConfig):\n    model_type = 'own'\n"
OWN_MODEL = """from transformers import BertModel

from .own_config import Own


class OwnModel(BertModel):
    config_class = Own
"""
TRUSTED = {"config_args": {"trust_remote_code": True}, "model_args": {"trust_remote_code": True}}


def labelled_rows(count, several=False):
    """Texts whose first words are their labels."""
    draw = np.random.default_rng(0)
    rows = []
    for text in make_texts(count):
        first, second = MARKS[draw.integers(3)], MARKS[draw.integers(3)]
        if several:
            rows.append({"text": f"{first} {second} {text[:20]}", "label": sorted({first, second})})
        else:
            rows.append({"text": f"{first} {text[:30]}", "label": f"about {first}"})
    return rows


def classify(rows, model, folder, **changes):
    options = {"teacher": model, "layers": 1, "epochs": 6, "out": folder, "overrides": FAST} | changes
    return distilvec.classify(rows, **options)


@pytest.fixture(scope="module")
def rows():
    return labelled_rows(150)


def test_learns_judges_and_predicts(rows, tiny_model, tmp_path):
    classifier = classify(rows, tiny_model, tmp_path / "run")
    assert (
        classifier.accuracy.rows
        == len((RunFolder(tmp_path / "run").labels / "test.jsonl").read_text().splitlines())
        == 30
    )
    assert classifier.accuracy.value > 0.8 and classifier.teacher_accuracy.value > 0.6
    low, high = classifier.accuracy.interval
    assert 0 < low <= classifier.accuracy.value <= high <= 1
    assert classifier.classes == ["about desert", "about forest", "about ocean"]
    assert classifier.parameters < classifier.teacher_parameters
    assert classifier.mistakes.wrong == 30 - classifier.accuracy.right
    assert "30 test rows" in classifier.sentence and f"{100 * classifier.accuracy.value:.1f}%" in classifier.sentence

    tested = [json.loads(line) for line in (RunFolder(tmp_path / "run").labels / "test.jsonl").read_text().splitlines()]
    answers = classifier.predict([row["text"] for row in tested])
    right = sum(answer == row["label"] for answer, row in zip(answers, tested, strict=True))
    assert right == classifier.accuracy.right
    probabilities = classifier.predict_proba(["ocean of words", "a forest"])
    assert probabilities.shape == (2, 3) and np.allclose(probabilities.sum(1), 1, atol=1e-5)

    again = classify(rows, tiny_model, tmp_path / "run")
    assert again.to_json()["accuracy"] == classifier.accuracy.value, "the finished run is opened"

    small = classify(rows, RunFolder(tmp_path / "run").teacher.student, tmp_path / "second", epochs=1)
    assert not RunFolder(tmp_path / "second").teacher.path.exists(), (
        "a teacher that knows the labels learns nothing again"
    )
    assert small.teacher_accuracy.right == classifier.teacher_accuracy.right


def test_few_labels_begin_from_a_logistic_regression_and_the_better_one_ships(tiny_model, tmp_path):
    """At a rate that destroys the model, what ships is the regression on its frozen vectors."""
    rows = labelled_rows(36)
    overrides = FAST | {"train.learning_rate": 1.0, "train.max_grad_norm": 100.0}
    classifier = classify(rows, tiny_model, tmp_path / "run", overrides=overrides, test=labelled_rows(150)[36:])
    student = RunFolder(tmp_path / "run")
    for run in (student.teacher, student):
        training = json.loads(run.record.read_text())["training"]
        assert "logistic regression" in training["start"]
        lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
        scores = {line["step"]: line["eval/accuracy"] for line in lines if "eval/accuracy" in line}
        assert scores[training["best_step"]] == max(scores.values()) >= scores[0]
    assert classifier.accuracy.value > 0.6, "a third of the texts would be right by chance"


def test_several_labels_a_text(tiny_model, tmp_path):
    classifier = classify(labelled_rows(150, several=True), tiny_model, tmp_path / "run", epochs=10)
    assert head_info(classifier.student_folder)["task"]["kind"] == "multilabel"
    assert classifier.accuracy.f1 > 0.8 and classifier.accuracy.value > 0.5 and "F1" in classifier.sentence
    tested = [json.loads(line) for line in (RunFolder(tmp_path / "run").labels / "test.jsonl").read_text().splitlines()]
    answers = classifier.predict([row["text"] for row in tested])
    right = sum(answer == row["label"] for answer, row in zip(answers, tested, strict=True))
    assert right == classifier.accuracy.right
    probabilities = classifier.predict_proba([row["text"] for row in tested])
    assert [
        [name for name, p in zip(classifier.classes, row, strict=True) if p > 0.5] for row in probabilities
    ] == answers


def test_a_size_says_how_small_the_student_is(rows, tiny_model, tmp_path, capsys, monkeypatch):
    classifier = classify(rows, tiny_model, tmp_path / "run", layers=None, size="60%", epochs=2)
    assert classifier.parameters <= 0.6 * classifier.teacher_parameters
    assert classifier.recipe.student.size == "60%"
    with refused("size"):
        classify(rows, tiny_model, tmp_path / "small", layers=None, size="10")
    assert not (tmp_path / "small" / "details" / "teacher" / "student").exists(), "refused before the teacher learns"
    with refused("size"):
        classify(rows, tiny_model, tmp_path / "both", layers=1, size="60%")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "intents.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run_command(["classify", "intents.jsonl", "--teacher", str(tiny_model), "--size", "wide"]) == 2
    assert "[--size]" in capsys.readouterr().err


def test_a_student_of_another_family(rows, tiny_model, tmp_path, capsys, monkeypatch):
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32, "num_hidden_layers": 2}
    small = architectures.sentence_transformer(tmp_path / "small", architectures.bert(tmp_path / "backbone", **sizes))
    classifier = classify(rows, tiny_model, tmp_path / "run", layers=None, student=str(small))
    assert classifier.record.student.layers == 2 and classifier.parameters < classifier.teacher_parameters / 2
    assert classifier.accuracy.value > 0.5
    monkeypatch.chdir(tmp_path)
    (tmp_path / "intents.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run_command(["classify", "intents.jsonl", "--teacher", str(tiny_model), "--student", "./absent"]) == 2
    assert "[--student]" in capsys.readouterr().err


def test_a_teacher_that_has_learned_the_test_rows_is_refused(rows, tiny_model, tmp_path, monkeypatch):
    """Another draw tests rows that it was trained on. The draw of its own run, or other rows, test it."""
    first = classify(rows, tiny_model, tmp_path / "first")
    with refused("teacher", "test rows"):
        classify(rows, first.teacher_folder, tmp_path / "second", seed=1)
    with refused("teacher", "test rows"):
        classify(rows, first.student_folder, tmp_path / "second", test_size=0.4)
    monkeypatch.chdir(first.teacher_folder.parent)
    with refused("teacher", "test rows"):  # by a path that does not name the run
        classify(rows, "student", tmp_path / "second", seed=1)
    assert not (tmp_path / "second").exists()
    tested = RunFolder(tmp_path / "first").labels / "test.jsonl"
    for name, changes in {"same": {}, "stated": {"seed": 1, "test": tested}}.items():
        second = classify(rows, first.teacher_folder, tmp_path / name, layers=2, epochs=1, **changes)
        assert second.accuracy.rows == first.accuracy.rows
        assert second.record.teacher.name == first.record.teacher.name == tiny_model.name


def test_a_teacher_learns_one_more_label(rows, tiny_model, tmp_path):
    """Its head is of other classes: it gets a new one."""
    first = classify(rows, tiny_model, tmp_path / "first", epochs=1)
    more = [*rows, *({"text": f"zebra {text[:30]}", "label": "zebra"} for text in make_texts(40, seed=3))]
    second = classify(more, first.teacher_folder, tmp_path / "second", epochs=1)
    assert second.classes == [*first.classes, "zebra"]
    assert second.teacher_folder == RunFolder(tmp_path / "second").teacher.student


def test_a_model_with_code_of_its_own_is_trained_judged_and_predicts(rows, tmp_path):
    backbone = architectures.bert(tmp_path / "backbone")
    (backbone / "own_config.py").write_text(OWN_CONFIG)
    (backbone / "own_model.py").write_text(OWN_MODEL)
    config = json.loads((backbone / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own_config.Own", "AutoModel": "own_model.OwnModel"}}
    (backbone / "config.json").write_text(json.dumps(config))
    model = SentenceTransformer(
        modules=[Transformer(str(backbone), **TRUSTED), Pooling(32)], device="cpu", trust_remote_code=True
    )
    model.save_pretrained(str(tmp_path / "model"), create_model_card=False)
    for name in ("own_config.py", "own_model.py"):
        shutil.copy(backbone / name, tmp_path / "model" / name)
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    classifier = classify(rows, tmp_path / "model", tmp_path / "run", epochs=1, trust_remote_code=True)
    assert classifier.predict(["ocean of words"])[0] in classifier.classes
    assert classifier.student.encode("ocean").shape == (32,)
    with refused("model", "--trust-remote-code"):
        distilvec.TaskModel(classifier.student_folder)


def test_pairs(tiny_model, tmp_path):
    texts = labelled_rows(120)
    pairs = [{"a": row["text"], "b": "anything", "kind": row["label"]} for row in texts]
    classifier = classify(pairs, tiny_model, tmp_path / "run", text=["a", "b"], label="kind")
    assert classifier.accuracy.value > 0.6
    assert classifier.predict([("ocean of words", "anything")])[0] in classifier.classes


def test_resumes_from_where_it_was_stopped(rows, tiny_model, tmp_path, monkeypatch):
    whole = classify(rows, tiny_model, tmp_path / "whole", epochs=2)
    step = Trainer._step

    def stop(self, batches, index):
        step(self, batches, index)
        self.stop_asked = self.state.step == 5 and self.folder == RunFolder(tmp_path / "parts").training

    monkeypatch.setattr(Trainer, "_step", stop)
    with pytest.raises(distilvec.core.errors.DistilvecError):
        classify(rows, tiny_model, tmp_path / "parts", epochs=2)
    monkeypatch.setattr(Trainer, "_step", step)
    metrics = RunFolder(tmp_path / "parts").teacher.metrics
    before = metrics.stat().st_mtime_ns
    parts = classify(rows, tiny_model, tmp_path / "parts", epochs=2)
    assert metrics.stat().st_mtime_ns == before
    texts = [row["text"] for row in rows]
    assert np.array_equal(parts.predict_proba(texts), whole.predict_proba(texts))


def test_other_rows_are_refused_and_those_that_were_learned_from_are_kept(rows, tiny_model, tmp_path):
    classify(rows, tiny_model, tmp_path / "run", epochs=1)
    kept = {path: path.read_bytes() for path in RunFolder(tmp_path / "run").labels.iterdir()}
    with refused("--out", "--restart"):
        classify([*rows, {**rows[0], "text": "one more"}], tiny_model, tmp_path / "run", epochs=1)
    assert {path: path.read_bytes() for path in RunFolder(tmp_path / "run").labels.iterdir()} == kept


def test_a_restart_leaves_a_folder_that_holds_the_teacher_or_the_rows(rows, tiny_model, tmp_path):
    folder = tmp_path / "run"
    own_folder(RunFolder(folder))
    shutil.copytree(tiny_model, folder / "student")
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for file, teacher, changes in (
        (rows, folder / "student", {}),
        (folder / "rows.jsonl", tiny_model, {}),
        (rows, tiny_model, {"student": folder / "student"}),
    ):
        with refused("--restart", "run"):
            classify(file, teacher, folder, restart=True, **changes)
        assert (folder / "student").is_dir() and not list(tmp_path.glob("run.old-*"))


def test_a_dry_run_shows_rows_models_and_time_and_trains_nothing(rows, tiny_model, tmp_path, capsys):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = [f"{key}={value}" for key, value in FAST.items()]

    def planned(folder, *options):
        command = ["classify", str(file), "--teacher", str(tiny_model), "--epochs", "2", "--dry-run"]
        return run_command([*command, "--out", str(tmp_path / folder), *options, *settings])

    def plan(folder, *options):
        assert planned(folder, *options) == 0
        assert not (tmp_path / folder).exists()
        lines = [line.split("│") for line in capsys.readouterr().out.splitlines() if "│" in line]
        return {name.strip(): text.strip() for name, text in lines}

    shown = plan("run", "--layers", "1")
    training, validation = map(int, re.findall(r"[0-9]+", shown["training rows"]))
    assert training + validation == 120 and shown["test rows"] == "30" and shown["labels"].startswith("3 (label)")
    assert "4 layers" in shown["teacher"] and "1 layer" in shown["student"]
    steps = f"{2 * math.ceil(training / 16)} steps of 16 texts: about"
    assert shown["training"].startswith(steps) and shown["test of both"].startswith("about")
    assert "parameters, 2 layers" in plan("two", "--layers", "2")["student"]
    assert plan("size", "--size", "60%")["student"] != shown["student"]
    assert planned("small", "--size", "10") == 2 and "[--size]" in capsys.readouterr().err


def test_long_work_of_a_classifier_says_how_far_it_is(rows, tiny_model, tmp_path, capsys):
    """Test rows as well, which the teacher and the student read one after the other."""
    classify(rows, tiny_model, tmp_path / "run", epochs=1)
    printed = " ".join(capsys.readouterr().err.split())
    for name in ("teacher", "student"):
        assert re.search(rf"test rows of rows by the {name}: 30/30 examples", printed)
    assert "the test split of rows; overlap@10 of held-out texts" in printed


def test_the_command_ends_with_the_result_and_the_next_command(rows, tiny_model, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "intents.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["classify", "intents.jsonl", "--teacher", str(tiny_model), "--layers", "1", "--epochs", "1"]
    status = run_command([*words, "--json", "result.json", *(f"{key}={value}" for key, value in FAST.items())])
    printed = capsys.readouterr().out.splitlines()
    result = json.loads((tmp_path / "result.json").read_text())
    assert status == 0 and " ".join(printed).startswith(result["sentence"][:-1]) and len(printed) <= 6
    assert printed[-1] == "next: distilvec export runs/intents/student --to onnx-int8"
    assert result["test_rows"] == 30 and result["folder"] == "runs/intents"


@pytest.mark.parametrize(
    ("words", "larger"), [(["--layers", "1"], ["--layers", "3"]), (["--layers", "1", "--seed", "3"], ["--seed", "3"])]
)
def test_a_student_far_below_its_teacher_is_told_how_to_train_a_larger_one(
    words, larger, rows, tiny_model, tmp_path, capsys, monkeypatch
):
    """The printed command takes the same rows and the teacher that has learned them, and runs as it is printed."""
    monkeypatch.setattr("distilvec.verbs.classify.classify.far_below_the_teacher", lambda report: "It is far below.")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    changes = [f"{key}={value}" for key, value in FAST.items()]
    words = ["classify", "my rows.jsonl", "--teacher", str(tiny_model), *words, "--epochs", "1", "--out", "run"]
    assert run_command([*words, *changes]) == 0
    printed = capsys.readouterr().out
    last = printed.splitlines()[-1]
    command = shlex.split(last.removeprefix("next: "))
    assert "It is far below." in printed and command[:3] == ["distilvec", "classify", "my rows.jsonl"]
    assert " ".join(larger) in last and "--epochs" not in last
    assert run_command([*command[1:], "--epochs", "1"]) == 0
    second = RunFolder(tmp_path / "run-larger")
    assert not second.teacher.path.exists() and len(list(second.labels.iterdir())) == 3
    first_rows = (RunFolder(tmp_path / "run").labels / "test.jsonl").read_text()
    assert (second.labels / "test.jsonl").read_text() == first_rows


def test_the_command_names_what_is_wrong_without_torch(rows, tmp_path):
    (tmp_path / "intents.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    cases = {
        "FILE": ["nope.csv"],
        "--text": ["intents.jsonl", "--text", "words"],
        "--label": ["intents.jsonl", "--label", "words"],
        "--test": ["intents.jsonl", "--test", "nope.csv"],
        "--test-size": ["intents.jsonl", "--test-size", "0"],
        "train.epoch": ["intents.jsonl", "train.epoch=3"],
        "task.path": ["intents.jsonl", "task.path=other.csv"],
        "--out": ["intents.jsonl", "--out", "intents.jsonl/run"],
    }
    code = (
        "import json, sys\nfrom distilvec.__main__ import run_command\n"
        "found = [run_command(['classify', *words]) for words in json.loads(sys.argv[1])]\n"
        "print(found, 'torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code, json.dumps(list(cases.values()))]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [*str([2] * len(cases)).split(), "False"]
    keys = [line.partition("[")[2].partition("]")[0] for line in done.stderr.splitlines()]
    assert keys == list(cases)


def test_keys_of_its_own_are_refused(rows, tiny_model, tmp_path):
    with refused("method.name", "classify"):
        classify(rows, tiny_model, tmp_path / "run", overrides={"method.name": "redact"})


def test_the_students_keys_are_checked_before_the_teacher_is_trained(rows, tiny_model, tmp_path):
    for key, named in (("student.lyers", "student.lyers"), ("student.size", "size")):
        with refused(named):
            classify(rows, tiny_model, tmp_path / "run", layers=None, overrides={**FAST, key: "10"})
    assert not (tmp_path / "run" / "details" / "teacher" / "student").exists()


def test_a_change_of_the_recipe_says_how_small_the_student_is(rows, tiny_model, tmp_path):
    found = classify(rows, tiny_model, tmp_path / "run", layers=None, overrides={**FAST, "student.layers": 2})
    assert distilvec.result(tmp_path / "run").record.student.layers == 2 and found is not None


def test_changes_of_the_teacher_are_those_of_the_run_that_reads_it(rows, tiny_model, tmp_path):
    """A teacher that learns has its settings in what it saves, but for those of a pass; another one keeps none."""
    changes = {**FAST, "teacher.batch_tokens": 512, "teacher.max_length": 16}
    first = classify(rows, tiny_model, tmp_path / "first", epochs=1, overrides=changes)
    teacher = distilvec.result(tmp_path / "first").recipe.teacher
    assert (teacher.batch_tokens, teacher.max_length) == (512, None)
    classify(rows, first.teacher_folder, tmp_path / "second", epochs=1, overrides=changes)
    teacher = distilvec.result(tmp_path / "second").recipe.teacher
    assert (teacher.batch_tokens, teacher.max_length) == (512, 16)
