"""Query tower and document tower: `--to router`, read by plain sentence-transformers."""

from __future__ import annotations

import json
import shutil

import architectures
import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from huggingface_hub import ModelCard
from refusals import refused
from samples import make_texts
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Router
from servers import serving

from distilvec.__main__ import run_command
from distilvec.core.errors import DistilvecError
from distilvec.formats.sentence_transformers import save_router
from distilvec.models.load import load
from distilvec.pipeline.run import run
from distilvec.teachers.open import load_teacher, open_embedder
from distilvec.verbs.check.check import check
from distilvec.verbs.export.export import document_tower, export_model
from distilvec.verbs.serve.model import ServedModel

TEXTS = make_texts(20, seed=3)
PROMPTS = {"query": "search for: ", "document": "text: "}

pytestmark = pytest.mark.usefixtures("no_pages")


def finished(tiny_recipe, folder, **changes):
    """Run a recipe of two steps."""
    recipe = tiny_recipe(train__max_steps=2, **changes)
    run(recipe, folder)
    return folder / "student"


def test_queries_go_to_the_student_and_documents_to_the_teacher(tiny_recipe, tmp_path, capsys, shared_cache):
    """Of a cut and normalised vector, with prompts and a length of the recipe's own."""
    keys = {"teacher__prompts": PROMPTS, "teacher__max_length": 20, "teacher__truncate_dim": 24}
    student = finished(tiny_recipe, tmp_path / "run", **keys)
    assert run_command(["export", str(student), "--to", "router"]) == 0
    folder = tmp_path / "run" / "router"
    assert capsys.readouterr().out.strip() == str(folder)
    model, alone = SentenceTransformer(str(folder), device="cpu"), SentenceTransformer(str(student), device="cpu")
    texts = [*TEXTS, " ".join(TEXTS)]
    recipe = tiny_recipe(**keys)
    with load_teacher(recipe.teacher, "cpu") as teacher:
        documents = teacher.embed(texts, "document")
    queries = alone.encode_query(texts)
    assert np.abs(model.encode_query(texts) - queries).max() < 1e-6
    assert np.abs(model.encode_document(texts) - documents).max() < 1e-6
    assert np.allclose(model.encode(["text: " + text for text in texts]), documents, atol=1e-6)
    assert np.abs(queries - documents).max() > 1e-3 and documents.shape == (21, 24)
    assert np.allclose(np.linalg.norm(documents, axis=1), 1) and model.prompts == PROMPTS
    for role, expected in (("query", queries), ("document", documents)):
        tower = SentenceTransformer(str(folder / role), device="cpu")
        assert np.abs(tower.encode(texts, prompt_name=role) - expected).max() < 1e-6
    card = ModelCard((folder / "README.md").read_text(encoding="utf-8"))
    assert card.data.model_name is None and "of the teacher's ten nearest among the teacher's vectors" in card.text
    assert json.loads((folder / "distillation.json").read_text())["documents"] == "model"
    assert str(tmp_path) not in "".join(
        path.read_text() for path in folder.rglob("*.json") if path.name != "tokenizer.json"
    )
    assert run_command(["export", str(student), "--to", "router"]) == 0, "its own folder is replaced"
    capsys.readouterr()
    for source in (str(folder), model):
        routed = open_embedder(source)
        assert np.abs(routed.embed(texts, "query") - queries).max() < 1e-5
        assert np.abs(routed.embed(texts, "document") - documents).max() < 1e-5
    with refused("model", "Router"):
        export_model(str(folder), "onnx", tmp_path / "x.onnx")


def test_a_run_with_a_relative_teacher_is_opened_from_another_folder(tiny_model, tmp_path, monkeypatch, shared_cache):
    shutil.copytree(tiny_model, tmp_path / "project" / "models" / "tiny")
    (tmp_path / "project" / "texts.txt").write_text("\n".join(make_texts(60)))
    monkeypatch.chdir(tmp_path / "project")
    words = ["train.max_steps=2", "train.device=cpu", "evaluation.parts=[]"]
    assert run_command(["distill", "models/tiny", "texts.txt", "--layers", "1", "--out", "run", *words]) == 0
    monkeypatch.chdir(tmp_path)
    assert run_command(["export", "project/run/student", "--to", "router"]) == 0
    assert run_command(["plan", "project/run/recipe.yaml"]) == 0


