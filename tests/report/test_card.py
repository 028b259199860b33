"""The model card: front matter a hub can read, every number it was given, and nothing for what is missing."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from architectures import bert
from huggingface_hub import ModelCard
from huggingface_hub.repocard import REGEX_YAML_BLOCK
from sentence_transformers import SentenceTransformer

from distilvec.config.student import ExpertsSection, StudentSection
from distilvec.evaluation.overlap import Overlap, OverlapShare
from distilvec.models import parts
from distilvec.models.load import EXPERTS_FILE
from distilvec.report import model_card as cards
from distilvec.report.json_values import from_json, to_json
from distilvec.report.model_card import (
    loading_call,
)
from distilvec.report.record import RunRecord, student_record
from distilvec.report.verdicts import make_verdict, overlap_sentence
from distilvec.students.build import TeacherInfo, build_student
from tests.report.report_sample import sample_judgement

Content = dict[str, Any]  # of a distillation.json


def model_card(content: Content) -> str:
    return cards.model_card(from_json(RunRecord, content))


def score(task: str, value: float, metric: str = "spearman", kind: str = "") -> Any:
    return {"task": task, "type": kind, "metric": metric, "value": value}


SCORES = {
    "student": [score("stsb", 81.5), score("cranfield", 47.5, "ndcg@10")],
    "teacher": [score("stsb", 82.0), score("cranfield", 51.25, "ndcg@10")],
    "untrained": [score("stsb", 60.0), score("cranfield", 12.5, "ndcg@10")],
    "asymmetric": [score("cranfield", 49.2, "ndcg@10")],
}


@pytest.fixture(scope="module")
def student(tmp_path_factory: pytest.TempPathFactory) -> SentenceTransformer:
    folder = bert(tmp_path_factory.mktemp("card") / "bert")
    info = TeacherInfo(dim=48, normalized=True, max_length=64, prompts={"query": "query: "})
    return build_student(StudentSection(model=str(folder), layers=[0, 3]), info, seed=0)


@pytest.fixture
def record(student: SentenceTransformer) -> Content:
    return {
        "format": 1,
        "name": "tiny-student",
        "teacher": {
            "name": "org/teacher",
            "fingerprint": "abc",
            "width": 48,
            "parameters": 22_713_216,
            "normalized": True,
        },
        "student": to_json(student_record(student, "tiny-student", base_model="org/base", kept_layers=[0, 3])),
        "data": {
            "sources": [
                {"name": "wiki|pedia", "rows": 1200, "role": "document", "language": "tr"},
                {"name": "questions", "rows": 34, "role": "query", "language": "en"},
                {"name": "other", "rows": 5, "role": "document", "language": None},
            ],
            "train_rows": 1000,
            "holdout_rows": 239,
        },
        "method": {
            "name": "redact",
            "options": {"distance": "l2"},
            "weights": {"l2": 1.0},
            "citation": "@misc{leaf2025,\n}",
        },
        "training": {"epochs": 3, "learning_rate": 1e-4, "schedule": "cycles"},
        "metrics": {"l2": 0.3903, "cosine": 0.0771},
        "scores": deepcopy(SCORES),
        "versions": {"distilvec": "0.1.0", "torch": "2.13.0"},
    }


def split(card: str) -> tuple[dict[str, Any], str]:
    found = REGEX_YAML_BLOCK.match(card)
    return yaml.safe_load(found[2]), card[found.end() :]


def test_facts_of_the_student(student: SentenceTransformer) -> None:
    info = to_json(student_record(student, "tiny", kept_layers=[0, 3]))
    assert (info["layers"], info["hidden_width"], info["width"], info["max_length"]) == (2, 32, 48, 64)
    assert info["dense"] and info["normalized"] and info["pooling"] == "mean" and info["similarity"] == "cosine"
    assert info["embedding_parameters"] == student.tokenizer.vocab_size * 32
    assert info["parameters"] == sum(weight.numel() for weight in student.parameters()) > info["embedding_parameters"]
    assert json.loads(json.dumps(info)) == info


def test_a_student_without_a_limit_states_no_length(
    student: SentenceTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As T5's, whose positions are relative, with a teacher that states none: its tokenizer has a number for that."""
    monkeypatch.setattr(parts, "position_limit", lambda backbone: None)
    for length in (10**6, 10**30):
        monkeypatch.setattr(student.tokenizer, "model_max_length", length)
        described = student_record(student, "tiny")
        assert described.max_length is None
        assert "maximum length" not in cards.model_card(RunRecord(name="tiny", student=described))


def test_front_matter(record: Content) -> None:
    front, _ = split(model_card(record))
    assert front["library_name"] == "sentence-transformers" and front["pipeline_tag"] == "sentence-similarity"
    assert {
        "sentence-transformers",
        "feature-extraction",
        "sentence-similarity",
        "distilvec",
        "knowledge-distillation",
    } <= set(front["tags"])
    assert front["language"] == ["en", "tr"] and "license" not in front


