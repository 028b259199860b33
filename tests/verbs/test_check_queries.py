"""`distilvec check` with the queries of a log: both models search the whole index, against brute force in numpy."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from refusals import refused
from samples import make_texts
from scipy.spatial.distance import cdist

import distilvec
from distilvec.__main__ import run_command
from distilvec.evaluation.significance import mean_interval
from distilvec.models.load import load

TEXTS = make_texts(600)
QUERIES = [" ".join(text.split()[: 2 + row % 5]) for row, text in enumerate(make_texts(700)[600:])]


@pytest.fixture(scope="module")
def maker(tiny_model):
    return load(tiny_model, device="cpu")


@pytest.fixture(scope="module")
def student(tmp_path_factory, tiny_model):
    """A model near the one that made the index, as a folder."""
    folder = tmp_path_factory.mktemp("student")
    model = load(tiny_model, device="cpu")
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in model[0].auto_model.encoder.layer[0].parameters():
            weight += 0.02 * torch.randn_like(weight)
    model.save_pretrained(str(folder), create_model_card=False)
    return folder


@pytest.fixture(scope="module")
def vectors(maker):
    """Of lengths from 0.3 to 3."""
    lengths = np.random.default_rng(1).uniform(0.3, 3, size=(len(TEXTS), 1)).astype(np.float32)
    return maker.encode(TEXTS) * lengths


@pytest.fixture
def log(tmp_path):
    """Every query twice, in other white space."""
    (tmp_path / "log.txt").write_text("\n".join([*QUERIES, "", *(f" {query} " for query in QUERIES)]))
    return tmp_path / "log.txt"


def brute_force(queries, vectors, metric, documents, count):
    """The `count` nearest documents of every query: a document is as near as its nearest row; ties by row."""
    distances = cdist(queries.astype(np.float64), vectors.astype(np.float64), metric)
    distances = (distances - (metric == "cosine")).astype(np.float32)
    found = []
    for row in distances:
        ranked = dict.fromkeys(documents[number] for number in np.argsort(row, kind="stable"))
        found.append(list(ranked)[:count])
    return found


def shares(expected, found):
    return np.array([len({*right} & {*ours}) / len(right) for right, ours in zip(expected, found, strict=True)])


def by_query(values, queries):
    """A mean with its interval over distinct queries: equal words are one origin."""
    origins = {}
    for value, query in zip(values, queries, strict=True):
        origins.setdefault(query, []).append(value)
    return mean_interval(np.array([np.mean(group) for group in origins.values()]))


@pytest.mark.parametrize(
    ("kind", "metric", "words"),
    [
        ("parquet", "cosine", "by cosine, as the index states no similarity"),
        ("lancedb", "euclidean", "by Euclidean distance, the store's default"),
    ],
)
@pytest.mark.parametrize("chunks", [1, 15])
def test_both_models_search_the_whole_index(
    kind, metric, words, chunks, tmp_path, monkeypatch, maker, student, vectors, log, tiny_model
):
    """In batches that are smaller than a document's rows, of which the best one counts; some rows name no document."""
    monkeypatch.setattr("distilvec.teachers.cache.parquet._ROWS", 64)
    monkeypatch.setattr("distilvec.evaluation.logged.PARTS", ())
    unnamed = "" if kind == "parquet" else None
    stored_names = [f"document {row // chunks}" if row % 7 else unnamed for row in range(len(TEXTS))]
    names = [name or f"row {row}" for row, name in enumerate(stored_names)]
    rows = {"id": [f"row {row}" for row in range(len(TEXTS))], "text": TEXTS, "doc_id": stored_names}
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    table = pa.table({**rows, "vector": fixed})
    if kind == "parquet":
        index = tmp_path / "table.parquet"
        pq.write_table(table, index)
    else:
        index = tmp_path / "db" / "t.lance"
        pytest.importorskip("lancedb").connect(tmp_path / "db").create_table("t", table)

    found = distilvec.check(student, index, queries=log, made_by=str(tiny_model))
    ours, theirs = load(student, device="cpu").encode(QUERIES), maker.encode(QUERIES)
    expected = brute_force(theirs, vectors, metric, names, 10)
    hits = brute_force(ours, vectors, metric, names, 100)
    judgement = found.judgement
    among = judgement.student.among
    top = shares(expected, [ranked[:10] for ranked in hits])
    assert (among.mean, among.low, among.high) == pytest.approx(by_query(top, QUERIES), abs=1e-9)
    wider = (judgement.student.among_wider, *judgement.student.among_wider_interval)
    assert wider == pytest.approx(by_query(shares(expected, hits), QUERIES), abs=1e-9)
    assert 0.2 < among.mean < wider[0] and judgement.texts == len(TEXTS)
    assert words in found.line and "queries are shorter" not in found.line
    assert judgement.candidates == len({*names})
    assert judgement.by_document and "a document with several rows counts once" in found.line

    # The 20 queries that differ most, with both lists
    worst = judgement.log.differing
    assert len(worst) == 20 and [query.among for query in worst] == sorted(top)[:20]
    document_of = dict(zip(rows["id"], names, strict=True))
    for query in worst:
        number = QUERIES.index(query.query)
        assert [document_of[hit.id] for hit in query.maker] == expected[number]
        assert [document_of[hit.id] for hit in query.student] == hits[number][:10]
        assert all(hit.text == TEXTS[rows["id"].index(hit.id)] for hit in query.student)

    # Three groups by length
    groups = judgement.log.lengths
    distinct = list(dict.fromkeys(QUERIES))
    assert len(groups) == 3 and sum(group.queries for group in groups) == judgement.queries == len(distinct)
    for group in groups:
        mask = [group.shortest <= len(query) <= group.longest for query in QUERIES]
        part = by_query(top[mask], [query for query, is_in in zip(QUERIES, mask, strict=True) if is_in])
        assert group.shares.among.mean == pytest.approx(part[0], abs=1e-9)