def test_both_towers_have_the_dims_that_the_teachers_own_settings_keep(tiny_recipe, tiny_model, tmp_path):
    own = shutil.copytree(tiny_model, tmp_path / "own")
    path = own / "config_sentence_transformers.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"truncate_dim": 20}))
    student = finished(tiny_recipe, tmp_path / "run", teacher__model=str(own))
    model = SentenceTransformer(str(export_model(str(student), "router").path), device="cpu")
    assert model.encode_query(TEXTS).shape == model.encode_document(TEXTS).shape == (len(TEXTS), 20)
    with load_teacher(tiny_recipe(teacher__model=str(own)).teacher, "cpu") as teacher:
        assert np.allclose(model.encode_document(TEXTS), teacher.embed(TEXTS, "document"), atol=1e-6)


def test_a_student_with_a_space_of_its_own_goes_behind_its_projection(tiny_recipe, tmp_path, shared_cache):
    student = finished(tiny_recipe, tmp_path / "run", method__name="talas")
    projected = SentenceTransformer(str(export_model(str(student), "projected").path), device="cpu")
    model = SentenceTransformer(str(export_model(str(student), "router").path), device="cpu")
    assert np.allclose(model.encode_query(TEXTS), projected.encode_query(TEXTS), atol=1e-6)
    assert not np.allclose(model.encode_document(TEXTS), projected.encode_document(TEXTS), atol=1e-3)
    alone = finished(tiny_recipe, tmp_path / "alone", method__name="simcse")
    with refused("--to", "space of its own"):
        export_model(str(alone), "router")


def test_teachers_that_are_no_tower(tiny_recipe, tiny_model, tmp_path):
    own = shutil.copytree(tiny_model, tmp_path / "own")
    student = finished(tiny_recipe, tmp_path / "run", teacher__model=str(own))
    path = own / "1_Pooling" / "config.json"
    path.write_text(path.read_text().replace("32", "32 "))
    with refused("--to", "not the model that taught"):
        export_model(str(student), "router")
    shutil.rmtree(own)
    with refused("teacher.model", "cannot load"):
        export_model(str(student), "router")
    assert not (tmp_path / "run" / "router").exists()

    texts = make_texts(200)
    vectors = list(load(tiny_model, device="cpu").encode(texts))
    pq.write_table(pa.table({"text": texts, "embedding": vectors}), tmp_path / "table.parquet")
    keys = {"teacher": {"vectors": str(tmp_path / "table.parquet")}, "student__model": str(tiny_model)}
    student = finished(tiny_recipe, tmp_path / "stored", **keys)
    with refused("--to", "table of vectors"):
        export_model(str(student), "router")
    with refused("model", "--to router"):
        export_model(str(tiny_model), "router")


@pytest.mark.usefixtures("loopback")
def test_a_teacher_behind_an_api_is_not_looked_up_on_the_hub(tiny_recipe, tiny_model, tmp_path):
    with serving(ServedModel(str(tiny_model), "text-embedding-3-small")) as address:
        api = {"model": "text-embedding-3-small", "api": {"base_url": f"{address}/v1"}}
        student = finished(tiny_recipe, tmp_path / "run", teacher=api, student__model=str(tiny_model))
    with refused("--to", "text-embedding-3-small, is behind an API"):
        export_model(str(student), "router")


def test_towers_that_a_router_cannot_hold(tiny_recipe, tiny_model, tmp_path):
    from distilvec.config.student import ExpertsSection, StudentSection
    from distilvec.students.build import TeacherInfo, build_student

    section = StudentSection(model=str(architectures.bert(tmp_path / "bert")), experts=ExpertsSection(width=8))
    mixed = build_student(section, TeacherInfo(dim=32, normalized=True, max_length=60), seed=0)
    with load_teacher(tiny_recipe().teacher, "cpu") as teacher:
        tower = document_tower(teacher)
    with pytest.raises(DistilvecError, match=r"the query tower has experts"):
        save_router(mixed, tower, tmp_path / "out", {}, "")
    odd = SentenceTransformer(modules=[*tower, tower[1]], device="cpu")
    odd.append(type("Odd", (type(tower[-1]),), {})())
    with refused("", "Odd"):
        save_router(tower, odd, tmp_path / "out", {}, "")
    assert not (tmp_path / "out").exists()