def test_the_hub_reads_the_metadata(record: Content) -> None:
    """huggingface_hub's own card has every part, and writes the same text again."""
    record["hub"] = {"base_model": ["org/base", "org/teacher"], "datasets": ["org/texts"], "license": "apache-2.0"}
    record["scores"]["student"][1]["type"] = "retrieval"
    record["supervised"] = {
        "task": "intents",
        "type": "classification",
        "rows": 9,
        "scores": {"student": {"accuracy": 0.5}},
    }
    text = model_card(record)
    card = ModelCard(text)
    assert str(card) == text
    assert card.data.base_model == ["org/base", "org/teacher"] and card.data.base_model_relation == "finetune"
    assert (card.data.license, card.data.datasets) == ("apache-2.0", ["org/texts"])
    found = {(one.task_type, one.dataset_name, one.metric_type): one.metric_value for one in card.data.eval_results}
    assert card.data.model_name == "tiny-student" and found == {
        ("sentence-similarity", "stsb", "spearman"): 81.5,
        ("information-retrieval", "cranfield", "ndcg_at_10"): 47.5,
        ("text-classification", "intents", "accuracy"): 50.0,
    }
    assert "model-index" not in split(model_card({**record, "scores": {}, "supervised": None}))[0]
    routed = ModelCard(model_card({**record, "documents": "org/teacher"}))
    assert [one.metric_value for one in routed.data.eval_results] == [49.2, 50.0]
    assert (
        "`encode_document` and `encode` run `org/teacher`" in routed.text and "`encode_document`" not in card.text[:800]
    )


def test_only_ids_and_codes_are_metadata(record: Content) -> None:
    assert "base_model" not in split(model_card(record))[0], "a record without ids of the hub"
    record["data"]["sources"][0]["language"] = "Turkish"
    record["scores"]["student"][0]["value"] = float("nan")
    card = ModelCard(model_card(record)).data
    assert card.language == ["en"] and [one.dataset_name for one in card.eval_results] == ["cranfield"]


def test_text_holds_what_was_given(record: Content) -> None:
    _, text = split(model_card(record))
    for words in (
        "**Teacher-compatible: not measured.** It was trained into the teacher's space.",
        'SentenceTransformer(".")',
        '| query | `"query: "` |',
        "2 layers (layers 0, 3 of `org/base`)",
        "teacher 22.7M",
        "64 tokens",
        "hidden 32, output 48",
        "| wiki\\|pedia | 1200 | document | tr |",
        "| other | 5 | document |  |",
        "1000 texts were trained on, 239",
        "| l2 | 0.3903 |",
        "| learning_rate | 0.0001 |",
        "| schedule | cycles |",
        '`{"distance": "l2"}`',
        "@misc{leaf2025,",
        "- torch 2.13.0",
    ):
        assert words in text, words
    assert "\n\n\n" not in text
    lines = text.splitlines()
    for before, line in pairwise(lines):
        assert not line.startswith("#") or before == "", f"no empty line before {line}"


def test_evaluation_table(record: Content) -> None:
    _, text = split(model_card(record))
    lines = text.splitlines()
    start = lines.index("| Task | Metric | teacher | untrained | student | asymmetric |")
    assert lines[start + 1 : start + 6] == [
        "| --- | --- | ---: | ---: | ---: | ---: |",
        "| stsb | spearman | 82.00 | 60.00 | 81.50 | – |",  # noqa: RUF001
        "| cranfield | ndcg@10 | 51.25 | 12.50 | 47.50 | 49.20 |",
        "| average |  | 66.62 | 36.25 | 64.50 | – |",  # noqa: RUF001
        "| % of teacher |  | 100.0 | 54.4 | 96.8 | – |",  # noqa: RUF001
    ]


def test_other_widths_are_not_compatible(record: Content) -> None:
    record["teacher"]["width"] = 768
    text = model_card(record)
    assert "**Teacher-compatible: no.**" in text and "48 dimensions, the teacher's 768" in text
    assert "Teacher-compatible: yes" not in text
    record["teacher"]["width"] = 48
    record["teacher_compatible"] = False
    assert "**Teacher-compatible: no.** Compare vectors of this model only" in model_card(record)


def shares(among: float | None) -> Overlap:
    return Overlap(
        OverlapShare(0.58, 0.56, 0.6), None if among is None else OverlapShare(among, among - 0.02, among + 0.02)
    )


@pytest.mark.parametrize(
    ("among", "title", "words"),
    [
        (0.85, "Teacher-compatible: yes", "search documents that the teacher embedded"),
        (0.71, "Teacher-compatible: in part", "rank these 100 again"),
        (
            0.31,
            "Not yet teacher-compatible",
            "From 0.5, its results among the teacher's vectors are worth ranking again",
        ),
    ],
)
def test_compatibility_is_what_was_measured(record: Content, among: float, title: str, words: str) -> None:
    """The card has the sentence of page and terminal, and says from which share on the student fits."""
    judgement = replace(sample_judgement(), student=shares(among), start=None)
    record["overlap"] = judgement.to_json()
    text = model_card(record)
    assert f"**{title}.** It {overlap_sentence(judgement)}. " in text and words in text
    assert overlap_sentence(judgement) == make_verdict({}, record=from_json(RunRecord, record)).text
    record["teacher_compatible"] = False
    record["overlap"] = replace(judgement, student=shares(None)).to_json()
    apart = model_card(record)
    assert (
        "**Teacher-compatible: no.** It finds 0.58 of the teacher's ten nearest with its own vectors "
        "(overlap@10) [0.56, 0.60]" in apart
    )


