import errno
import gzip
import json
import os
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from refusals import refused

from distilvec.config.schema import CorpusSection, SourceSection
from distilvec.core import artifacts as columns
from distilvec.core.errors import DistilvecError
from distilvec.core.storage import Remote
from distilvec.data import corpus as corpus_module
from distilvec.data import corpus_files as selection
from distilvec.data.corpus import (
    Corpus,
    build_corpus,
    corpus_fingerprint,
    excluded_fingerprint,
    excluded_line,
    text_key,
    validation_size,
)
from distilvec.data.origins import validation_line


def source(folder, name, texts, /, **options):
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return {"path": path, **options}


def section(*sources, **options):
    return CorpusSection.model_validate({"validation_rows": 1, "sources": list(sources), **options})


def build(tmp_path, *sources, prompts=None, excluded=(), progress=None, **options):
    report = {"progress": progress} if progress else {}
    texts = excluded if isinstance(excluded, dict) else {"queries": excluded}
    return build_corpus(section(*sources, **options), prompts or {}, tmp_path / "corpus", texts, **report)


def everything(built):
    return built.texts(range(len(built)))


def test_texts_keep_their_order_and_come_back_by_row(tmp_path):
    texts = [f"text {i} ğ🌍" for i in range(100)]
    built = build(tmp_path, source(tmp_path, "a", texts))
    assert len(built) == 100 and everything(built) == texts
    assert built.texts(np.array([7, 3, 7])) == [texts[7], texts[3], texts[7]] and built.texts([]) == []


def test_mixing_roles_prompts_and_keys(tmp_path):
    one, two = (
        source(tmp_path, "a", ["x", "y"], role="query", language="en"),
        source(tmp_path, "b", ["x", "z"], name="second"),
    )
    built = build(tmp_path, one, two, prompts={"query": "query: "})
    assert everything(built) == ["x", "y", "x", "z"], "another prompt makes another row"
    assert built.prompted(range(4)) == ["query: x", "query: y", "x", "z"]
    assert built.sources.tolist() == [0, 0, 1, 1]
    assert (built.source_names, built.languages, built.roles) == (["a", "second"], ["en", None], ["query", "document"])
    assert [bytes(key) for key in built.keys] == [
        text_key(prompt, text) for prompt, text in [("query: ", "x"), ("query: ", "y"), ("", "x"), ("", "z")]
    ]


def test_everything_dropped_is_counted(tmp_path):
    texts = ["kept", " kept\n", "", " \t ", "Held  Out", None, "also kept", "x" * 1_000_050]
    built = build(
        tmp_path, source(tmp_path, "a", texts), source(tmp_path, "b", ["also kept", "new"]), excluded=["held out "]
    )
    assert everything(built) == ["kept", "also kept", "x" * 1_000_000, "new"]
    one, two = built.report["sources"]
    wanted = {"read": 8, "empty": 3, "excluded": 1, "duplicates": 1, "left_out": 0, "kept": 3, "cut": 1}
    assert one == {"name": "a", **wanted}
    assert (two["duplicates"], two["kept"]) == (1, 1)
    assert (built.report["read"], built.report["kept"], built.report["train"], built.report["holdout"]) == (10, 4, 3, 1)


def test_halves_of_surrogate_pairs_are_replaced(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "bad \\ud800 half"}\n{"text": "good \\ud83c\\udf0d pair"}\n')
    assert everything(build(tmp_path, {"path": path})) == ["bad \ufffd half", "good 🌍 pair"]


