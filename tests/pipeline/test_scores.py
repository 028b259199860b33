"""score_models: models by folder, id and object, on a suite; arguments that do not fit are refused before anything is
loaded.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from sentence_transformers import SentenceTransformer

from distilvec.core.errors import DistilvecError
from distilvec.pipeline.scores import score_models

STS = "sentence1,sentence2,score\nriver,stone,1\nbridge,river,3\nstone,stone,5\n"


@pytest.fixture
def suite(tmp_path):
    (tmp_path / "sts.csv").write_text(STS)
    path = tmp_path / "suite.yaml"
    path.write_text("- {name: mini, type: sts, path: sts.csv}\n")
    return path


@pytest.fixture
def nothing_loads(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a model was loaded before the refusal")

    monkeypatch.setattr("distilvec.teachers.model.load_teacher", refuse)


def test_a_folder_and_an_object_score_alike(tiny_model, suite):
    model = SentenceTransformer(str(tiny_model), device="cpu")
    alone = score_models(tiny_model, suite)
    both = score_models(model, str(suite), teacher=str(tiny_model))
    assert list(alone.columns) == ["student"] and list(both.columns) == ["teacher", "student", "asymmetric"]
    values = [column[0].value for column in (*alone.columns.values(), *both.columns.values())]
    assert values == pytest.approx([values[0]] * 4) and alone.problems == both.problems == []
    assert "mini" in str(both) and both.to_dataframe()["student"].tolist() == pytest.approx(values[:1])


def test_the_mixture_is_scored_where_it_is_asked_for(tiny_model, suite):
    model = SentenceTransformer(str(tiny_model), device="cpu")
    found = score_models(model, suite, teacher=tiny_model, mixed=True)
    assert list(found.columns) == ["teacher", "student", "asymmetric", "mixed"]
    assert found.averages()["mixed"]["types"].keys() == {"sts"} and found.averages()["student"].keys() == {
        "all",
        "types",
    }


def test_the_surgery_protocol_shows_two_rows(tiny_model, suite):
    found = score_models(tiny_model, suite, protocol="surgery")
    (score,) = found.columns["student"]
    assert score.metric == "pearson" and "spearman" in str(found) and "pearson" in str(found)


def test_the_protocol_chooses_the_metric(tiny_model, tmp_path):
    rows = "".join(
        f"{split},{word} {number},{word}\n"
        for split in ("train", "test")
        for word in ("river", "stone")
        for number in range(4)
    )
    (tmp_path / "classes.csv").write_text("split,text,label\n" + rows)
    (tmp_path / "suite.yaml").write_text("- {name: kinds, type: classification, path: classes.csv}\n")
    for protocol, metric in (("mteb-like", "accuracy"), ("talas", "macro_f1")):
        assert (
            score_models(tiny_model, tmp_path / "suite.yaml", protocol=protocol).columns["student"][0].metric == metric
        )


def test_problems_come_with_the_scores(tiny_model, suite):
    suite.write_text(suite.read_text() + "- {name: gone, type: sts, path: absent.csv}\n")
    found = score_models(tiny_model, suite)
    assert [score.task for score in found.columns["student"]] == ["mini"] and [
        problem.task for problem in found.problems
    ] == ["gone"]
    suite.write_text("- {name: gone, type: sts, path: absent.csv}\n")
    nothing = score_models(Path("never/loaded"), suite)
    assert nothing.columns == {} and "no scores" in str(nothing) and "absent.csv" in str(nothing)


def test_two_widths_have_no_asymmetric_column(tiny_model, suite):
    model = SentenceTransformer(str(tiny_model), device="cpu", truncate_dim=16)
    found = score_models(model, suite, teacher=tiny_model)
    assert list(found.columns) == ["teacher", "student"]
    (problem,) = found.problems
    assert problem.column == "asymmetric" and "16" in problem.message and str(tiny_model) in problem.message


@pytest.mark.usefixtures("nothing_loads")
@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({}, "suite"),
        ({"suite": "s", "mteb": "STSBenchmark"}, "suite"),
        ({"suite": "s", "data": "."}, "data"),
        ({"mteb": ["STSBenchmark"], "data": "nowhere"}, "data"),
        ({"mteb": "STS12", "teacher": Path("vectors.parquet")}, "teacher"),
        ({"suite": "s", "protocol": "mteb"}, "protocol"),
        ({"suite": "nowhere.yaml"}, "suite"),
    ],
)
def test_arguments_are_refused_first(arguments, key):
    with pytest.raises(DistilvecError, match=rf"^\[{key}\] "):
        score_models("model", **arguments)


def test_what_is_no_model(suite, tiny_model):
    with pytest.raises(DistilvecError, match=r"^\[model\] expected .*found int\.$"):
        score_models(3, suite)
    with pytest.raises(DistilvecError, match=r"^\[teacher\] expected .*found dict\.$"):
        score_models(tiny_model, suite, teacher={})
