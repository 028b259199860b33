"""Factorized token tables: BERT's layers behind a small table, in ELECTRA's layout."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from architectures import ARCHITECTURES, TEXTS
from refusals import refused
from transformers import AutoModel, AutoTokenizer

from distilvec.config.recipe import section_of
from distilvec.config.student import StudentSection
from distilvec.core.errors import DistilvecError
from distilvec.students.build import TeacherInfo, build_student
from distilvec.students.encoder import Encoder
from distilvec.students.factorize import expand, expanded, factorize

TEACHER = TeacherInfo(dim=32, normalized=True, max_length=64)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {name: make(root / name) for name, make in ARCHITECTURES.items()}


def backbone(folder: Path):
    return AutoModel.from_pretrained(folder).eval()


def ids(folder: Path) -> list[list[int]]:
    return AutoTokenizer.from_pretrained(folder)(TEXTS)["input_ids"]


def explained_variance(whole, made, tokens: list[list[int]]) -> float:
    """The share of the variance of what the first layer reads that the factorized table gives, at most 1."""
    with torch.no_grad():
        target = torch.cat([whole.embeddings(torch.tensor([text]))[0] for text in tokens])
        small = [made.embeddings(torch.tensor([text]))[0] for text in tokens]
        found = made.embeddings_project(torch.cat(small))
    return 1 - float((found - target).square().sum() / (target - target.mean(0)).square().sum())


def test_layers_are_copied_and_the_table_is_small(folders):
    whole = backbone(folders["bert"])
    made = factorize(whole, 8, ids(folders["bert"]))
    assert {name: len(part.weight[0]) for name, part in made.embeddings.named_modules() if "embeddings" in name} == {
        "word_embeddings": 8, "position_embeddings": 8, "token_type_embeddings": 8,
    }  # fmt: skip
    states = torch.randn(2, 5, 32)
    with torch.no_grad():
        ours, theirs = (model.encoder(states).last_hidden_state for model in (made, whole))
    assert torch.equal(ours, theirs)
    made.encoder.layer[0].output.dense.weight.data.zero_()
    assert whole.encoder.layer[0].output.dense.weight.any(), "copies, not shared"


def test_a_table_of_low_rank_loses_nothing_but_the_norm(folders):
    """Rows, positions and types in a plane of the space with equal norms: the small LayerNorm divides alike."""
    whole = backbone(folders["bert"])
    corner = torch.linalg.qr(torch.randn(32, 4, generator=torch.Generator().manual_seed(0)))[0]
    corner = torch.linalg.qr(corner - corner.mean(0))[0]
    with torch.no_grad():
        rows = torch.randn(len(whole.embeddings.word_embeddings.weight), 4)
        whole.embeddings.word_embeddings.weight.copy_(torch.nn.functional.normalize(rows) @ corner.T)
        whole.embeddings.position_embeddings.weight.zero_()
        whole.embeddings.token_type_embeddings.weight.zero_()
    every = [list(range(len(rows)))[:128], list(range(len(rows)))[128:]]
    assert explained_variance(whole, factorize(whole, 5, every), every) > 0.98
    assert explained_variance(whole, factorize(whole, 4, every), every) < 0.9


def test_directions_of_positions_are_among_the_components(folders):
    """Rows vary in four directions, and a little in four more; positions in four others, which the rows never have."""
    whole, drawn = backbone(folders["bert"]), torch.Generator().manual_seed(0)
    space = torch.linalg.qr(torch.randn(32, 12, generator=drawn))[0]
    space = torch.linalg.qr(space - space.mean(0))[0]
    with torch.no_grad():
        rows, positions = (
            table.weight for table in (whole.embeddings.word_embeddings, whole.embeddings.position_embeddings)
        )
        scale = torch.tensor([1.0] * 4 + [0.05] * 4)
        rows.copy_(torch.randn(len(rows), 8, generator=drawn) * scale @ space[:, :8].T)
        positions.copy_(torch.randn(len(positions), 4, generator=drawn) @ space[:, 8:].T)
        whole.embeddings.token_type_embeddings.weight.zero_()
    tokens = ids(folders["bert"])
    assert explained_variance(whole, factorize(whole, 9, tokens), tokens) > 0.9


def test_explained_variance_reaches_the_bound_of_principal_components(folders):
    whole, tokens = backbone(folders["bert"]), ids(folders["bert"])
    shares = [explained_variance(whole, factorize(whole, rank, tokens), tokens) for rank in (4, 12, 24)]
    assert shares == sorted(shares)
    with torch.no_grad():
        target = torch.cat([whole.embeddings(torch.tensor([text]))[0] for text in tokens])
    values = torch.linalg.eigvalsh(torch.cov(target.T)).flip(0)
    bounds = [float(values[:rank].sum() / values.sum()) for rank in (4, 12, 24)]
    assert all(bound - 0.2 < share < bound for share, bound in zip(shares, bounds, strict=True)), (shares, bounds)


def test_tokens_of_the_texts_count_more_than_others(folders):
    whole, tokens = backbone(folders["bert"]), ids(folders["bert"])
    fitted, blind = factorize(whole, 8, tokens), factorize(whole, 8)
    assert explained_variance(whole, fitted, tokens) > explained_variance(whole, blind, tokens) + 0.02


def test_the_start_is_the_same_every_time(folders):
    section = StudentSection(model=str(folders["bert"]), layers=2, embedding={"rank": 8})
    first, again = (build_student(section, TEACHER, seed=0, texts=TEXTS).state_dict() for _ in range(2))
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_students_embed_with_dropout_and_a_linear_layer(folders):
    section = StudentSection(model=str(folders["bert"]), layers=[0, 3], dropout=0.1, embedding={"rank": 8})
    student = build_student(section, replace(TEACHER, dim=48), seed=0, texts=TEXTS)
    assert [type(module).__name__ for module in student] == ["Transformer", "Pooling", "Dense", "Normalize"]
    assert student[0].auto_model.config.hidden_dropout_prob == 0.1
    vectors = student.encode(TEXTS)
    alone = np.concatenate([student.encode([text]) for text in TEXTS])
    assert np.abs(alone - vectors).max() < 1e-5 and vectors.shape == (len(TEXTS), 48)


def test_a_full_table_is_close_and_exact_where_the_linear_layer_keeps_lengths(folders):
    tokens = ids(folders["bert"])
    made = factorize(backbone(folders["bert"]), 8, tokens).eval()
    batch = AutoTokenizer.from_pretrained(folders["bert"])(TEXTS, padding=True, return_tensors="pt")

    def gap() -> float:
        with torch.no_grad():
            ours, theirs = (model(**batch).last_hidden_state for model in (made, expand(made, tokens)))
        mask = batch["attention_mask"].bool()
        return float((ours - theirs)[mask].norm(dim=-1).mean() / theirs[mask].norm(dim=-1).mean())

    assert 1e-3 < gap() < 0.4
    kept = torch.linalg.qr(torch.randn(32, 8, generator=torch.Generator().manual_seed(0)))[0]
    made.embeddings_project.weight.data = torch.linalg.qr(kept - kept.mean(0))[0] * 3
    assert gap() < 1e-5


def test_an_expanded_student_is_an_ordinary_bert(folders):
    section = StudentSection(model=str(folders["bert"]), layers=[0, 3], embedding={"rank": 16, "expand": True})
    student = build_student(section, TEACHER, seed=0, texts=TEXTS)
    whole, distance = expanded(Encoder(student).model, TEXTS)
    assert (type(student[0].auto_model).__name__, type(whole[0].auto_model).__name__) == ("ElectraModel", "BertModel")
    found = np.linalg.norm(student.encode(TEXTS) - whole.encode(TEXTS), axis=1).mean()
    assert distance == pytest.approx(found, abs=1e-5) and 0 < distance < 0.5


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if name != "bert"])
def test_other_architectures_are_refused(name, folders):
    section = StudentSection(model=str(folders[name]), embedding={"rank": 8})
    with refused("student.embedding", "expected a BERT encoder"):
        build_student(section, TEACHER, seed=0)


def test_a_decoder_is_refused(folders):
    decoder = backbone(folders["bert"])
    decoder.config.is_decoder = True
    with refused("student.embedding", "BertModel (bert)"):
        factorize(decoder, 8)


@pytest.mark.parametrize("rank", [1, 32, 100])
def test_a_rank_that_shrinks_nothing_is_refused(rank, folders):
    with refused("student.embedding.rank", "from 2 to 31"):
        build_student(StudentSection(model=str(folders["bert"]), embedding={"rank": rank}), TEACHER, seed=0)


def test_a_fresh_student_states_its_own_size():
    fresh = {"config": {"model_type": "electra"}, "tokenizer": "x", "embedding": {"rank": 8}}
    with pytest.raises(DistilvecError, match=r"\[student.embedding\] is for a 'model'"):
        section_of(StudentSection, "student", fresh)