short_texts = st.lists(st.text(alphabet="aB \n", max_size=3), max_size=40)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=short_texts, second=short_texts, chunk=st.sampled_from([3, 16, 65_536]), excluded=short_texts)
def test_duplicates_against_a_set(tmp_path, monkeypatch, first, second, chunk, excluded):
    monkeypatch.setattr(selection, "CHUNK", chunk)
    monkeypatch.setattr(selection, "_ROWS", chunk)
    barred = {" ".join(text.casefold().split()) for text in excluded}
    expected: dict[str, None] = {}
    for text in first + second:
        if text.strip() and " ".join(text.casefold().split()) not in barred:
            expected[text.strip()] = None
    sources = source(tmp_path, "a", first), source(tmp_path, "b", second)
    if len(expected) < 2:
        with pytest.raises(DistilvecError):
            build(tmp_path, *sources, excluded=excluded)
        return
    built = build(tmp_path, *sources, excluded=excluded)
    assert everything(built) == list(expected)
    assert sorted([*built.train_rows.tolist(), *built.holdout_rows.tolist()]) == list(range(len(expected)))
    report = built.report
    assert (
        report["read"]
        == len(first) + len(second)
        == sum(report[name] for name in ("empty", "excluded", "duplicates", "kept"))
    )


def test_limits_first_and_random(tmp_path):
    texts = [f"{i}" for i in range(1000)]
    built = build(
        tmp_path, source(tmp_path, "a", texts, limit=30, sample="first"), source(tmp_path, "b", texts, limit=50)
    )
    by_source = Counter(built.sources.tolist())
    assert by_source == {0: 30, 1: 50}
    assert everything(built)[:30] == texts[:30]
    drawn = [int(text) for text in everything(built)[30:]]
    assert drawn == sorted(set(drawn)) and min(drawn) >= 30 and 300 < np.mean(drawn) < 700
    assert built.report["sources"][0]["read"] == 30
    assert built.report["sources"][1]["left_out"] == 1000 - 30 - 50 and built.report["sources"][1]["duplicates"] == 30
    other = build_corpus(section(source(tmp_path, "b", texts, limit=50), seed=1), {}, tmp_path / "other")
    assert everything(other) != everything(built)[30:]


def test_pieces_of_long_texts_and_excluded_texts_as_a_whole(tmp_path):
    texts = ["One is here. Two is there.", "short", "", *map(str, range(9))]
    cut = source(tmp_path, "a", texts, pieces=20)
    built = build(tmp_path, cut)
    assert everything(built)[:3] == ["One is here.", "Two is there.", "short"] and built.report["empty"] == 1
    built = build(tmp_path, cut, excluded=["one is here.  two is THERE."])
    assert everything(built)[0] == "short" and built.report["excluded"] == 1
    built = build(tmp_path, cut, excluded=["One is here. Two is there."], exclude_evaluation=False)
    assert everything(built)[0] == "One is here." and built.report["excluded"] == 0


def test_first_limit_stops_reading(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"".join(b"%d\n" % i for i in range(100_000)) + b"\xff\n")
    assert len(build(tmp_path, {"path": path, "limit": 10, "sample": "first"})) == 10


def test_hold_out_is_by_seed_and_sorted(tmp_path):
    texts = [str(i) for i in range(200)]
    drawn = []
    for seed in (0, 0, 1):
        built = build_corpus(
            section(source(tmp_path, "a", texts), seed=seed, validation_rows=40), {}, tmp_path / f"corpus{len(drawn)}"
        )
        assert len(built.holdout_rows) == 40 and len(built.train_rows) == 160
        assert np.array_equal(np.sort(np.r_[built.train_rows, built.holdout_rows]), np.arange(200))
        assert (np.diff(built.holdout_rows) > 0).all() and (np.diff(built.train_rows) > 0).all()
        drawn.append(built.holdout_rows.tolist())
    assert drawn[0] == drawn[1] != drawn[2]


def test_no_rows_and_too_large_a_hold_out_say_what_to_do(tmp_path):
    with refused("corpus.sources", "3 of them empty"):
        build(tmp_path, source(tmp_path, "a", ["", " ", "\t"]))
    with refused("corpus.validation_rows", "at most 25"):
        build(tmp_path, source(tmp_path, "a", map(str, range(50))), validation_rows=26)
    with refused("corpus.sources", "1 duplicates"):
        build(tmp_path, source(tmp_path, "a", ["single", "single"]), validation_rows=None)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".corpus.lock", "a.jsonl"]