@pytest.fixture
def table(tmp_path, maker):
    pq.write_table(pa.table({"text": TEXTS, "vector": list(maker.encode(TEXTS))}), tmp_path / "table.parquet")
    return tmp_path / "table.parquet"


def test_the_exit_status_is_that_of_at_least(table, student, tiny_model, log, tmp_path, capsys):
    words = ["check", str(student), str(table), "--queries", str(log), "--made-by", str(tiny_model)]
    words += ["--json", str(tmp_path / "check.json")]
    assert run_command([*words, "--at-least", "0.99"]) == 1
    content = json.loads((tmp_path / "check.json").read_text())
    share = content["judgement"]["student"]["among"]["mean"]
    assert run_command([*words, "--at-least", str(share)]) == 0
    capsys.readouterr()
    assert run_command([*words, "--at-least", f"{share + 0.001:f}"]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert content["line"] in printed and content["advice"] in printed and "characters" in printed
    assert content["verdict"] in ("use it", "use it with a reranker", "do not use it") and content["passes"] is False
    differing = content["judgement"]["log"]["differing"]
    assert len(differing) == 20 and content["scores"] == {}
    assert f"{round(10 * differing[0]['among'])} of the 10 for" in printed
    assert f"overlap@10 is {share:.4f}, lower than --at-least" in printed
    # The model that made the index differs nowhere
    assert run_command([words[0], str(tiny_model), *words[2:]]) == 0
    assert json.loads((tmp_path / "check.json").read_text())["judgement"]["log"]["differing"] == []
    assert "of the 10 for" not in capsys.readouterr().out
    # Without queries the verdict is on stored texts
    assert run_command([*words[:3], "--sample", "50", "--at-least", "0.01"]) == 0
    assert "judged on stored texts; queries are shorter" in " ".join(capsys.readouterr().out.split())
    assert run_command([*words[:3], "--sample", "50", "--at-least", "1"]) == 1


@pytest.mark.parametrize("with_queries", [True, False])
def test_a_part_of_an_index_is_no_promise_for_the_whole(with_queries, table, student, tiny_model, log):
    """The share falls as the index grows, and the line says among how many it was measured."""
    asked = {"queries": log, "made_by": str(tiny_model)} if with_queries else {"sample": 60}
    whole = distilvec.check(student, table, **asked)
    assert whole.judgement.all_rows is None and "were read" not in whole.line
    found = distilvec.check(student, table, limit=500, **asked)
    parts = found.judgement.parts
    assert found.judgement.all_rows == 600 and "only 500 of 600 rows were read" in found.line
    assert len(parts) == 2 and 20 <= parts[0].candidates < 100 < parts[1].candidates <= 500  # a hundredth is too few
    assert parts[1].share == found.judgement.student.among and parts[0].share.mean > parts[1].share.mean
    assert all(f"{part.share.mean:.2f} among {part.candidates}" in found.line for part in parts)


def test_a_long_log_is_drawn_from_evenly(table, student, tiny_model, tmp_path):
    log = [f"{QUERIES[row % 100]} {row}" for row in range(1200)]
    found = distilvec.check(student, table, queries=log, made_by=str(tiny_model))
    assert found.judgement.queries == 1000 and "1,000 of 1,200 distinct queries, drawn evenly" in found.line


def test_queries_need_the_model_that_made_the_index(table, student, tiny_model, log, tmp_path):
    with refused("made_by"):
        distilvec.check(student, table, queries=log)
    with refused("queries"):
        distilvec.check(student, table, made_by=str(tiny_model))
    other = load(tiny_model, device="cpu")
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in other[0].auto_model.encoder.layer[0].parameters():
            weight += 0.5 * torch.randn_like(weight)
    other.save_pretrained(str(tmp_path / "other"), create_model_card=False)
    with refused("made_by", "has not made the index"):
        distilvec.check(student, table, queries=log, made_by=str(tmp_path / "other"))
    (tmp_path / "empty.txt").write_text("\n \n")
    with refused("queries"):
        distilvec.check(student, table, queries=tmp_path / "empty.txt", made_by=str(tiny_model))
