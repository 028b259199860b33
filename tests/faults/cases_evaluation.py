"""`evaluate` and `speed`: data files that cannot be used, options that cannot be met, outputs that cannot be written."""  # noqa: E501

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path

from faults.harness import Outcome, World, case

STS = "sentence1,sentence2,score\nriver,stone,1\nbridge,river,3\nstone,stone,5\n"


def evaluate(
    world: World, data: str, content: str | bytes, kind: str = "sts", *options: str, more: str = ""
) -> list[str]:
    """The command line for a suite of one task with this data file."""
    world.file(data, content)
    suite = world.file("suite.yaml", f"- {{name: mini, type: {kind}, path: {data}{more}}}\n")
    return ["evaluate", str(world.model), "--suite", suite, *options]


def a_suite(world: World) -> list[str]:
    """The command line for a suite that can be scored."""
    return evaluate(world, "sts.csv", STS)


def never_loads(world: World) -> None:
    """The refusal must come before a model is loaded."""
    import distilvec.teachers.open as door
    import distilvec.verbs.check.check  # noqa: F401 - no module is imported later, with the function below

    known = door.load_embedder

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a model was loaded before the refusal")

    door.load_embedder = refuse  # type: ignore[assignment]
    world.undo.append(lambda: setattr(door, "load_embedder", known))


# -- data files: one line with the task, the file and the line; the exit status is that of scores that are missing
# -------

DATA: dict[str, tuple[str, str | bytes, str]] = {
    "sts-column-missing": ("sts.csv", "sentence1,score\na,1\nb,2\n", "sts"),
    "sts-score-is-text": ("sts.csv", STS.replace("3", "high"), "sts"),
    "sts-score-is-nan": ("sts.csv", STS.replace("3", "nan"), "sts"),
    "sts-scores-all-equal": ("sts.csv", "sentence1,sentence2,score\na,b,1\nc,d,1\n", "sts"),
    "sts-two-rows": ("sts.csv", "sentence1,sentence2,score\na,b,1\nc,d,2\n", "sts"),
    "data-file-empty": ("sts.csv", "", "sts"),
    "data-file-header-only": ("sts.csv", "sentence1,sentence2,score\n", "sts"),
    "data-column-twice": ("sts.csv", "sentence1,sentence2,score,score\na,b,1,2\nc,d,2,1\n", "sts"),
    "data-gzip-damaged": ("sts.csv.gz", gzip.compress(STS.encode())[:-12], "sts"),
    "data-parquet-damaged": ("sts.parquet", b"PAR1" + bytes(64) + b"PAR1", "sts"),
    "data-latin-1": ("sts.csv", STS.replace("river", "fl\xfc").encode("latin-1"), "sts"),
    "data-lone-surrogate": ("sts.jsonl", '{"sentence1": "a\\ud800", "sentence2": "b", "score": 1}\n', "sts"),
    "data-json-nested-too-deep": ("sts.jsonl", "[" * 50_000 + "\n", "sts"),
    "data-one-row-without-split": (
        "sts.jsonl",
        '{"split": "test", "sentence1": "a", "sentence2": "b", "score": 1}\n{"sentence1": "c", "sentence2": "d", "score": 2}\n',  # noqa: E501
        "sts",
    ),
    "pairs-of-one-kind": ("pairs.csv", "sentence1,sentence2,label\na,b,0\nc,d,0\n", "pair"),
    "classification-of-one-class": ("classes.csv", "split,text,label\ntrain,a,x\ntest,b,x\n", "classification"),
    "classification-label-missing": (
        "classes.csv",
        "split,text,label\ntrain,a,x\ntrain,c,y\ntest,b,\n",
        "classification",
    ),
    "retrieval-is-a-file": ("corpus.jsonl", '{"id": 1, "text": "a"}\n', "retrieval"),
}


def _data(name: str) -> Callable[[World], list[str]]:
    def prepare(world: World) -> list[str]:
        data, content, kind = DATA[name]
        world.checks.append(lambda found: _names_the_file(found, data))
        return evaluate(world, data, content, kind)

    return prepare


def _names_the_file(found: Outcome, data: str) -> None:
    assert "[suite] task 'mini'" in found.err, found.err
    assert data in found.err or "pairs" in found.err, found.err


for _name in DATA:
    case(_name, key="suite", status=1)(_data(_name))


@case("data-file-is-a-folder", key="suite", status=1)
def _(world: World) -> list[str]:
    (world.root / "sts.csv").mkdir()
    suite = world.file("suite.yaml", "- {name: mini, type: sts, path: sts.csv}\n")
    return ["evaluate", str(world.model), "--suite", suite]


def retrieval(world: World, qrels: str) -> list[str]:
    """The command line for a retrieval task of two documents with these judgements."""
    world.file("find/corpus.jsonl", '{"id": "d1", "text": "river"}\n{"id": "d2", "text": "stone"}\n')
    world.file("find/queries.jsonl", '{"id": "q1", "text": "river"}\n')
    world.file("find/qrels.tsv", "query-id\tcorpus-id\tscore\n" + qrels)
    return [
        "evaluate",
        str(world.model),
        "--suite",
        world.file("suite.yaml", "- {name: find, type: retrieval, path: find}\n"),
    ]


@case("retrieval-nothing-relevant", key="suite", status=1)
def _(world: World) -> list[str]:
    return retrieval(world, "q1\td1\t0\n")


@case("retrieval-score-is-text", key="suite", status=1)
def _(world: World) -> list[str]:
    return retrieval(world, "q1\td1\tyes\n")