def test_a_complete_corpus_is_reopened_and_a_changed_one_rebuilt(tmp_path):
    told = []
    options = {"progress": lambda stage, rows: told.append(stage)}
    one = source(tmp_path, "a", ["a", "b", "c"])
    first = build(tmp_path, one, **options)
    assert {stage.split()[0] for stage in told} == {"reading", "removing", "comparing", "writing"}
    told.clear()
    again = build(tmp_path, one, **options)
    assert not told and again.fingerprint == first.fingerprint and everything(again) == ["a", "b", "c"]
    changed = build(tmp_path, source(tmp_path, "a", ["a", "b", "d"]), **options)
    assert told and everything(changed) == ["a", "b", "d"]


def test_a_damaged_corpus_is_built_anew(tmp_path):
    one = source(tmp_path, "a", ["a", "b", "c"])
    for name in ("texts.bin", "keys.npy", "meta.json", "train_rows.npy"):
        build(tmp_path, one)
        file = tmp_path / "corpus" / name
        file.write_bytes(file.read_bytes()[:-1])
        if name == "meta.json":
            (tmp_path / "corpus" / "meta.json").write_text("{}")
        assert everything(build(tmp_path, one)) == ["a", "b", "c"]


def test_fingerprint_changes_with_everything(tmp_path):
    one = source(tmp_path, "a", ["a", "b"])
    base = section(one)
    marks = [
        corpus_fingerprint(base, {}, ""),
        corpus_fingerprint(base, {"query": "q"}, ""),
        corpus_fingerprint(section(one, validation_rows=2), {}, ""),
        corpus_fingerprint(base, {}, excluded_fingerprint({"queries": ["x"]})),
        corpus_fingerprint(base, {}, excluded_fingerprint({"documents": ["x"]})),
        corpus_fingerprint(section(one, seed=1), {}, ""),
        corpus_fingerprint(section({**one, "limit": 1}), {}, ""),
        corpus_fingerprint(section({"builtin": "python-docstrings"}), {}, ""),
    ]
    os.utime(one["path"], ns=(1, 1))
    assert corpus_fingerprint(base, {}, "") == marks[0], "a copy is the same data"
    one["path"].write_text('{"text": "longer"}\n' * 2)
    marks.append(corpus_fingerprint(base, {}, ""))
    assert len(set(marks)) == len(marks)
    one, same = {"queries": ["a", "B  c"]}, {"queries": ["b c", "A", "a", " "]}
    assert excluded_fingerprint(one) == excluded_fingerprint(same)


VOCABULARY = [f"{first}{second}{last}" for first in "bdfglmnprst" for second in "aeiou" for last in "klmnrstx"]


def prose(seed, count, sentences=12):
    """Texts of sentences of 3 to 24 words, which share no long run."""
    random = Random(seed)
    texts = []
    for _ in range(count):
        lengths = [random.randrange(3, 25) for _ in range(sentences)]
        texts.append(" ".join(" ".join(random.choices(VOCABULARY, k=length)) + "." for length in lengths))
    return texts


def leaked(built):
    """How many held-out texts lie inside a trained text, or around one, whatever their case and white space."""
    held_out, trained = (
        [" ".join(text.casefold().split()) for text in built.texts(rows)]
        for rows in (built.holdout_rows, built.train_rows)
    )
    everything = "\0".join(trained)
    return sum(text in everything or any(part in text for part in trained) for text in held_out)


def test_no_held_out_text_is_inside_or_around_a_trained_one(tmp_path):
    """Abstracts beside their pieces, as `distill` trains on long texts: 60 of 300, with all of their pieces."""
    whole = source(tmp_path, "abstracts", prose(0, 300))
    built = build(tmp_path, whole, {**whole, "name": "pieces", "pieces": 400}, validation_rows=None)
    report = built.report
    assert (report["origins"], report["holdout_origins"]) == (300, 60) and report["holdout"] > 3 * 60
    assert leaked(built) == 0 and not np.isin(built.origins[built.holdout_rows], built.origins[built.train_rows]).any()
    pieces = built.sources[built.holdout_rows] == 1
    assert len(np.unique(built.origins[built.holdout_rows[pieces]])) == 60, "a text is held out with its pieces"
    assert validation_line(report).startswith(f"{report['holdout']:,} texts of 60 of 300 documents (a piece belongs")


