"""How much of each committed result's held-out part comes from texts that were trained on: the rows of that day.

    DISTILVEC_DATA=FOLDER python -m experiments.held_out_origins --json results/held_out_origins.json [RESULT ...]

Until validation was drawn by origin (data/origins.py), it was drawn by rows: of a text and its pieces, or of two files
with the same articles, some rows were trained and others held out. For each file of results/ whose overlap, distance,
learning rate or choice of a checkpoint rests on held-out rows, this builds the corpus of its recipe, draws rows by the
rule and the seed of then, and counts the held-out ones that have one origin with a trained one. Results of RESULT
alone are counted anew, others stay in the file. A result that was made again since then is no longer in the list.

Texts of the evaluation suites, which a run leaves out, stay in here: the rows are not the same ones, but drawn alike.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.markdown import markdown_table
from benchmarks.results import earlier_results
from benchmarks.texts import sample_texts
from benchmarks.time_to_quality import QUERIES, QUERY_SHARE, training_texts, write_texts
from distilvec.config import recipe as recipes
from distilvec.config.schema import CorpusSection, SourceSection
from distilvec.core.errors import DistilvecError
from distilvec.core.files import write_json
from distilvec.data.corpus import build_corpus
from distilvec.data.corpus_files import thin
from distilvec.data.origins import origin_numbers
from experiments.black_box import COUNT
from experiments.linear_layer import QUERIES as LAYER_QUERIES
from experiments.linear_layer import TEXTS, english_texts
from experiments.ten_languages import write_texts as write_languages

RECIPES = Path(__file__).parents[1] / "recipes"
MOST = 0.01  # share of held-out rows with a trained origin; results above it are to be made again

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Part:
    """Texts, their origins int64 [texts], and which of them were held out, bool [texts]."""

    origins: npt.NDArray[np.int64]
    is_held_out: Mask

    @property
    def trained_origins(self) -> int:
        """Held-out rows whose origin has a trained row."""
        trained = self.origins[~self.is_held_out]
        return int(np.isin(self.origins[self.is_held_out], trained).sum())


@dataclass(frozen=True)
class Counted:
    """A row of the file. `share` is None where the texts are not on this machine."""

    result: str
    runs: str
    texts: int = 0
    held_out: int = 0
    origin_trained: int = 0
    share: float | None = None


# -- how rows were drawn -----------------------------------------------------------------------------------------------


class Whole:
    """The texts of some sources, without limits: the number of the source and of the origin of each, int64 [texts]."""

    def __init__(self, section: CorpusSection, folder: Path) -> None:
        unlimited = [source.model_copy(update={"limit": None}) for source in section.sources]
        corpus = build_corpus(CorpusSection(sources=unlimited), {}, folder)
        self.sources = np.array(corpus.sources)
        self.origins = np.array(corpus.origins)


_wholes: dict[str, Whole] = {}  # by their sources: many results share them, and origins take minutes


def drawn_by_rows(section: CorpusSection, folder: Path) -> Part:
    """Draw the texts of each source and the validation rows as it was done before origins: each row equally likely."""
    name = str([source.model_dump(exclude={"limit", "name"}) for source in section.sources])
    if name not in _wholes:
        _wholes[name] = Whole(section, folder)
    whole = _wholes[name]
    is_in_corpus = np.ones(len(whole.sources), dtype=np.bool_)
    for position, source in enumerate(section.sources):
        first, end = np.searchsorted(whole.sources, [position, position + 1])
        count = min(source.limit or end - first, end - first)
        thin(is_in_corpus[first:end], count, np.random.Generator(np.random.PCG64([section.seed, position])))
    rows = int(np.count_nonzero(is_in_corpus))
    is_held_out = np.ones(rows, dtype=np.bool_)
    count = section.validation_rows or min(max(rows // 20, 10), 4096, rows // 2)
    thin(is_held_out, count, np.random.Generator(np.random.PCG64(section.seed)))
    return Part(whole.origins[is_in_corpus], is_held_out)


def of_recipe(name: str, variant: str | None, limit: int | None, folder: Path) -> Part:
    """Draw from the corpus of a recipe's variant; `limit`: at most so many texts of each source."""
    tree = recipes.resolved_tree(RECIPES / name, variant)["corpus"]
    for source in tree["sources"]:
        if limit is not None:
            source["limit"] = min(limit, source.get("limit") or limit)
    return drawn_by_rows(CorpusSection.model_validate(tree), folder)


