"""The origin of texts: which of them come from one text, so that a split never has parts of it on both sides.

Texts have one origin if they are cut from one text, if a column of their table names one document for them, or if they
share a run of 20 words, as chunks that overlap do. Case and punctuation do not count, so copies of a text are one
origin, too. Of scripts without spaces a letter is half a word.

Runs are found by winnowing (Schleimer, Wilkerson and Aiken, SIGMOD 2003): of every 5 neighbouring runs of 16 words the
one with the smallest hash is stored, so that two texts with 20 words in a row in common have stored the same one. A run
that many origins have is a licence, a signature or a form, and no evidence.
"""

from __future__ import annotations

import hashlib
import tempfile
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from distilvec.core.artifacts import open_column
from distilvec.data import corpus_files
from distilvec.data.corpus_files import Mask, Progress, Rows
from distilvec.data.task_rows import loose_text

Hashes = npt.NDArray[np.uint64]

SHARED = 20  # words in a row that make two texts one origin
NEIGHBOURS = 5  # of so many runs one is stored
COMMON_SHARE, FEWEST_COMMON, MOST_COMMON = 100, 10, 1000  # a run of more origins than one in a hundred says nothing
FEWEST_DOCUMENTS, TEXTS_A_DOCUMENT = 10, 100  # of a column that is found by its name: more texts a value are data sets
COLUMN = "text_origin"  # of our own tables
DOCSTRING = "docstring"  # what tells the origins of the built-in texts
# Columns of tables that name the document of a row: LlamaIndex, LangChain, Haystack, readers of files
COLUMNS = (COLUMN, "doc_id", "document_id", "ref_doc_id", "parent_id", "source", "file_path", "url")

_WORD_UNITS = 2  # a letter of a script without spaces has 1
_RUN_UNITS = (SHARED - NEIGHBOURS + 1) * _WORD_UNITS
_JOINED, _ALONE, _MARK = 1, 2, 3  # letters and digits, letters of scripts without spaces, marks on letters
_SCRIPTS_WITHOUT_SPACES = (  # Thai, Lao; Burmese; Khmer; kana; ideographs
    (0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF), (0x31F0, 0x31FF), (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0xFF66, 0xFF9F), (0x20000, 0x3FFFF),
)  # fmt: skip
_BASE = 0x9E3779B97F4A7C15  # of the rolling hash modulo 2^64: odd, so that it can be divided by
_WORD_START = np.uint64(0xD1B54A32D192ED03)
_TEXTS = 8192  # read together
_CHARACTERS = 1 << 17  # of texts whose runs are found together


@dataclass(frozen=True)
class Origins:
    """The origin of every text: `numbers` int64 [texts], from 0.

    `is_common` bool [texts]: texts of nothing but runs that many origins have. Each is an origin of its own, which
    must be trained on: what it says is in many texts.
    """

    numbers: Rows
    is_common: Mask


def origin_numbers(texts: Iterable[str], documents: Iterable[object] | None = None) -> Rows:
    """Return the number of each text's origin, int64 [texts]: equal for texts that have one.

    Args:
        documents: for each text the name of the document that it is a part of; None where none is known

    Short texts are one origin if all of their words are the same.
    """
    with tempfile.TemporaryDirectory(prefix="distilvec-origins-") as folder, ExitStack() as stack:
        writer = RunWriter(Path(folder), stack)
        keys: list[int] = []
        named = zip(texts, repeat(None)) if documents is None else zip(texts, documents, strict=True)
        while batch := list(islice(named, _TEXTS)):
            keys += [copy_key(text) if document is None else document_key(document) for text, document in batch]
            writer.append([text for text, _ in batch])
        stack.close()
        return find_origins(Path(folder), np.array(keys, dtype=np.uint64)).numbers


def names_documents(values: int, texts: int) -> bool:
    """Whether a column that is found by its name has the documents of so many texts, by its number of values.

    A column such as `source` of few values says from which data set a text is: as documents they would be a handful of
    origins, and the validation part one data set.
    """
    return values >= max(FEWEST_DOCUMENTS, texts / TEXTS_A_DOCUMENT)


def document_key(document: object) -> int:
    """Return 64 bits that name a document."""
    content = str(document).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def copy_key(text: str) -> int:
    """Return 64 bits that name a text, the same whatever its case and white space."""
    return document_key(f"text\0{loose_text(text)}")


