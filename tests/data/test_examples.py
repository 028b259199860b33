"""Labelled examples: rows, labels, splits, pairs; what is refused; pairs as tokenizers and sentence-transformers see
them.
"""

from __future__ import annotations

import json

import datasets
import numpy as np
import pytest
import torch
from labelled import write_task
from refusals import refused
from sentence_transformers import SentenceTransformer

from distilvec.config.recipe import fingerprint
from distilvec.config.schema import TaskSection
from distilvec.core.batch import is_missing
from distilvec.core.errors import DistilvecError
from distilvec.core.hashing import hash_files
from distilvec.core.outputs import ModelOutputs
from distilvec.data import examples as task_examples
from distilvec.data.corpus import SEPARATOR, text_key
from distilvec.data.examples import build_examples, examples_fingerprint, read_split
from distilvec.data.tokens import build_tokens
from distilvec.methods.base.terms import task_term
from distilvec.models.tokenizers import separate_pairs
from distilvec.teachers.model_embedder import ModelEmbedder
from distilvec.teachers.open import load_teacher
from distilvec.train.dataset import TrainingData


def make(tmp_path, rows, kind="classification", prompts=None, **options):
    path = tmp_path / "task.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    section = TaskSection(type=kind, path=path, **options)
    return section, build_examples(section, prompts or {}, tmp_path / "examples")


def texts_of(*rows):
    return [{"text": text, "label": label, "split": split} for text, label, split in rows]


def pairs_of(*rows, column="label"):
    return [{"sentence1": a, "sentence2": b, column: value, "split": split} for a, b, value, split in rows]


SMALL = texts_of(
    ("one", "b", "train"),
    ("two ", "a", "train"),
    (" one", "a", "train"),
    ("dev", "a", "dev"),
    ("test only", "b", "test"),
)


def test_texts_are_stored_once_and_labels_numbered_by_name(tmp_path):
    section, examples = make(tmp_path, SMALL, validation_split="dev")
    assert (
        examples.classes == ["a", "b"]
        and examples.labels.tolist() == [1, 0, 0, 0]
        and examples.labels.dtype == np.int64
    )
    assert examples.rows.tolist() == [[0], [1], [0], [2]]
    assert examples.corpus.texts(range(3)) == ["one", "two", "dev"] and len(examples.corpus) == 3, (
        "test texts are in no corpus"
    )
    assert examples.train.tolist() == [0, 1, 2] and examples.holdout.tolist() == [3]
    assert (examples.info.kind, examples.info.classes, examples.info.texts_per_example) == ("classification", 2, 1)
    test = read_split(section, "test", "p: ", examples.classes, None)
    assert test.inputs == [("p: test only",)] and test.labels.tolist() == [1]


def test_texts_of_the_test_that_are_trained_on_are_counted(tmp_path, capsys):
    rows = texts_of(("Test  ONLY", "a", "train"), ("both", "a", "train"), ("both", "b", "test"), ("new", "b", "test"))
    make(tmp_path, [*SMALL, *rows], validation_split="dev")
    assert "2 of 3 test rows" in capsys.readouterr().err
    pairs = [("a", "x", 1, "train"), ("A", "x ", 1, "test"), ("a", "b", 2, "train"), ("b", "a", 2, "test")]
    make(tmp_path, pairs_of(*pairs), "pair")
    assert "1 of 2 test rows" in capsys.readouterr().err
    make(tmp_path, SMALL, validation_split="dev")
    assert "test rows" not in capsys.readouterr().err