def of_texts(texts: Sequence[str], validation_rows: int | None, folder: Path) -> Part:
    """Draw from a file of texts."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    source = SourceSection(path=folder / "texts.txt")
    return drawn_by_rows(CorpusSection(sources=[source], validation_rows=validation_rows), folder / "corpus")


def of_ten_languages(folder: Path) -> Part:
    """The texts of experiments/ten_languages.py."""
    sources = [SourceSection.model_validate(source) for source in write_languages(folder / "texts")]
    return drawn_by_rows(CorpusSection(sources=sources), folder / "corpus")


def of_black_box(folder: Path) -> Part:
    """The texts of experiments/black_box.py."""
    return of_texts(english_texts(COUNT), None, folder)


def of_training(folder: Path) -> Part:
    """The texts of benchmarks/training.py: three rounds of 1,280, and 16 batches of 32 held out."""
    return of_texts(sample_texts(1280 * 3 + 64 * 16)[0], 32 * 16, folder)


def of_linear_layer(folder: Path) -> Part:
    """The texts of experiments/linear_layer.py, whose last ones are the queries."""
    texts = english_texts(TEXTS)
    return Part(origin_numbers(texts), np.arange(len(texts)) >= len(texts) - LAYER_QUERIES)


def of_time_to_quality(folder: Path) -> Part:
    """The texts of benchmarks/time_to_quality.py; its first candidates are the queries."""
    write_texts(folder, 10_000, 3000)
    trained = training_texts(folder)
    queries = sample_texts(10_000 - int(QUERY_SHARE * 10_000) + 3000)[0][:QUERIES]
    return Part(origin_numbers([*queries, *trained]), np.arange(len(queries) + len(trained)) < len(queries))


# -- results and their corpora -----------------------------------------------------------------------------------------

Draw = Callable[[Path], Part]
ENGLISH_30K = partial(of_recipe, "sweeps/real_teachers.yaml", None, None)
TURKISH_12K = partial(of_recipe, "sweeps/real_teachers_turkish.yaml", None, None)
ENGLISH_230K = partial(of_recipe, "small_english.yaml", "8m", None)
ENGLISH_480K = partial(of_recipe, "small_english.yaml", "5m-narrow", None)

RESULTS: tuple[tuple[str, str, Draw], ...] = (
    ("result_students", "English, 5M, 10M, 23M", partial(of_recipe, "students.yaml", "english-23m", None)),
    ("result_students", "English, 23M, 480,000 texts", partial(of_recipe, "students.yaml", "english-23m-480k", None)),
    ("result_students", "Turkish, 20M", partial(of_recipe, "students.yaml", "turkish-20m", None)),
    ("result_students", "ten languages, 30M", partial(of_recipe, "students.yaml", "ten-languages-30m", None)),
    ("english-three-layers", "and english-two-layers", partial(of_recipe, "english.yaml", "three-layers", None)),
    ("surgery", "8m, 5m, 8m-short, 5m-short, bpe, unigram", ENGLISH_230K),
    ("surgery", "5m-narrow, 5m-narrow-4, 2m-narrow, 5m-rank, 2m-rank", ENGLISH_480K),
    ("surgery", "5m-pieces, 8m-pieces", partial(of_recipe, "small_english.yaml", "8m-pieces", None)),
    ("surgery", "17m-rank", partial(of_recipe, "small_english.yaml", "17m-rank", None)),
    ("design_rule", "English; sizes", ENGLISH_30K),
    ("design_rule", "English, 1,500 of each source", partial(of_recipe, "sweeps/real_teachers.yaml", None, 1500)),
    ("design_rule", "English, 300 of each source", partial(of_recipe, "sweeps/real_teachers.yaml", None, 300)),
    ("design_rule", "Turkish; sizes", TURKISH_12K),
    (
        "design_rule",
        "Turkish, 1,500 of each source",
        partial(of_recipe, "sweeps/real_teachers_turkish.yaml", None, 1500),
    ),
    ("design_rule", "ten languages", of_ten_languages),
    ("real_teachers", "all", ENGLISH_30K),
    ("real_teachers_turkish", "all", TURKISH_12K),
    ("levers", "all", partial(of_recipe, "sweeps/levers.yaml", None, None)),
    ("linear_layer", "all", of_linear_layer),
    ("ten_languages", "all", of_ten_languages),
    ("black_box", "all", of_black_box),
    ("time_to_quality", "all", of_time_to_quality),
    ("training", "all", of_training),
    ("shootout_sentence_level", "all", partial(of_recipe, "sweeps/sentence_level.yaml", None, None)),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = list(dict.fromkeys(name for name, *_ in RESULTS))
    parser.add_argument("results", nargs="*", metavar="RESULT", help=f"by default all: {', '.join(names)}")
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()

    earlier = earlier_results(arguments.json, {"rows": []})["rows"]
    rows = {(row["result"], row["runs"]): row for row in earlier}
    for counted in count_all(arguments.results or names):
        print(counted, flush=True)
        rows[counted.result, counted.runs] = asdict(counted)
        order = [(name, runs) for name, runs, _ in RESULTS]
        write_json(arguments.json, {"rows": [rows[key] for key in order if key in rows]})
    print(origins_table(earlier_results(arguments.json, {"rows": []})))


def count_all(names: Sequence[str]) -> Iterator[Counted]:
    """Count the rows of the results of these names, in their order."""
    chosen = sorted((result for result in RESULTS if result[0] in names), key=lambda result: names.index(result[0]))
    for name, runs, draw in chosen:
        with tempfile.TemporaryDirectory() as folder:
            part = part_of(draw, Path(folder))
        if part is None:
            yield Counted(name, runs)
            continue
        held_out = int(part.is_held_out.sum())
        share = part.trained_origins / held_out
        yield Counted(name, runs, len(part.origins), held_out, part.trained_origins, round(share, 4))


def part_of(draw: Draw, folder: Path) -> Part | None:
    """Return the texts of a result; None if they are not on this machine."""
    try:
        return draw(folder / "part")
    except (DistilvecError, FileNotFoundError) as error:
        print(f"left out: {error}")
        return None


def origins_table(content: Mapping[str, Any]) -> str:
    """Return a line for each result; those above MOST are bold."""
    lines = []
    for row in content["rows"]:
        cells = [f"`{row['result']}.json`", row["runs"]]
        if row["share"] is None:
            cells += ["", "", "not counted: texts are missing here"]
        else:
            share = f"{100 * row['share']:.1f}%"
            share = f"**{share}**" if row["share"] > MOST else share
            cells += [f"{row['texts']:,}", f"{row['held_out']:,}", share]
        lines.append(cells)
    head = ["result", "runs", "texts", "held out", "of these with a trained origin"]
    return markdown_table(head, lines, columns="llrrr")


if __name__ == "__main__":
    main()