@case("retrieval-judged-twice", key="suite", status=1)
def _(world: World) -> list[str]:
    world.checks.append(lambda found: _scored_and_told(found))
    return retrieval(world, "q1\td1\t1\nq1\td1\t2\n")


def _scored_and_told(found: Outcome) -> None:
    assert "repeat with different scores" in found.err and "100.00" in found.out


# -- options ---------------------------------------------------------------------------------------------------------


@case("evaluate-nothing", key="--suite")
def _(world: World) -> list[str]:
    return ["evaluate", str(world.model)]


@case("evaluate-unknown-protocol", key="--protocol")
def _(world: World) -> list[str]:
    never_loads(world)
    return [*a_suite(world), "--protocol", "mtebb"]


@case("evaluate-teacher-is-an-absent-table", key="--teacher")
def _(world: World) -> list[str]:
    never_loads(world)
    return [*a_suite(world), "--teacher", "vectors.parquet"]


@case("evaluate-teacher-is-a-table-and-the-tasks-are-of-mteb", key="--teacher")
def _(world: World) -> list[str]:
    never_loads(world)
    return ["evaluate", str(world.model), "--mteb", "STSBenchmark", "--teacher", "vectors.parquet"]


@case("index-with-a-password", key="index")
def _(world: World) -> list[str]:
    never_loads(world)
    return ["check", str(world.model), "postgresql://me:word@host/db/table"]


@case("index-with-a-misspelt-setting", key="index")
def _(world: World) -> list[str]:
    never_loads(world)
    return ["check", str(world.model), "postgresql://me@host/db/table?sslpasswort=word"]


@case("index-of-another-store", key="index")
def _(world: World) -> list[str]:
    never_loads(world)
    world.file("pinecone/vectors.bin")
    return ["check", str(world.model), "pinecone"]


@case("index-of-an-unknown-kind", key="index")
def _(world: World) -> list[str]:
    return ["check", str(world.model), "ftp://host/table"]


@case("index-that-is-absent", key="index")
def _(world: World) -> list[str]:
    return ["check", str(world.model), "absent.parquet"]


@case("index-column-without-a-name", key="--column")
def _(world: World) -> list[str]:
    return ["check", str(world.model), "absent.parquet", "--column", "text"]


@case("index-of-an-unknown-column", key="--column")
def _(world: World) -> list[str]:
    return ["check", str(world.model), "absent.parquet", "--column", "body=text"]


@case("evaluate-teacher-absent", key="--teacher")
def _(world: World) -> list[str]:
    return [*a_suite(world), "--teacher", "./absent"]


@case("evaluate-model-absent", key="model")
def _(world: World) -> list[str]:
    arguments = a_suite(world)
    return [arguments[0], "./absent", *arguments[2:]]


@case("evaluate-mteb-not-installed", key="--mteb")
def _(world: World) -> list[str]:
    never_loads(world)
    known = sys.modules.get("mteb")
    sys.modules["mteb"] = None  # type: ignore[assignment]
    world.undo.append(lambda: sys.modules.pop("mteb") if known is None else sys.modules.update(mteb=known))
    return ["evaluate", str(world.model), "--mteb", "STSBenchmark"]


@case("evaluate-mteb-data-absent", key="--data")
def _(world: World) -> list[str]:
    never_loads(world)
    return ["evaluate", str(world.model), "--mteb", "STSBenchmark", "--data", "absent"]


@case("evaluate-json-is-a-folder", key="--json")
def _(world: World) -> list[str]:
    never_loads(world)
    return [*a_suite(world), "--json", str(world.root / "teacher")]


@case("evaluate-json-is-the-suite", key="--json")
def _(world: World) -> list[str]:
    never_loads(world)
    return [*a_suite(world), "--json", str(world.root / "suite.yaml")]


@case("speed-seconds-negative", key="--seconds")
def _(world: World) -> list[str]:
    never_loads(world)
    return ["speed", str(world.model), "--seconds", "-1"]


@case("speed-seconds-nan", key="--seconds")
def _(world: World) -> list[str]:
    never_loads(world)
    return ["speed", str(world.model), "--seconds", "nan"]


@case("speed-model-twice", key="models")
def _(world: World) -> list[str]:
    never_loads(world)
    return ["speed", str(world.model), str(world.model)]


@case("speed-model-absent", key="models")
def _(world: World) -> list[str]:
    return ["speed", "./absent"]


@case("speed-json-below-a-file", key="--json")
def _(world: World) -> list[str]:
    never_loads(world)
    world.file("notes")
    return ["speed", str(world.model), "--json", "notes/speed.json"]


@case("recipes-unknown-action", key=None, status=2)
def _(world: World) -> list[str]:
    return ["recipes", "hide"]


@case("a-task-with-a-hostile-name", key=None)
def _(world: World) -> list[str]:
    name = "[red]x[/red] :smile: | `y`"
    suite = world.file("suite.yaml", f"- {{name: {json.dumps(name)}, type: sts, path: sts.csv}}\n")
    world.file("sts.csv", STS)
    world.checks.append(lambda found: _stays_text(found, world.root / "out.json", name))
    return ["evaluate", str(world.model), "--suite", suite, "--json", "out.json"]


def _stays_text(found: Outcome, file: Path, name: str) -> None:
    assert "[red]x[/red] :smile:" in found.out
    assert json.loads(file.read_text(encoding="utf-8"))["student"][0]["task"] == name
