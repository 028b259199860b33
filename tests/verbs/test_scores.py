"""score_models: models by folder, id and object, on a suite; arguments that do not fit are refused before anything is
loaded.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from refusals import refused
from sentence_transformers import SentenceTransformer

from distilvec.__main__ import run_command
from distilvec.cli.terminal import show_scores
from distilvec.core.errors import DistilvecError
from distilvec.core.model_name import ModelName
from distilvec.formats.onnx import export_onnx
from distilvec.models.load import load_model
from distilvec.report.tables import number
from distilvec.teachers.graph_embedder import model_folder, open_exported
from distilvec.teachers.model_embedder import ModelEmbedder
from distilvec.verbs.evaluate.scores import score_models

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

    monkeypatch.setattr("distilvec.verbs.evaluate.scores.opened", refuse)


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


def test_every_score_has_its_interval_over_rows(tiny_model, tmp_path, capsys):
    """Of search over queries, of classes over test rows; a metric of pairs that is no mean has one as well."""
    texts = [
        f"the {color} {thing}" for color in ("red", "blue", "green") for thing in ("river", "stone", "bridge", "sand")
    ]
    (tmp_path / "search").mkdir()
    for name in ("corpus", "queries"):
        lines = [json.dumps({"id": f"{name[0]}{number}", "text": text}) for number, text in enumerate(texts)]
        (tmp_path / "search" / f"{name}.jsonl").write_text("\n".join(lines))
    judged = "".join(f"q{number}\tc{(number + number % 3) % 12}\t1\n" for number in range(12))
    (tmp_path / "search" / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)
    rows = [f"{split},{t},{t.split()[1]}\n" for split in ("train", "test") for t in texts]
    (tmp_path / "classes.csv").write_text("split,text,label\n" + "".join(rows))
    pairs = [f"{t},{texts[0]},{number}\n" for number, t in enumerate(texts)]
    (tmp_path / "sts.csv").write_text("sentence1,sentence2,score\n" + "".join(pairs))
    kinds = {"search": "retrieval", "classes": "classification", "sts": "sts"}
    paths = {"search": "search", "classes": "classes.csv", "sts": "sts.csv"}
    suite = "".join(f"- {{name: {name}, type: {kind}, path: {paths[name]}}}\n" for name, kind in kinds.items())
    (tmp_path / "suite.yaml").write_text(suite)
    command = [
        "evaluate",
        str(tiny_model),
        "--suite",
        str(tmp_path / "suite.yaml"),
        "--json",
        str(tmp_path / "out.json"),
    ]
    assert run_command(command) == 0
    printed = capsys.readouterr().out
    found = {score["task"]: score for score in json.loads((tmp_path / "out.json").read_text())["student"]}
    assert found.keys() == kinds.keys()
    for score in found.values():
        low, high = score["interval"]
        assert -100 <= low <= score["value"] <= high <= 100 and high - low > 5, "twelve rows say little"
        assert f"{number(score['value'])} [{number(low)}, {number(high)}]" in printed
    (score,) = score_models(tiny_model, tmp_path / "suite.yaml", protocol="surgery").columns["student"][2:]
    assert score.metric == "pearson" and score.interval is None, "Pearson's correlation has none"


def test_problems_come_with_the_scores(tiny_model, suite):
    suite.write_text(suite.read_text() + "- {name: gone, type: sts, path: absent.csv}\n")
    found = score_models(tiny_model, suite)
    assert [score.task for score in found.columns["student"]] == ["mini"] and [
        problem.task for problem in found.problems
    ] == ["gone"]
    suite.write_text("- {name: gone, type: sts, path: absent.csv}\n")
    nothing = score_models(Path("never/loaded"), suite)
    assert nothing.columns == {} and "no scores" in str(nothing) and "absent.csv" in str(nothing)


def test_what_was_counted_as_0_is_said_next_to_the_scores(tiny_model, suite, capsys):
    (suite.parent / "sts.csv").write_text("sentence1,sentence2,score\nriver,river,1\nstone,stone,3\nsand,sand,5\n")
    found = score_models(tiny_model, suite, teacher=tiny_model)
    remark = "note: mini, teacher, student, asymmetric: all similarities are equal"
    assert remark in str(found) and remark in found._repr_html_()
    show_scores(found.columns)
    assert remark in " ".join(capsys.readouterr().out.split())


def test_two_widths_are_compared_without_an_asymmetric_column(tiny_model, suite, capsys):
    model = SentenceTransformer(str(tiny_model), device="cpu", truncate_dim=16)
    found = score_models(model, suite, teacher=tiny_model)
    assert list(found.columns) == ["teacher", "student"] and not found.problems
    said = capsys.readouterr().err
    assert "have 16 dimensions" in said and "no common space" in said and str(tiny_model) in said


def test_a_table_of_another_width_is_a_problem(tiny_model, suite, tmp_path):
    rows = {"text": ["river", "stone", "bridge"], "vector": [[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]}
    pq.write_table(pa.table(rows), tmp_path / "vectors.parquet")
    found = score_models(tiny_model, suite, teacher=tmp_path / "vectors.parquet")
    (problem,) = found.problems
    assert problem.column == "asymmetric" and "no common space" in problem.message


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
    with refused(key):
        score_models("model", **arguments)


def test_what_is_no_model(suite, tiny_model):
    with pytest.raises(DistilvecError, match=r"^\[model\] expected .*found int\.$"):
        score_models(3, suite)
    with pytest.raises(DistilvecError, match=r"^\[teacher\] expected .*found dict\.$"):
        score_models(tiny_model, suite, teacher={})


@pytest.fixture(scope="module")
def exported(tiny_model, tmp_path_factory):
    """A model folder with its fp32 ONNX file."""
    pytest.importorskip("onnxruntime")
    folder = tmp_path_factory.mktemp("exported") / "model"
    shutil.copytree(tiny_model, folder)
    (folder / "onnx").mkdir(exist_ok=True)
    return export_onnx(SentenceTransformer(str(folder), device="cpu"), folder / "onnx" / "model.onnx")


def test_an_exported_file_scores_as_its_model(exported, tiny_model, suite):
    found = score_models(exported, suite, teacher=tiny_model)
    values = {name: column[0].value for name, column in found.columns.items()}
    assert values.keys() == {"teacher", "student", "asymmetric"}
    assert values["student"] == pytest.approx(values["teacher"], abs=1e-3)


def test_the_weights_are_those_of_the_file(exported, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(exported.parents[1], folder)
    other = SentenceTransformer(str(folder), device="cpu")
    torch.manual_seed(3)
    for weight in other.parameters():
        weight.data = torch.randn_like(weight) * 0.05
    (folder / "onnx" / "model.onnx").unlink()
    found = open_exported(export_onnx(other, folder / "onnx" / "model.onnx")).embed(["river", "a stone"])
    np.testing.assert_allclose(found, other.encode(["river", "a stone"]), atol=1e-4)
    assert np.abs(found - SentenceTransformer(str(folder), device="cpu").encode(["river", "a stone"])).max() > 0.01


def test_prompts_of_a_file_are_those_of_its_model(exported, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(exported.parents[1], folder)
    settings = json.loads((folder / "config_sentence_transformers.json").read_text(encoding="utf-8"))
    settings["prompts"] = {"query": "river: ", "passage": "stone: "}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings), encoding="utf-8")
    file, model = open_exported(folder / "onnx" / exported.name), load_model(ModelName(str(folder)))
    for role in ("query", "document"):
        expected = ModelEmbedder(model, "model").embed(["a hill"], role)
        np.testing.assert_allclose(file.embed(["a hill"], role), expected, atol=1e-4)
    assert np.abs(file.embed(["a hill"], "document") - model.encode(["a hill"])).max() > 1e-3


def test_an_exported_file_may_be_a_link_into_its_model_or_out_of_it(tmp_path):
    model, blob = tmp_path / "model", tmp_path / "blobs" / "3fa9"
    for folder in (model / "onnx", blob.parent):
        folder.mkdir(parents=True)
    for file in (model / "modules.json", model / "own.onnx", blob):
        file.touch()
    (model / "onnx" / "model.onnx").symlink_to("../../blobs/3fa9")  # as in the hub's cache
    (tmp_path / "short.onnx").symlink_to(model / "own.onnx")
    assert model_folder(model / "onnx" / "model.onnx") == model
    assert model_folder(tmp_path / "short.onnx") == model


def test_exported_files_that_cannot_be_scored(exported, suite, tmp_path):
    with refused("model", "absent.onnx"):
        score_models(tmp_path / "absent.onnx", suite)
    alone = Path(shutil.copy(exported, tmp_path / "alone.onnx"))
    with refused("model", "alone.onnx"):
        score_models(alone, suite)
    with pytest.raises(DistilvecError, match=r"^\[model\] .*not on MTEB"):
        score_models(exported, mteb="STSBenchmark")
