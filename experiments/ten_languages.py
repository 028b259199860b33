"""multilingual-e5-small distilled into its own four layers by one call of `distilvec.distill`, on ten languages.

    python -m experiments.ten_languages E5_FOLDER --out runs/ten-languages --json results/ten_languages.json

2,000 texts of each language: 1,000 sentences of news and web pages (lingua) and 1,000 of Tatoeba, which are data of
the folder `multilingual` (docs/data.md). The rows are the share of the teacher's ten nearest neighbours of held-out
texts that the student finds, by language, before and after training. The command resumes a run that was stopped.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import distilvec
from benchmarks.markdown import markdown_table
from distilvec.core.files import write_json

# Two-letter codes of lingua's sentences, and Tatoeba's codes
LANGUAGES = {
    "ar": "ara", "de": "deu", "en": "eng", "es": "spa", "fr": "fra",
    "hi": "hin", "it": "ita", "ru": "rus", "tr": "tur", "vi": "vie",
}  # fmt: skip
OF_EACH_SOURCE = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("teacher")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/ten-languages"))
    parser.add_argument("--cache", type=Path, help="the cache of teacher vectors")
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()

    texts = arguments.out.parent / f"{arguments.out.name}-texts"
    sources = write_texts(texts)
    overrides: dict[str, Any] = {"corpus.sources": sources}
    if arguments.cache is not None:
        overrides["cache.root"] = str(arguments.cache)
    distilvec.distill(
        arguments.teacher,
        str(texts),
        layers=4,
        epochs=arguments.epochs,
        out=arguments.out,
        overrides=overrides,
    )
    run = distilvec.result(arguments.out)
    student, training = run.record.student, run.record.training
    assert run.record.overlap is not None and student is not None and training is not None
    overlap = run.record.overlap.to_json()
    rows = rows_by_language(overlap)
    for row in rows:
        print(row)
    write_json(
        arguments.json,
        {
            "teacher": Path(arguments.teacher).name,
            "parameters": student.parameters,
            "texts": len(LANGUAGES) * 2 * OF_EACH_SOURCE,
            "steps": training.steps,
            "minutes": training.minutes,
            "distance": [run.validation["untrained_distance"], run.validation["distance"]],
            "all": overlap,
            "rows": rows,
        },
    )


def table(content: Any) -> str:
    """Return a line for each language: overlap@10 among the teacher's vectors, and alone."""
    lines = []
    for row in content["rows"]:
        cells = [row["language"], str(row["queries"])]
        for share in (row["among"], row["alone"]):
            cells.append(f"{share['mean']:.2f} [{share['low']:.2f}, {share['high']:.2f}]")
        lines.append(cells)
    return markdown_table(["language", "held-out texts", "among the teacher's", "alone"], lines)


def write_texts(folder: Path) -> list[dict[str, Any]]:
    """Write a file of texts for each language; return the recipe's sources."""
    folder.mkdir(parents=True, exist_ok=True)
    sources = []
    for language, tatoeba in LANGUAGES.items():
        texts = [*lingua_texts(language), *tatoeba_texts(tatoeba)]
        path = folder / f"{language}.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
        sources.append({"path": str(path.resolve()), "name": language, "language": language})
    return sources


def lingua_texts(language: str) -> list[str]:
    """Return the sentences of news and web pages in a language."""
    texts = [row["text"] for row in multilingual("lingua_sentences.jsonl.gz") if row["lang"] == language]
    return texts[:OF_EACH_SOURCE]


def tatoeba_texts(language: str) -> list[str]:
    """Return short sentences of Tatoeba; the English ones are the translations of all pairs."""
    if language == "eng":
        texts = dict.fromkeys(row["en"] for row in multilingual("tatoeba_pairs.jsonl.gz"))
    else:
        texts = dict.fromkeys(row["text"] for row in multilingual("tatoeba_pairs.jsonl.gz") if row["lang"] == language)
    return list(texts)[:OF_EACH_SOURCE]


def multilingual(name: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file of the folder `multilingual`."""
    path = Path(os.environ.get("DISTILVEC_DATA", "data")) / "multilingual" / name
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def rows_by_language(judgement: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each language: queries, and overlap@10 of the trained student with their interval."""
    rows = []
    for source in judgement["sources"]:
        shares = source["shares"]
        rows.append(
            {
                "language": source["name"],
                "queries": source["queries"],
                "among": shares["among"],
                "alone": shares["alone"],
            }
        )
    return rows


if __name__ == "__main__":
    main()