def draw_origins(order: Rows, sizes: Rows, rows: int, origins: int, most: int) -> Mask:
    """Which origins are drawn, bool [origins]: in this order, until there are so many rows and so many origins.

    One whose rows, of `sizes`, would make them more than `most` is passed over. If all are too large, it is the
    smallest one, unless it has more than half of the rows: then none is drawn.
    """
    is_drawn = np.zeros(len(sizes), dtype=np.bool_)
    drawn_rows = drawn_origins = 0
    for origin in map(int, order):
        if drawn_rows >= rows and drawn_origins >= origins:
            break
        if drawn_rows + sizes[origin] <= most:
            is_drawn[origin] = True
            drawn_rows += int(sizes[origin])
            drawn_origins += 1
    if not drawn_origins and len(order):
        smallest = order[np.argmin(sizes[order])]
        is_drawn[smallest] = 2 * sizes[smallest] <= sizes.sum()
    return is_drawn


def spread_over_origins(rows: Rows, origins: Rows, count: int) -> Rows:
    """At most `count` of the rows, in their order: first one of each origin, then a second one, and so on.

    `origins` [rows] are those of the rows.
    """
    order = np.argsort(origins, kind="stable")
    turns = np.empty(len(rows), dtype=np.int64)
    turns[order] = np.arange(len(rows)) - _bounds(origins[order])[0]
    return rows[np.sort(np.argsort(turns, kind="stable")[:count])]