def test_a_student_that_learned_from_labels_alone_has_no_teacher(record: Content) -> None:
    record["teacher"]["unread"] = True
    text = model_card(record)
    assert "A small text-embedding model, trained by distilvec with the method `redact`." in text
    assert "eacher-compatible" not in text and "org/teacher" not in text and "teacher 22.7M" not in text


def test_nothing_known_still_makes_a_card() -> None:
    front, text = split(model_card({}))
    assert front["tags"] and "SentenceTransformer(" in text
    for heading in ("## Evaluation", "## Training", "## Method", "## Citation", "## Versions", "## The model"):
        assert heading not in text
    assert "\n\n\n" not in text


def test_a_student_with_experts_says_how_it_loads(tmp_path: Path) -> None:
    """One line more, another call; without experts the text has neither."""
    section = StudentSection(
        model=str(bert(tmp_path / "bert")), layers=2, experts=ExpertsSection(width=24, gate_width=5)
    )
    built = build_student(section, TeacherInfo(dim=32, normalized=True, max_length=64), seed=0)
    info = to_json(student_record(built, "mixed"))
    assert info["experts"] == {"dim": 32, "experts": 3, "width": 24, "gate_width": 5, "dropout": 0.1}
    assert json.loads(json.dumps(info)) == info
    text = model_card({"name": "mixed", "student": info})
    line = next(line for line in text.splitlines() if line.startswith("It loads with"))
    assert all(words in line for words in ("`distilvec.load`", "`trust_remote_code=True`", f"`{EXPERTS_FILE}`", "ONNX"))
    assert 'import distilvec\nmodel = distilvec.load(".")' in text and "SentenceTransformer(" not in text
    assert "| head | mean pooling, mixture of 3 experts of width 24, normalised to length 1 |" in text
    plain = model_card({"name": "mixed", "student": {name: value for name, value in info.items() if name != "experts"}})
    assert (
        "loads with sentence-transformers alone" in plain and "experts" not in plain and "distilvec.load" not in plain
    )
    assert loading_call(None) == ("from sentence_transformers import SentenceTransformer", "SentenceTransformer")


def test_hostile_names_stay_text(record: Content) -> None:
    """Names, prompts, options and sources full of markup: the front matter and the tables keep their shape."""
    from markdown_it import MarkdownIt

    evil = '<script>alert(1)</script> | [x](javascript:alert(1)) `a` "quoted"\n---\n# heading\n\u202e'
    record["name"] = record["teacher"]["name"] = record["method"]["name"] = evil
    record["student"]["base_model"] = evil
    record["student"]["prompts"] = {"query": evil}
    record["data"]["sources"][0] |= {"name": evil, "language": evil, "role": evil}
    record["method"] |= {"options": {"x": evil}, "citation": f"@misc{{x}}\n```\n{evil}", "summary": evil}
    record["training"] = {"schedule": evil}
    record["versions"] = {evil: evil}
    record["scores"] = {name: [{**one, "task": evil} for one in column[:1]] for name, column in SCORES.items()}
    front, text = split(model_card(record))
    assert "base_model" not in front and front["language"] == ["en"]
    assert "javascript" in front["model-index"][0]["name"] and "\n" not in front["model-index"][0]["name"]
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
    inner = [child.type for token in tokens for child in token.children or ()]
    assert not {"html_inline", "link_open", "image"} & set(inner) and not any(
        token.type == "html_block" for token in tokens
    )
    titles = [tokens[place + 1].content for place, token in enumerate(tokens) if token.type == "heading_open"]
    assert len(titles) == 11 and "javascript" in titles[0] and titles[1] == "Usage"
    assert not any(token.type == "hr" for token in tokens) and "\u202e" not in text
    assert 'model = SentenceTransformer(".")' in text, "code holds no name"


def test_limits_and_speed(record: Content) -> None:
    """The card says which languages, how much of a text, and what was not measured."""
    record["speed"] = {"milliseconds": 3.96, "tokens": 16, "times_faster": 2.5, "processor": "x86", "threads": 2}
    text = model_card(record)
    assert "4.0 ms for one query of 16 tokens, 2.5 times as fast as the teacher (x86, 2 threads)" in text
    assert "what follows the first 64 tokens of a text is not read" in text
    assert "- Not measured: overlap@10 with the teacher, other languages" in text
    del record["speed"], record["scores"]
    assert "Not measured: scores on tasks, overlap@10" in model_card(record)