def test_copies_and_variants_of_a_text_are_on_one_side(tmp_path):
    """A file that is named twice in two roles, other case, one more blank, a text inside another one's table."""
    texts = prose(1, 100, sentences=4)
    variants = [text.upper() if number % 2 else text.replace(" ", "  ") for number, text in enumerate(texts)]
    sources = (
        source(tmp_path, "a", texts, role="query"),
        source(tmp_path, "b", texts),
        source(tmp_path, "c", variants),
    )
    built = build(tmp_path, *sources, prompts={"query": "q: "}, validation_rows=None)
    assert built.report["kept"] == 300 and built.report["origins"] == 100 and leaked(built) == 0
    assert built.report["holdout_origins"] == 20 and len(built.holdout_rows) == 60
    asked = build(tmp_path, *sources, prompts={"query": "q: "}, validation_rows=50)
    assert len(asked.holdout_rows) == 51, "whole origins, at least as many rows as stated"


def test_chunks_that_overlap_and_rows_of_one_document_are_on_one_side(tmp_path):
    articles, chunks = [], []
    for number, article in enumerate(prose(2, 120, sentences=20)):
        words = article.split()
        for start in range(0, len(words) - 60, 40):
            articles.append(number)
            chunks.append(" ".join(words[start : start + 60]))
    overlapping = build(tmp_path, source(tmp_path, "chunks", chunks), validation_rows=None)
    assert overlapping.report["origins"] == 120 and leaked(overlapping) == 0
    # Every second chunk has no word in common with the others of its article: a column tells
    path = tmp_path / "apart.jsonl"
    rows = [{"text": chunk, "doc_id": number} for number, chunk in list(zip(articles, chunks, strict=True))[::2]]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    apart = build(tmp_path, {"path": path}, validation_rows=None)
    number_of = {row["text"]: row["doc_id"] for row in rows}
    held_out, trained = (
        {number_of[text] for text in apart.texts(rows)} for rows in (apart.holdout_rows, apart.train_rows)
    )
    assert apart.report["origins"] == 120 and not held_out & trained and len(held_out) == 24
    assert "the column doc_id names a text's document" in validation_line(apart.report)
    path.write_text("\n".join(json.dumps({"book": row["doc_id"], "text": row["text"]}) for row in rows))
    stated = build(tmp_path, {"path": path, "origin": "book"}, validation_rows=None)
    assert np.array_equal(stated.origins, apart.origins)
    with refused("corpus.sources.0.origin", "no column 'boot'; found: book, text"):
        build(tmp_path, {"path": path, "origin": "boot"})


@pytest.mark.parametrize(("values", "count"), [(3, 90), (12, 1300)])
def test_a_column_of_few_values_names_no_documents_unless_it_is_stated(tmp_path, values, count):
    """It says from which data sets the texts are, of a few or of many texts each."""
    path = tmp_path / "a.jsonl"
    texts = prose(3, count, sentences=3)
    path.write_text("\n".join(json.dumps({"text": t, "source": f"web{n % values}"}) for n, t in enumerate(texts)))
    found = build(tmp_path, {"path": path}, validation_rows=None)
    assert found.report["origins"] == count and found.report["origins_by"] == []
    stated = build(tmp_path, {"path": path, "origin": "source"}, validation_rows=None)
    assert stated.report["origins"] == values and len(stated.holdout_rows) >= count // values


def test_a_header_on_every_text_joins_none_of_them(tmp_path):
    header, footer = prose(4, 2, sentences=4)
    texts = [f"{header}\n{text}\n{footer}" for text in prose(5, 200, sentences=5)]
    built = build(tmp_path, source(tmp_path, "a", texts), validation_rows=None)
    assert built.report["origins"] == 200 and built.report["holdout_origins"] == 40
    # The header itself is in all of them: it is trained on
    alone = build(tmp_path, source(tmp_path, "a", [header, *texts, footer]), validation_rows=None)
    assert not {header, footer} & set(alone.texts(alone.holdout_rows))