def test_a_tenth_is_held_out_and_the_limit_drawn_by_seed(tmp_path):
    rows = texts_of(*[(f"text {n}", "ab"[n % 2], "train") for n in range(60)], ("t", "a", "test"))
    drawn = []
    for number, options in enumerate([{}, {}, {"seed": 1}, {"limit": 20}]):
        (tmp_path / str(number)).mkdir()
        drawn.append(make(tmp_path / str(number), rows, **options)[1])
    assert [len(found.train) for found in drawn] == [54, 54, 54, 18] and [len(found.holdout) for found in drawn] == [
        6,
        6,
        6,
        2,
    ]
    assert drawn[0].holdout.tolist() == drawn[1].holdout.tolist() != drawn[2].holdout.tolist()
    for found in drawn:
        assert sorted([*found.train.tolist(), *found.holdout.tolist()]) == list(range(len(found)))


@pytest.mark.parametrize("seed", range(3))
def test_examples_of_one_text_are_in_one_part(tmp_path, seed):
    """The same text in other case, and half of it; the same pair with another score."""
    words = [f"word{number}" for number in range(2400)]
    texts = [" ".join(words[60 * number : 60 * number + 60]) for number in range(40)]
    variants = [part for text in texts for part in (text, text.upper(), text[: len(text) // 2])]
    rows = texts_of(*[(part, "ab"[n % 2], "train") for n, part in enumerate(variants)], ("t", "a", "test"))
    pairs = pairs_of(*[(a, "b", n, "train") for n, a in enumerate(variants)], ("t", "t", 3, "test"), column="score")
    for kind, examples in (("classification", rows), ("sts", pairs)):
        found = make(tmp_path, examples, kind, seed=seed)[1]
        first = [
            str(text)[2:42].lower() if kind == "sts" else text[:40].lower()
            for text in found.corpus.texts(found.rows[:, 0])
        ]
        held_out, trained = ({first[number] for number in part} for part in (found.holdout, found.train))
        assert len(found.holdout) == 12 and len(held_out) == 4 and not held_out & trained


@pytest.mark.parametrize("kind", ["classification", "sts"])
def test_labels_of_n_examples_are_used_and_the_others_are_missing(tmp_path, kind):
    rows = texts_of(*[(f"text {n}", "ab"[n % 2], "train") for n in range(60)], ("t", "a", "test"))
    if kind == "sts":
        rows = pairs_of(*[(f"a {n}", "b", n, "train") for n in range(60)], ("t", "t", 3, "test"), column="score")
    section, plain = make(tmp_path, rows, kind)
    _, found = make(tmp_path, rows, kind, labels=10)
    assert len(found.labeled) == 10 and set(found.labeled) < set(found.train) and "(10 with a label)" in found.line
    assert found.train.tolist() == plain.train.tolist() and found.holdout.tolist() == plain.holdout.tolist()
    used = np.concatenate([found.labeled, found.holdout])
    assert found.labels[used].tolist() == plain.labels[used].tolist()
    assert is_missing(torch.tensor(found.labels)).sum() == 44
    assert len(plain.labeled) == len(plain.train) == 54
    old = fingerprint(2, section.model_dump(mode="json", exclude={"labels", "columns"}), hash_files([section.path]), {})
    assert examples_fingerprint(section, {}) == old, "a recipe without the key keeps its fingerprint"


def test_scores_reach_from_0_to_1_by_the_training_scale(tmp_path):
    rows = pairs_of(
        ("a", "b", 1.0, "train"),
        ("c", "d", 5.0, "train"),
        ("e", "f", 2.0, "train"),
        ("g", "h", 6.0, "test"),
        ("i", "j", 7.0, "test"),
        ("k", "l", 0.0, "test"),
        column="score",
    )
    section, examples = make(tmp_path, rows, "sts", encode="separate", limit=3)
    assert (
        examples.scale == (1.0, 5.0)
        and examples.labels.dtype == np.float32
        and examples.labels.tolist() == [0, 1, 0.25]
    )
    assert examples.info.classes == 1 and examples.info.texts_per_example == 2 and examples.rows.shape == (3, 2)
    test = read_split(section, "test", "", [], examples.scale).labels
    assert test.tolist() == [1.25, 1.5, -0.25], "scores beyond the scale keep their order"


def test_reopened_as_it_is_and_built_anew_when_the_file_changes(tmp_path):
    section, examples = make(tmp_path, SMALL)
    before = (examples.folder / "meta.json").stat().st_mtime_ns
    build_examples(section, {}, examples.folder)
    assert (examples.folder / "meta.json").stat().st_mtime_ns == before
    changed = build_examples(section, {"document": "doc: "}, examples.folder)
    assert changed.corpus.prompted([0]) == ["doc: one"] and changed.corpus.keys[0].tobytes() == text_key("doc: ", "one")


def test_lists_of_0_and_1_are_classes_by_place(tmp_path):
    rows = texts_of(("one", [0, 1, 1], "train"), ("two", [1, 0, 0], "train"), ("t", [0, 0, 1], "test"))
    section, examples = make(tmp_path, rows, "multilabel")
    assert examples.classes == ["0", "1", "2"] and examples.labels.tolist() == [[0, 1, 1], [1, 0, 0]]
    assert read_split(section, "test", "", examples.classes, None).labels.tolist() == [[0, 0, 1]]


def test_a_saved_dataset_is_a_task(tmp_path):
    kind = datasets.ClassLabel(names=["joy", "fear"])
    data = datasets.Dataset.from_dict({"text": ["a", "b", "c"], "label": [0, 1, 0]}).cast_column("label", kind)
    datasets.DatasetDict({"train": data, "test": data.select([1])}).save_to_disk(tmp_path / "saved")
    section = TaskSection(type="classification", path=tmp_path / "saved")
    examples = build_examples(section, {}, tmp_path / "examples")
    assert examples.classes == ["fear", "joy"] and examples.labels.tolist() == [1, 0, 1]
    before = examples_fingerprint(section, {})
    datasets.DatasetDict({"train": data.select([1, 0]), "test": data.select([1])}).save_to_disk(tmp_path / "new")
    assert examples_fingerprint(section.model_copy(update={"path": tmp_path / "new"}), {}) != before


@pytest.mark.parametrize(
    ("rows", "kind", "options", "message"),
    [
        (
            texts_of(("one", "a", "train"), ("two", "a", "train"), ("t", "a", "test")),
            "classification",
            {},
            "every row has the same label, 'a'",
        ),
        (
            texts_of(("one", [0, 1], "train"), ("two", [0, 1], "train"), ("t", [1, 0], "test")),
            "multilabel",
            {},
            "every row has the same label, \\('1',",
        ),
        (
            texts_of(("one", "a", "train"), ("two", "b", "train"), ("t", "c", "test")),
            "classification",
            {},
            "split 'train' lacks: c",
        ),
        (texts_of(("one", "a", "train"), ("two", "b", "train")), "classification", {}, "no split 'test'"),
        (
            [{"text": "one", "label": "a"}, {"text": "two", "label": "b"}],
            "classification",
            {},
            "training and test rows are the same. Add a column split .* or name a folder",
        ),
        (
            pairs_of(("a", "b", 1, "train"), ("c", "d", 1, "train"), ("e", "f", 1, "test"), column="score"),
            "sts",
            {},
            "every row has the same score, 1",
        ),
        (SMALL, "pair", {}, "no column sentence1"),
        (SMALL, "classification", {"limit": 1}, "task.limit"),
    ],
)
def test_what_cannot_be_learnt_is_refused(tmp_path, rows, kind, options, message):
    with pytest.raises(DistilvecError, match=message):
        make(tmp_path, rows, kind, **options)


def test_joint_pairs_are_one_row_and_come_back_as_pairs(tmp_path):
    rows = pairs_of(
        ("a b", " c", 1, "train"), (f"x{SEPARATOR}y", "", 0, "train"), ("a b", "c", 0, "train"), ("p", "q", 1, "test")
    )
    section, examples = make(tmp_path, rows, "pair", {"document": "d: "})
    assert examples.corpus.paired and examples.rows.tolist() == [[0], [1], [0]]
    assert examples.corpus.texts([0, 1]) == [("a b", "c"), ("x\N{REPLACEMENT CHARACTER}y", "")]
    assert examples.corpus.prompted([0]) == [("d: a b", "c")]
    assert examples.corpus.keys[0].tobytes() == text_key("d: ", f"a b{SEPARATOR}c")
    assert read_split(section, "test", "d: ", examples.classes, None).inputs == [(("d: p", "q"),)]


@pytest.mark.parametrize("architecture", ["bert", "roberta", "modernbert"])
def test_pairs_get_the_tokens_and_vectors_of_sentence_transformers(architecture, tmp_path):
    import architectures

    backbone = architectures.ARCHITECTURES[architecture](tmp_path / "backbone")
    folder = architectures.sentence_transformer(tmp_path / "model", backbone)
    long = "a stone and another stone by the river " * 12
    pairs = [("a text", "one more"), (long, "short"), ("short", long), (long, long), ("only the first", "")]
    rows = pairs_of(*[(a, b, n % 2, "train") for n, (a, b) in enumerate(pairs)], ("p", "q", 1, "test"))
    _, examples = make(tmp_path, rows, "pair")
    model = SentenceTransformer(str(folder), device="cpu")
    model.max_seq_length = 40
    separate_pairs(model.tokenizer)  # as every load does
    typed = architecture == "bert"
    store = build_tokens(examples.corpus, model.tokenizer, 40, tmp_path / "tokens", token_types=typed)
    stored = examples.corpus.texts(range(len(examples.corpus)))
    expected = model.preprocess(stored)
    found = store.batch(np.arange(len(stored)))
    for name in found:
        assert torch.equal(found[name], expected[name]), name
    assert ("token_type_ids" in found) == typed and store.report["truncated"] == 3
    teacher = ModelEmbedder(model, "tiny")
    np.testing.assert_allclose(teacher.signals(stored)["embedding"], model.encode(stored), atol=1e-5)


def test_examples_make_batches_of_first_and_then_second_texts(tmp_path, tiny_model):
    write_task(tmp_path / "sts.jsonl", "sts", 40, 10)
    section = TaskSection(type="sts", path=tmp_path / "sts.jsonl", encode="separate")
    examples = build_examples(section, {}, tmp_path / "examples")
    from distilvec.config.schema import TeacherSection

    tokenizer = load_teacher(TeacherSection(model=str(tiny_model)), "cpu").model.tokenizer
    tokens = build_tokens(examples.corpus, tokenizer, 64, tmp_path / "tokens")
    data = TrainingData(examples.corpus, tokens, None, examples.train, examples.holdout, examples=examples)
    numbers = examples.train[:5]
    batch = data.batch(numbers)
    assert batch.rows.tolist() == [*examples.rows[numbers, 0].tolist(), *examples.rows[numbers, 1].tolist()]
    assert (
        batch.texts_per_example == 2
        and batch.labels.tolist() == examples.labels[numbers].tolist()
        and len(batch.sources) == 10
    )
    assert data.lengths[numbers].tolist() == tokens.lengths[examples.rows[numbers]].sum(1).tolist()
    plain = TrainingData(examples.corpus, tokens, None, np.arange(4), np.arange(1))
    assert (
        plain.lengths is tokens.lengths
        and plain.batch(np.arange(3)).labels is None
        and plain.batch(np.arange(3)).texts_per_example == 1
    )
    assert plain.batch(np.arange(3)).score_range == 1.0


def test_the_loss_of_scores_is_the_squared_error_in_the_tasks_own_scale(tmp_path, tiny_model):
    """EMO and DistillMoE: MSE of 5 sigmoid(x) on labels from 0 to 5; here the labels are those of SICK, from 1 to 5."""
    grades = [1.0, 5.0, 2.0, 4.5, 3.0]
    rows = pairs_of(*[(f"a {n}", f"b {n}", grade, "train") for n, grade in enumerate(grades)], column="score")
    rows += pairs_of(("c", "d", 2.5, "test"), column="score")
    _, examples = make(tmp_path, rows, "sts", encode="joint", validation_split="test")
    tokens = build_tokens(examples.corpus, SentenceTransformer(str(tiny_model)).tokenizer, 64, tmp_path / "tokens")
    data = TrainingData(examples.corpus, tokens, None, examples.train, examples.holdout, examples=examples)
    batch, predicted = data.batch(np.arange(5)), torch.tensor([[0.1], [0.9], [0.5], [0.2], [0.3]])
    expected = [(1 + 4 * float(score) - grade) ** 2 for score, grade in zip(predicted, grades, strict=True)]
    assert batch.score_range == 4.0
    assert task_term(batch, ModelOutputs(logits=predicted)).tolist() == pytest.approx(expected, abs=1e-5)


def test_a_file_with_other_names_of_columns(tmp_path):
    folder = tmp_path / "csv"
    folder.mkdir()
    (folder / "train.csv").write_text("utterance,intent\nwhere is it,a\nhow much,b\nwhere now,a\n", encoding="utf-8")
    (folder / "test.csv").write_text("utterance,intent\nwhere,a\n", encoding="utf-8")
    with refused("task.path", "columns: {text: ITS_NAME, l"):
        build_examples(TaskSection(type="classification", path=folder), {}, tmp_path / "first")
    columns = {"text": "utterance", "label": "intent"}
    section = TaskSection(type="classification", path=folder, columns=columns)
    examples = build_examples(section, {}, tmp_path / "second")
    assert examples.classes == ["a", "b"] and len(examples) == 3
    assert read_split(section, "test", "", examples.classes, None).inputs == [("where",)]
    plain = TaskSection(type="classification", path=folder)
    assert examples_fingerprint(section, {}) != examples_fingerprint(plain, {})


def test_files_beside_the_splits_do_not_count(tmp_path):
    """A run is resumed after a file manager or a colleague left a file in the folder."""
    for split in ("train", "test", "dev"):
        lines = [json.dumps({"text": f"{split} {label}", "label": label}) + "\n" for label in "ab"]
        (tmp_path / f"{split}.jsonl").write_text("".join(lines))
    section = TaskSection(type="classification", path=tmp_path, validation_split="dev")
    before = examples_fingerprint(section, {})
    (tmp_path / ".DS_Store").write_bytes(b"\0")
    (tmp_path / "notes.txt").write_text("Labelled in May.")
    (tmp_path / "raw.csv").write_text("a,b\n1,2\n")
    assert examples_fingerprint(section, {}) == before
    for split in ("train", "test", "dev"):
        with (tmp_path / f"{split}.jsonl").open("a") as file:
            file.write(json.dumps({"text": "more", "label": "a"}) + "\n")
        after = examples_fingerprint(section, {})
        assert after != before
        before = after


def test_a_folder_without_the_splits_is_refused(tmp_path):
    with refused("task.path", "expected train.jsonl"):
        build_examples(TaskSection(type="classification", path=tmp_path), {}, tmp_path / "examples")
    with refused("task.path", "nowhere"):
        build_examples(TaskSection(type="classification", path=tmp_path / "nowhere"), {}, tmp_path / "examples")


def test_files_that_change_while_they_are_read_are_refused(tmp_path, monkeypatch):
    """Their rows would be stored under the name of the earlier content."""
    original = task_examples._write

    def write(section, *others):
        content = original(section, *others)
        with section.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(SMALL[0]) + "\n")
        return content

    monkeypatch.setattr(task_examples, "_write", write)
    with refused("task.path", "task.jsonl"):
        make(tmp_path, SMALL)
    assert not (tmp_path / "examples").exists()