class RunWriter:
    """Writes the runs of texts, which `find_origins` compares."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._columns = corpus_files.open_columns(folder, stack, runs=np.uint64, run_rows=np.int64, run_words=np.int64)
        self._rows = 0

    def append(self, texts: list[str]) -> None:
        """Add texts."""
        for some in _groups(texts):
            runs, rows, words = stored_runs(some)
            self._columns["runs"].append(runs)
            self._columns["run_rows"].append(rows + self._rows)
            self._columns["run_words"].append(words)
            self._rows += len(some)


def find_origins(folder: Path, keys: Hashes, progress: Progress = lambda stage, rows: None) -> Origins:
    """Find the origins of the texts whose runs a RunWriter wrote into `folder`.

    `keys` uint64 [texts] are equal for texts that are known to have one origin. Runs are compared part by part, so that
    a part at a time is in memory.
    """
    # a wrong argument is refused before scipy is imported
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    runs: Hashes = open_column(folder / "runs.npy")
    run_rows: Rows = open_column(folder / "run_rows.npy")
    run_words: Rows = open_column(folder / "run_words.npy")
    texts = len(keys)
    numbers = _first_of_equal(keys)  # of an origin the number of its first text
    stated = int(np.count_nonzero(numbers == np.arange(texts)))
    most = int(np.clip(stated // COMMON_SHARE, FEWEST_COMMON, MOST_COMMON))

    is_common_run = np.zeros(len(runs), dtype=np.bool_)
    for entries, _ in corpus_files.parts_of(runs):
        entries = entries[_is_repeated(runs[entries], most)]
        group = np.unique(runs[entries], return_inverse=True)[1]
        origins = numbers[run_rows[entries]]
        firsts = np.unique(group * texts + origins) // max(texts, 1)
        is_common_run[entries] = np.bincount(firsts)[group] > most
    is_evidence = ~is_common_run
    if is_common_run.any():
        _drop_neighbours(is_evidence, np.flatnonzero(is_common_run), run_rows, run_words)

    links = [np.empty(0, dtype=np.int64)]  # the numbers of two origins as one
    for entries, share in corpus_files.parts_of(runs):
        entries = entries[is_evidence[entries]]
        entries = entries[_is_repeated(runs[entries])]
        origins = numbers[run_rows[entries]]
        order = np.lexsort((origins, runs[entries]))
        values, origins = runs[entries][order], origins[order]
        # Each origin of a run is linked to the one before it
        second = 1 + np.flatnonzero((values[1:] == values[:-1]) & (origins[1:] != origins[:-1]))
        links.append(np.unique(origins[second - 1] * texts + origins[second]))
        progress("comparing texts", int(share * texts))
    linked = np.stack(np.divmod(np.unique(np.concatenate(links)), max(texts, 1)))
    origins, places = np.unique(linked, return_inverse=True)
    first, second = places.reshape(linked.shape)
    graph = coo_matrix((np.ones(len(first), dtype=np.int8), (first, second)), shape=(len(origins), len(origins)))
    groups = connected_components(graph, directed=False)[1]
    joined = np.arange(texts)
    joined[origins] = origins[np.unique(groups, return_index=True)[1]][groups]
    numbers = joined[numbers]
    del joined

    is_common = np.zeros(texts, dtype=np.bool_)
    is_common[run_rows[is_common_run]] = True
    is_common[run_rows[~is_common_run]] = False
    numbers[is_common] = texts + np.arange(int(is_common.sum()))
    return Origins(_by_appearance(numbers), is_common)


def _first_of_equal(values: Hashes) -> Rows:
    """The place of the first of the values that are equal to each one, int64 [values].

    Few are equal, so that those alone are numbered: a sorted copy shows which.
    """
    firsts = np.arange(len(values))
    places = np.flatnonzero(_is_repeated(values))
    _, first, group = np.unique(values[places], return_index=True, return_inverse=True)
    firsts[places] = places[first][group]
    return firsts


def _is_repeated(values: Hashes, times: int = 1) -> Mask:
    """Which of the values are there more than so many times, bool [values]."""
    ordered = np.sort(values)
    repeated = np.unique(ordered[times:][ordered[times:] == ordered[:-times]])
    is_repeated = np.zeros(len(values), dtype=np.bool_)
    for start in range(0, len(values) if len(repeated) else 0, corpus_files.CHUNK):
        some = values[start : start + corpus_files.CHUNK]
        places = np.minimum(np.searchsorted(repeated, some), len(repeated) - 1)
        is_repeated[start : start + len(some)] = repeated[places] == some
    return is_repeated


def _by_appearance(numbers: Rows) -> Rows:
    """The numbers as 0, 1, 2 ... in the order in which they appear, int64."""
    first = np.empty(int(numbers.max(initial=-1)) + 1, dtype=np.int64)
    first[numbers[::-1]] = np.arange(len(numbers))[::-1]  # backwards: the first of equal numbers is written last
    firsts = first[numbers]
    del first  # a number for each text of a billion
    ranks = np.cumsum(firsts == np.arange(len(firsts)))
    return ranks[firsts] - 1


def _drop_neighbours(is_evidence: Mask, common: Rows, run_rows: Rows, run_words: Rows) -> None:
    """Take away the runs that overlap a `common` one of their text: a form and the same next word."""
    for start in range(0, len(is_evidence), corpus_files.CHUNK):
        places = np.arange(start, min(start + corpus_files.CHUNK, len(is_evidence)))
        behind = np.searchsorted(common, places)
        for other in (common[np.maximum(behind - 1, 0)], common[np.minimum(behind, len(common) - 1)]):
            is_near = np.abs(run_words[places] - run_words[other]) < _RUN_UNITS // _WORD_UNITS
            is_evidence[places[is_near & (run_rows[places] == run_rows[other])]] = False


def stored_runs(texts: list[str]) -> tuple[Hashes, Rows, Rows]:
    """The hashes of some of the texts' runs of words, the number of the text of each, and of its first word there.

    The one run of a text that is shorter than a run is the whole text. Texts without a letter or digit have none.
    """
    folded = [text.casefold() for text in texts]
    codes = np.frombuffer("\n".join(folded).encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    text_of_character = np.repeat(np.arange(len(folded)), [len(text) + 1 for text in folded])[: len(codes)]
    kinds = _kinds_of(codes)
    before = np.concatenate([[0], kinds[:-1]])
    starts_word = (kinds == _ALONE) | ((kinds == _JOINED) & (before == _ALONE)) | ((kinds > 0) & (before == 0))

    # Characters of words, without what is between them, and the words' first ones
    characters = np.flatnonzero(kinds)
    is_start = starts_word[characters]
    words = np.flatnonzero(is_start)
    if not len(words):
        return np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    places = np.append(words, len(characters))
    texts_of_words = text_of_character[characters[words]]
    units = np.where(kinds[characters[words]] == _ALONE, 1, _WORD_UNITS)

    # A run ends with the text, or where it has enough units; that of a short text begins with its first word alone
    units_before = np.concatenate([[0], np.cumsum(units)])
    ends = np.searchsorted(units_before, units_before[:-1] + _RUN_UNITS)
    ends_of_texts = _bounds(texts_of_words)[1]
    is_first = np.diff(texts_of_words, prepend=-1) != 0
    run_starts = np.flatnonzero(is_first | (ends <= ends_of_texts))
    run_ends = np.minimum(ends, ends_of_texts)[run_starts]
    rows = texts_of_words[run_starts]

    # A rolling hash: the difference of two sums, moved to the beginning
    values = _mixed(codes[characters].astype(np.uint64)) + is_start * _WORD_START
    size = 1 << len(characters).bit_length()  # of few sizes, so that powers are computed once
    powers, inverses = _powers(_BASE, size), _powers(pow(_BASE, -1, 1 << 64), size)
    sums = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(values * powers[: len(values)])])
    hashes = _mixed((sums[places[run_ends]] - sums[places[run_starts]]) * inverses[places[run_starts]])
    chosen = _smallest_of_neighbours(hashes, rows)
    return hashes[chosen], rows[chosen], (run_starts - _bounds(texts_of_words)[0][run_starts])[chosen]


def _groups(texts: list[str]) -> Iterator[list[str]]:
    """The texts in groups whose arrays fit a processor's cache."""
    ends = np.cumsum([len(text) for text in texts], dtype=np.int64) // _CHARACTERS
    for places in np.split(np.arange(len(texts)), np.flatnonzero(np.diff(ends)) + 1):
        if len(places):
            yield texts[places[0] : places[-1] + 1]