def test_texts_of_one_document_alone_are_validated_with_a_word_on_it(tmp_path):
    words = prose(6, 1, sentences=400)[0].split()
    chunks = [" ".join(words[start : start + 60]) for start in range(0, len(words) - 60, 30)]
    built = build(tmp_path, source(tmp_path, "handbook", chunks), validation_rows=None)
    assert len(built.holdout_rows) >= 10 and "All texts are of one document" in validation_line(built.report)
    tested = {"stored texts": chunks[:20]}
    built = build(tmp_path, source(tmp_path, "handbook", chunks), validation_rows=None, excluded=tested)
    assert everything(built) == chunks[20:], "what is tested is left out, text by text"


def test_an_origin_that_is_too_large_is_trained_on(tmp_path):
    book = " ".join(prose(7, 1, sentences=600))
    cut = source(tmp_path, "book", [book], pieces=100), source(tmp_path, "notes", prose(8, 30, sentences=2))
    built = build(tmp_path, *cut, validation_rows=None)
    assert (built.sources[built.holdout_rows] == 1).all() and len(built.holdout_rows) >= 10


def test_what_has_one_origin_with_a_test_text_is_left_out(tmp_path):
    """A piece of it, a text around it, a row of its document: none is trained on."""
    texts = prose(9, 40)
    quoting = f"Quoted: {texts[0]} Said."
    path = tmp_path / "a.jsonl"
    rows = [{"text": text, "doc_id": number // 2} for number, text in enumerate(texts)]
    path.write_text("\n".join(json.dumps(row) for row in [*rows, {"text": quoting, "doc_id": "other"}]))
    built = build(tmp_path, {"path": path}, {"path": path, "pieces": 300}, excluded={"stored texts": [texts[0]]})
    assert built.report["excluded_as"]["stored texts"] == built.report["excluded"] > 3
    kept = "\0".join(everything(built))
    assert not any(text[:50] in kept or text[-50:] in kept for text in (*texts[:2], quoting)) and texts[2] in kept


@pytest.mark.parametrize(
    ("texts", "rows"),
    [(2, 1), (3, 1), (19, 9), (20, 10), (50, 10), (200, 10), (400, 20), (2_000, 100), (81_920, 4_096), (10**7, 4_096)],
)
def test_the_validation_part_follows_from_the_number_of_texts(texts, rows):
    """One in 20, at least 10, at most half and 4,096; a number of one's own stands, up to half."""
    assert validation_size(None, texts) == rows
    assert validation_size(1, texts) == 1 and validation_size(texts // 2, texts) == texts // 2
    with refused("", f"{rows:,} are taken"):
        validation_size(texts // 2 + 1, texts)


def test_excluded_texts_are_counted_by_what_they_are(tmp_path):
    texts = [*"abcdefgh", "Query  One", "query one"]
    excluded = {"queries": ["query one"], "documents": ["A", "b", "query one", "not there"]}
    built = build(tmp_path, source(tmp_path, "a", texts), excluded=excluded, exclude_evaluation="documents")
    assert everything(built) == [*"cdefgh"]
    assert built.report["excluded"] == 4 and built.report["excluded_as"] == {"queries": 2, "documents": 2}
    expected = "4 in the evaluation suite (queries: 2, documents: 2; corpus.exclude_evaluation)"
    assert excluded_line(built.report) == expected
    same = {"queries": ["query one", "a"], "documents": ["A"]}
    again = build(tmp_path, source(tmp_path, "a", texts), excluded=same)
    assert everything(again) == [*"bcdefgh"] and again.report["excluded_as"] == {"queries": 3}


@pytest.mark.parametrize(
    ("value", "excluded", "words"),
    [
        ("documents", {"documents": "ab"}, "corpus.exclude_evaluation=true;"),
        ("documents", {"queries": "b", "documents": "a"}, "queries or documents"),
        (True, {"queries": "ab"}, "corpus.exclude_evaluation=false;"),
    ],
)
def test_a_corpus_of_evaluation_texts_alone_says_so(tmp_path, value, excluded, words):
    with refused("corpus.exclude_evaluation", words):
        build(tmp_path, source(tmp_path, "a", ["a", "b", ""]), excluded=excluded, exclude_evaluation=value)
    partly = source(tmp_path, "a", ["a", "b", ""]), source(tmp_path, "b", ["c"])
    with refused("corpus.sources", "2 in the evaluation suite"):
        build(tmp_path, *partly, excluded=excluded, exclude_evaluation=value)


def test_exclusion_can_be_switched_off(tmp_path):
    built = build(tmp_path, source(tmp_path, "a", ["a", "b"]), excluded=["a"], exclude_evaluation=False)
    assert everything(built) == ["a", "b"]


@pytest.mark.parametrize("name", ["texts.bin", "keys.npy"])
def test_a_full_disk_is_named_and_nothing_is_left(tmp_path, monkeypatch, name):
    def full(*arguments, **columns):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(columns.Column if name == "keys.npy" else selection.TextWriter, "append", full)
    with refused("cache.root", "MB were needed"):
        build(tmp_path, source(tmp_path, "a", ["a", "b"]))
    assert sorted(path.name for path in tmp_path.iterdir()) == [".corpus.lock", "a.jsonl"]


def test_a_source_that_breaks_leaves_the_older_corpus(tmp_path):
    one = source(tmp_path, "a", ["a", "b"])
    build(tmp_path, one)
    one["path"].write_text("{broken\n")
    with pytest.raises(DistilvecError, match=r"^\[corpus\.sources\.0\.path\] .*line 1: "):
        build(tmp_path, one)
    assert everything(Corpus(tmp_path / "corpus")) == ["a", "b"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".corpus.lock", "a.jsonl", "corpus"]


def test_text_key_is_stable():
    assert text_key("query: ", "hello").hex() == text_key("query: ", "hello").hex()
    assert len({text_key("", "ab"), text_key("a", "b"), text_key("ab", ""), text_key("", "ab ")}) == 4
    assert len(text_key("", "\ud800")) == 16


def anonymous_memory():
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["RssAnon"].split()[0]) * 1024


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_memory_grows_by_the_numbers_of_origins_alone(tmp_path):
    peaks = []
    for rows in (20_000, 300_000):
        path = tmp_path / f"{rows}.jsonl.gz"
        with gzip.open(path, "wt", compresslevel=1) as file:
            file.writelines(
                f'{{"text": "row {i % (rows - 5)} of a corpus with words that make it a sentence"}}\n'
                for i in range(rows)
            )
        seen: list[int] = []
        built = build_corpus(
            section({"path": path}),
            {},
            tmp_path / str(rows),
            {},
            lambda *_, seen=seen: seen.append(anonymous_memory()),
        )
        assert built.report["duplicates"] == 5
        peaks.append(max(seen))
    assert peaks[1] < peaks[0] + 64 * 280_000


def test_an_address_is_looked_at_once_to_know_its_files_and_once_to_read_them(tmp_path, monkeypatch):
    listed, download = [], Remote.download

    def noted(self, accepts):
        listed.append(self.address)
        return download(self, accepts)

    monkeypatch.setattr(Remote, "download", noted)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("\n".join(f"text {number}" for number in range(30)))
    source = {"url": f"file://{tmp_path}/texts"}
    assert len(build_corpus(section(source), {}, tmp_path / "corpus")) == 30 and len(listed) == 2
    build_corpus(section(source), {}, tmp_path / "corpus")
    assert len(listed) == 3, "a corpus that is there needs no text"


def test_a_file_that_grows_while_it_is_read_is_not_stored_as_the_earlier_one(tmp_path, monkeypatch):
    path = tmp_path / "texts.txt"
    path.write_text("".join(f"text {number}\n" for number in range(100)))
    section = CorpusSection(sources=[SourceSection(path=path)])
    read = corpus_module.read_texts

    def growing(source, position):
        with path.open("a") as file:
            file.writelines(f"late {number}\n" for number in range(100))
        return read(source, position)

    with monkeypatch.context() as patched, refused("corpus.sources", "changed"):
        patched.setattr(corpus_module, "read_texts", growing)
        build_corpus(section, {}, tmp_path / "corpus")
    assert not (tmp_path / "corpus").exists()
    assert len(build_corpus(section, {}, tmp_path / "corpus")) == 200
