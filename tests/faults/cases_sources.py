"""Sources of texts that are damaged, odd or missing."""

from __future__ import annotations

import gzip

from samples import make_texts

from faults.harness import Outcome, World, case


def source(name: str, content: bytes, key: str | None = "corpus.sources.0.path", says: str = "") -> None:
    """A case whose corpus is one file with this content."""

    @case(f"source-{name}", key=key)
    def _(world: World) -> list[str]:
        def check(found: Outcome) -> None:
            assert says in found.err, found.err

        world.checks.append(check)
        return ["cache", world.recipe(corpus__sources=[{"path": world.file(name, content)}])]


GOOD = "\n".join(make_texts(200)).encode() + b"\n"

source("nul.txt", GOOD + b"bad \0 line\n")
source("utf16.txt", GOOD.decode().encode("utf-16-le"))
source("latin1.txt", GOOD + b"caf\xe9\n")
source("binary.txt", bytes(range(256)) * 20)
source("nul.jsonl", b'{"text": "bad \\u0000 text"}\n')
source(
    "surrogate.jsonl",
    b"".join(b'{"text": "half \\ud800 %d"}\n' % row for row in range(200)),
    None,
    "200 texts with halves of surrogate",
)
source("number.jsonl", b'{"text": 5}\n', "corpus.sources.0.column")
source("list.jsonl", b'["text"]\n')
source("broken.jsonl", b'{"text": "a"\n')
source("cut.txt.gz", gzip.compress(GOOD)[:-200])
source("plain.txt.gz", GOOD)
source("quotes.csv", b'text\n"open\n' + GOOD)
source("fields.csv", b"text,label\na,b,c\n")
source("fake.parquet", GOOD)
source("unknown.xyz", GOOD)
source("empty.txt", b"", "corpus.sources")


@case("source-missing", key="corpus.sources.1.path")
def _(world: World) -> list[str]:
    return ["cache", world.recipe(corpus__sources=[{"path": str(world.texts)}, {"path": "absent.txt"}])]


@case("source-without-a-column", key="corpus.sources.0.column")
def _(world: World) -> list[str]:
    return ["cache", world.recipe(corpus__sources=[{"path": world.file("a.csv", "bodies,title\na,b\n")}])]