def _smallest_of_neighbours(hashes: Hashes, rows: Rows) -> Rows:
    """The places of the smallest of every NEIGHBOURS hashes of one text that follow each other."""
    places = np.arange(len(rows))
    firsts, ends = _bounds(rows)
    smallest = places
    for step in range(1, NEIGHBOURS):
        other = np.minimum(places + step, ends - 1)
        smallest = np.where(hashes[other] < hashes[smallest], other, smallest)
    smallest = smallest[places <= np.maximum(firsts, ends - NEIGHBOURS)]
    return smallest[np.diff(smallest, prepend=-1) != 0]


_kinds = np.zeros(0x110000, dtype=np.uint8)  # of characters, as far as any text had them
_is_known = np.zeros(0x110000, dtype=np.bool_)


def _kinds_of(codes: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint8]:
    """The kind of every character, 0 for one between words."""
    for code in np.unique(codes[~_is_known[codes]]).tolist():
        category = unicodedata.category(chr(code))[0]
        if category == "L" and any(first <= code <= last for first, last in _SCRIPTS_WITHOUT_SPACES):
            _kinds[code] = _ALONE
        else:
            _kinds[code] = {"L": _JOINED, "N": _JOINED, "M": _MARK}.get(category, 0)
        _is_known[code] = True
    return _kinds[codes]


def _bounds(rows: Rows) -> tuple[Rows, Rows]:
    """For every entry of sorted numbers where the equal ones begin, and where they end."""
    starts = np.append(np.flatnonzero(np.diff(rows, prepend=-1)), len(rows))
    counts = np.diff(starts)
    return np.repeat(starts[:-1], counts), np.repeat(starts[1:], counts)


@lru_cache(maxsize=8)
def _powers(base: int, count: int) -> Hashes:
    """The powers of a number modulo 2^64, from 0 on."""
    factors = np.full(count, base, dtype=np.uint64)
    factors[:1] = 1
    return np.multiply.accumulate(factors)


def _mixed(values: npt.NDArray[Any]) -> Hashes:
    """Numbers whose bits all depend on each other (splitmix64)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Hashes = values ^ (values >> np.uint64(31))
    return mixed


def validation_line(report: Mapping[str, Any]) -> str:
    """Say of how many texts and origins the validation part is, and how origins were told."""
    if report["origins"] == 1:
        return (
            f"{report['holdout']:,} texts. All texts are of one document, or overlap as if they were: what is measured "
            "on some of them does not hold for others"
        )
    told = [f"the column {name} names a text's document" for name in report["origins_by"] if name != DOCSTRING]
    if DOCSTRING in report["origins_by"]:
        told += ["a passage belongs to its docstring"]
    told += [
        "a piece belongs to its text",
        f"texts that share {SHARED} words in a row, which few have, belong together",
    ]
    drawn = f"{report['holdout']:,} texts of {report['holdout_origins']:,} of {report['origins']:,} documents"
    return f"{drawn} ({'; '.join(told)})"