# -- Routers that sentence-transformers has saved ----------------------------------------------------------------------


def towers_of(folder):
    """Two models of one space, one for queries and one for documents."""
    backbones = [architectures.bert(folder / f"backbone-{seed}", seed) for seed in range(2)]
    made = [architectures.sentence_transformer(folder / f"tower-{n}", path) for n, path in enumerate(backbones)]
    return [SentenceTransformer(str(path), device="cpu") for path in made]


@pytest.fixture(params=["two models", "two layers behind one model"])
def routed(request, tmp_path):
    """The folder of a Router."""
    query, document = towers_of(tmp_path)
    modules = [Router.for_query_document(query_modules=list(query), document_modules=list(document))]
    if request.param != "two models":
        layers = [[Dense(32, 24, init_weight=torch.randn(24, 32) / 6)] for _ in range(2)]
        router = Router.for_query_document(query_modules=layers[0], document_modules=layers[1])
        modules = [query[0], query[1], router, Normalize()]
    model = SentenceTransformer(modules=modules, prompts=PROMPTS, device="cpu")
    model.save_pretrained(str(tmp_path / "router"))
    return tmp_path / "router"


@pytest.mark.usefixtures("loopback")
def test_a_router_is_scored_judged_and_served_by_its_routes(routed, tmp_path):
    model = SentenceTransformer(str(routed), device="cpu")
    queries, documents = model.encode_query(TEXTS), model.encode_document(TEXTS)
    assert np.abs(queries - documents).max() > 0.05
    embedder = open_embedder(str(routed))
    assert np.allclose(embedder.embed(TEXTS, "query"), queries, atol=1e-5)
    assert np.allclose(embedder.embed(TEXTS, "document"), documents, atol=1e-5)
    assert embedder.dim == queries.shape[1]

    with serving(ServedModel(str(routed))) as address:
        for role, expected in (("query", queries), ("document", documents)):
            body = {"input": TEXTS, "input_type": role}
            data = httpx.post(f"{address}/v1/embeddings", json=body).json()["data"]
            assert np.allclose([row["embedding"] for row in data], expected, atol=1e-5)

    (tmp_path / "sts.csv").write_text("sentence1,sentence2,score\nriver,stone,1\nbridge,river,3\nstone,stone,5\n")
    (tmp_path / "suite.yaml").write_text("- {name: mini, type: sts, path: sts.csv}\n")
    assert run_command(["evaluate", str(routed), "--suite", str(tmp_path / "suite.yaml")]) == 0

    texts = make_texts(200)
    stored = list(model.encode_document(texts))
    pq.write_table(pa.table({"text": texts, "embedding": stored}), tmp_path / "index.parquet")
    assert not check(str(routed), tmp_path / "index.parquet", sample=40).fits, "its queries are of another model"


def test_a_router_teaches_by_its_route_for_documents(routed, tiny_recipe, tmp_path, capfd):
    documents = SentenceTransformer(str(routed), device="cpu").encode_document(TEXTS)
    with load_teacher(tiny_recipe(teacher__model=str(routed)).teacher, "cpu") as teacher:
        assert np.allclose(teacher.embed(TEXTS, "document"), documents, atol=1e-5)
        assert any("Router" in note for note in teacher.notes)
    recipe = tiny_recipe(teacher__model=str(routed), train__max_steps=2)
    assert run(recipe, tmp_path / "run") is not None
    assert "Router" in capfd.readouterr().err


def test_one_model_of_a_router_is_had_as_the_refusal_says(tmp_path):
    query, document = towers_of(tmp_path)
    router = Router.for_query_document(query_modules=list(query), document_modules=list(document))
    model = SentenceTransformer(modules=[router], device="cpu")
    model.save_pretrained(str(tmp_path / "router"))
    with refused("model", "sub_modules['query']"):
        export_model(str(tmp_path / "router"), "onnx", tmp_path / "x.onnx")
    SentenceTransformer(modules=list(model[0].sub_modules["query"])).save_pretrained(str(tmp_path / "query"))
    assert np.allclose(open_embedder(str(tmp_path / "query")).embed(TEXTS), model.encode_query(TEXTS), atol=1e-5)
