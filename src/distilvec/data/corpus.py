"""The training texts on disk: sources mixed, exact duplicates dropped, a validation part drawn by seed and origin.

Texts stream from their sources into one flat file with offsets; duplicates are found by partitions of 16-byte keys,
origins by partitions of runs of words (origins.py). While the corpus is built, memory grows by some numbers a row for
the origins, and not at all afterwards: every array is memory-mapped.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from distilvec.config.recipe import fingerprint
from distilvec.config.schema import CorpusSection, Role, SourceSection
from distilvec.core.artifacts import META, Column, open_column, open_or_build
from distilvec.core.batch import Text
from distilvec.core.errors import DistilvecError, about
from distilvec.core.log import log
from distilvec.data import corpus_files
from distilvec.data.corpus_files import (
    KEY_BYTES,
    Keys,
    Mask,
    Progress,
    Rows,
    as_keys,
    copy_rows,
    pieces,
    thin,
    write_columns,
    write_rows,
)
from distilvec.data.origins import (
    COLUMN,
    DOCSTRING,
    Origins,
    RunWriter,
    document_key,
    draw_origins,
    find_origins,
    names_documents,
)
from distilvec.data.readers import PACKED
from distilvec.data.sources import SourceText, read_texts, source_content, source_files
from distilvec.data.task_rows import loose_text

FORMAT = 3
MIN_VALIDATION = 10  # rows by default: one text in 20
MAX_VALIDATION = 4096
VALIDATION_SHARE = 20
VALIDATION_ORIGINS, ORIGIN_SHARE = 60, 5  # origins by default: at most one in five
LONGEST_TEXT = 1_000_000  # characters; longer texts are truncated
SEPARATOR = "\uffff"  # between two texts that are one input: no character of any text (data/examples.py)
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
PROMPTED = 8  # one in so many training texts keeps a built-in prompt, so that it changes no vector
_ROWS = 8192  # read together
LEFT_OUT = "named"  # kind of the texts of corpus.leave_out
_REPORTED = ("read", "empty", "excluded", "duplicates", "left_out", "kept", "cut")

Excluded = Mapping[str, Iterable[str]]  # texts that are not trained on, by what they are: documents, queries, ...


class Corpus:
    """Texts on disk, WITHOUT prompts, numbered from 0; made by `build_corpus`, or opened from its folder.

    `report` counts rows: read, empty, excluded, duplicates, left_out (by a random limit), kept, cut; in
    `report["excluded_as"]` the excluded ones by what they are; in `report["sources"]` the same for each source.
    `keys` [rows] are 16 bytes each (`text_key` of prompt and text), `sources` [rows] the source's number, `origins`
    [rows] the number of the origin (origins.py); `train_rows` and `holdout_rows` are sorted row numbers, of different
    origins. All are memory-mapped.
    If the corpus is `paired`, a row is two texts that are one input, stored with SEPARATOR between them.
    Errors: OSError, ValueError or KeyError for a folder that is missing, incomplete or damaged.
    """

    def __init__(self, folder: Path) -> None:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
        self.folder = folder
        self.fingerprint: str = meta["fingerprint"]
        self.report: dict[str, Any] = meta["report"]
        self.prompts: dict[Role, str] = meta["prompts"]
        self.source_names: list[str] = meta["source_names"]
        self.languages: list[str | None] = meta["languages"]
        self.roles: list[Role] = meta["roles"]
        self.paired: bool = meta.get("paired", False)
        self.offsets: Rows = open_column(folder / "offsets.npy")
        self.keys: Keys = open_column(folder / "keys.npy")
        self.sources: npt.NDArray[np.uint16] = open_column(folder / "sources.npy")
        self.origins: Rows = open_column(folder / "origins.npy")
        self.train_rows: Rows = open_column(folder / "train_rows.npy")
        self.holdout_rows: Rows = open_column(folder / "holdout_rows.npy")
        self.bare_rows: Mask | None = None  # rows that models read without their prompt; see `with_bare_texts`
        self._bytes = np.memmap(folder / "texts.bin", dtype=np.uint8, mode="r").data
        drawn = len(self.train_rows) + len(self.holdout_rows)
        if not len(self.keys) == len(self.sources) == len(self.origins) == len(self.offsets) - 1 == drawn:
            raise ValueError(f"{folder}: columns of different lengths")
        if len(self._bytes) != self.offsets[-1]:
            raise ValueError(f"{folder}: texts.bin is truncated")

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def source_labels(self) -> list[str]:
        """The language of each source; its own name where the recipe states none."""
        return [language or name for language, name in zip(self.languages, self.source_names, strict=True)]

    def stored(self, rows: Sequence[int] | Rows) -> list[str]:
        """The texts of `rows` in their order, without prompts; a pair is one text with SEPARATOR inside."""
        numbers = np.asarray(rows, dtype=np.int64)
        starts = self.offsets[numbers].tolist()
        ends = self.offsets[numbers + 1].tolist()
        return [str(self._bytes[start:end], "utf-8") for start, end in zip(starts, ends, strict=True)]

    def texts(self, rows: Sequence[int] | Rows) -> list[Text]:
        """The texts of `rows`, in their order, without prompts; pairs if the corpus is paired."""
        return self._split(self.stored(rows))

    def prompted(self, rows: Sequence[int] | Rows) -> list[Text]:
        """The texts of `rows` as models read them: with the prompt of the source's role, of a pair before the first."""
        numbers = np.asarray(rows, dtype=np.int64)
        prompts = [self.prompts.get(role, "") for role in self.roles]
        sources = self.sources[numbers].tolist()
        texts = self.stored(rows)
        prompted = [prompts[source] + text for source, text in zip(sources, texts, strict=True)]
        if self.bare_rows is not None:
            is_bare = self.bare_rows[numbers].tolist()
            prompted = [text if bare else long for text, long, bare in zip(texts, prompted, is_bare, strict=True)]
        return self._split(prompted)

    def _split(self, texts: list[str]) -> list[Text]:
        if not self.paired:
            return list(texts)
        pairs: list[Text] = []
        for text in texts:
            first, second = text.split(SEPARATOR)
            pairs.append((first, second))
        return pairs


def text_key(prompt: str, text: str) -> bytes:
    """16 bytes that name a text with its prompt prepended: the key of every teacher cache (BLAKE2b)."""
    return hashlib.blake2b(f"{prompt}\0{text}".encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES).digest()


def with_prompts(corpus: Corpus, prompts: Mapping[Role, str], root: Path) -> Corpus:
    """The corpus with another teacher's prompts: the same texts and rows, other cache keys, stored in `root`.

    The corpus itself if its prompts are these. Two rows of one text in different roles may have one key here.
    Errors: DistilvecError if no disk space is left.
    """
    needed = {role: prompts.get(role, "") for role in sorted(set(corpus.roles))}
    if all(corpus.prompts.get(role, "") == prompt for role, prompt in needed.items()):
        return corpus
    name = fingerprint(1, corpus.fingerprint, needed)
    prompt_of_source = [needed[role] for role in corpus.roles]

    def build(folder: Path) -> dict[str, Any]:
        with Column(folder / "keys.npy", f"V{KEY_BYTES}") as column:
            for start in range(0, len(corpus), _ROWS):
                rows = np.arange(start, min(start + _ROWS, len(corpus)))
                texts = zip(corpus.sources[rows].tolist(), corpus.stored(rows), strict=True)
                column.append(as_keys(text_key(prompt_of_source[source], text) for source, text in texts))
        return {"prompts": needed}

    def load(folder: Path) -> Keys:
        keys: Keys = open_column(folder / "keys.npy")
        if len(keys) != len(corpus):
            raise ValueError(f"keys.npy has {len(keys)} rows, the corpus {len(corpus)}")
        return keys

    prompted = copy.copy(corpus)
    prompted.prompts = dict(prompts)
    prompted.fingerprint = name
    prompted.keys = open_or_build(root / name, name, "list of keys", KEY_BYTES * len(corpus), build, load)
    return prompted


def with_bare_texts(corpus: Corpus) -> Corpus:
    """The corpus as a student with a built-in prompt reads it: the prompt stands before one in PROMPTED training texts.

    The rows are the same ones whatever else is in the corpus: the keys of the texts decide. Validation texts have none.
    """
    bare = copy.copy(corpus)
    is_prompted = corpus.keys.view(np.uint8).reshape(len(corpus), KEY_BYTES)[:, 0] % PROMPTED == 0
    is_prompted[corpus.holdout_rows] = False
    bare.bare_rows = ~is_prompted
    bare.fingerprint = fingerprint(1, "bare", PROMPTED, corpus.fingerprint)
    return bare


def excluded_fingerprint(excluded: Excluded) -> str:
    """A fingerprint of evaluation texts, whatever their order and repeats, for `corpus_fingerprint`."""
    return _fingerprint_of_keys(_kinds_by_key(excluded))


def corpus_fingerprint(section: CorpusSection, prompts: dict[Role, str], excluded_fingerprint: str) -> str:
    """Changes with a file (name, content), an option, a prompt, an excluded text; for docstrings with the Python."""
    return _corpus_fingerprint(section, _files(section), prompts, excluded_fingerprint)


def _corpus_fingerprint(
    section: CorpusSection, files: list[list[Path]], prompts: dict[Role, str], excluded_fingerprint: str
) -> str:
    python = sys.version if any(source.builtin for source in section.sources) else None
    settings = section.model_dump(mode="json", exclude={"exclude_evaluation"})
    content = []
    for position, (source, of_source) in enumerate(zip(section.sources, files, strict=True)):
        content.append(source_content(source, position, of_source))
    return fingerprint(FORMAT, settings, content, python, prompts, excluded_fingerprint)


def build_corpus(
    section: CorpusSection,
    prompts: dict[Role, str],
    folder: Path,
    excluded: Excluded | None = None,
    progress: Progress = lambda stage, rows: None,
) -> Corpus:
    """Build the corpus in `folder`, or reopen it if it is complete and has the same fingerprint.

    `prompts` by role (a missing role has none). Texts that have one origin with an `excluded` text are dropped, and
    counted by what that text is. `progress(stage, rows)` is called now and then.
    Errors: DistilvecError for fewer than two rows, more than half for validation, no disk space; those of `read_texts`.
    """
    excluded = (excluded or {}) if section.exclude_evaluation else {}
    excluded_kinds = _kinds_by_key(excluded)
    for name in section.leave_out:
        excluded_kinds[bytes.fromhex(name.removeprefix("t"))] = LEFT_OUT
    files = _files(section)
    name = _corpus_fingerprint(section, files, prompts, _fingerprint_of_keys(excluded_kinds))
    needed = sum(path.stat().st_size * (9 if path.suffix in PACKED else 3) for path in chain.from_iterable(files))

    def build(place: Path) -> dict[str, Any]:
        raw = place / "raw"
        ingested = _ingest(section.sources, prompts, excluded, excluded_kinds, raw, progress)
        counts = [read.count for read in ingested]
        keep = corpus_files.first_occurrences(open_column(raw / "keys.npy"), progress)
        text_origins = _find_origins(section, ingested, raw, progress)
        ends = list(accumulate(count["candidates"] for count in counts))
        for position, (source, count) in enumerate(zip(section.sources, counts, strict=True)):
            rows = slice(ends[position] - count["candidates"], ends[position])
            kinds = text_origins.kinds[rows]  # of the excluded text that a row has one origin with; 0 for the others
            keep_of_source = keep[rows]  # a view: what is left out there is left out of `keep`
            count["duplicates"] = int(np.count_nonzero(~keep_of_source & (kinds == 0)))
            for number, kind in enumerate(excluded, 1):
                excluded_rows = int(np.count_nonzero(kinds == number))
                count[kind] += excluded_rows
                count["excluded"] += excluded_rows
            keep_of_source[kinds > 0] = False
            distinct = int(np.count_nonzero(keep_of_source))
            count["kept"] = min(source.limit or distinct, distinct)
            count["left_out"] = distinct - count["kept"]
            seed = np.random.PCG64([section.seed, position])
            thin(keep_of_source, count["kept"], np.random.Generator(seed))
        totals: dict[str, Any] = {}
        for outcome in _REPORTED:
            totals[outcome] = sum(count[outcome] for count in counts)
        totals["excluded_as"] = {}
        for kind in dict.fromkeys(excluded_kinds.values()):
            totals["excluded_as"][kind] = sum(count[kind] for count in counts)
        origins = _without_gaps(text_origins.numbers[keep])
        totals["origins"] = 1 if text_origins.is_single else int(origins.max(initial=-1)) + 1
        _check_rows(section, totals)
        drawn = _draw_validation(section, origins, text_origins.is_common[keep])
        if not drawn.any():  # one document has more than half of the texts, and what others have is common
            totals["origins"] = 1
            origins = np.arange(len(origins))
            drawn = _draw_validation(section, origins, np.zeros(len(origins), dtype=np.bool_))
        copy_rows(raw, place, keep, ends, progress)
        if _corpus_fingerprint(section, files, prompts, _fingerprint_of_keys(excluded_kinds)) != name:
            raise DistilvecError(
                "its files changed while they were read.", "Run the command again.", key="corpus.sources"
            )
        write_columns(place, origins=origins.astype(np.int64))
        write_rows(place, train_rows=~drawn, holdout_rows=drawn)
        shutil.rmtree(raw)
        totals["train"] = int(np.count_nonzero(~drawn))
        totals["holdout"] = int(np.count_nonzero(drawn))
        totals["holdout_origins"] = len(np.unique(origins[drawn]))
        totals["origins_by"] = text_origins.columns
        totals["sources"] = []
        for source, count in zip(section.sources, counts, strict=True):
            outcomes = {outcome: count[outcome] for outcome in _REPORTED}
            totals["sources"].append({"name": source.label, **outcomes})
        return describe_corpus(totals, prompts, section.sources)

    return open_or_build(folder, name, "corpus", needed, build, Corpus)


def _without_gaps(numbers: Rows) -> Rows:
    """The numbers as 0, 1, 2 ... in their order, int64."""
    is_used = np.zeros(int(numbers.max(initial=-1)) + 1, dtype=np.bool_)
    is_used[numbers] = True
    return (np.cumsum(is_used) - 1)[numbers]


def validation_size(size: int | None, rows: int) -> int:
    """The validation part of `rows`: as asked, else one row in 20, at least 10, at most half and 4,096.

    Errors: DistilvecError if more than half are asked for.
    """
    default = min(max(rows // VALIDATION_SHARE, MIN_VALIDATION), MAX_VALIDATION, rows // 2)
    if size is None:
        return default
    if size > rows // 2:
        raise DistilvecError(
            f"{size:,} rows are more than half of {rows:,}.",
            f"Give at most {rows // 2:,}, or leave the key out: {default:,} are taken then.",
        )
    return size


def _draw_validation(section: CorpusSection, origins: Rows, is_common: Mask) -> Mask:
    """Draw whole origins by seed until there are enough rows and, without a stated number of rows, enough origins.

    One that would make the part too large is trained on, as is what is common to many. bool [rows], none True where no
    origin is small enough.
    """
    with about("corpus.validation_rows"):
        wanted = validation_size(section.validation_rows, len(origins))
    most = min(len(origins) // 2, max(wanted, MAX_VALIDATION))
    sizes = np.bincount(origins)
    fewest_origins = 1
    if section.validation_rows is None:
        fewest_origins = min(VALIDATION_ORIGINS, len(sizes) // ORIGIN_SHARE)
    generator = np.random.Generator(np.random.PCG64(section.seed))
    order = generator.permutation(np.unique(origins[~is_common]))
    return draw_origins(order, sizes, wanted, fewest_origins, most)[origins]


def excluded_line(report: Mapping[str, Any]) -> str:
    """Count the texts that are left out since the evaluation suite has them, by what they are there, and those that
    corpus.leave_out names; "" for none.
    """
    counts = {kind: count for kind, count in report.get("excluded_as", {}).items() if count}
    named = counts.pop(LEFT_OUT, 0)
    lines = []
    if counts:
        kinds = ", ".join(f"{kind}: {count:,}" for kind, count in counts.items())
        lines.append(f"{sum(counts.values()):,} in the evaluation suite ({kinds}; corpus.exclude_evaluation)")
    if named:
        lines.append(f"{named:,} named in corpus.leave_out")
    return ", ".join(lines)


def _check_rows(section: CorpusSection, totals: Mapping[str, Any]) -> None:
    """DistilvecError for fewer than two texts, with the reason why the others are left out."""
    if totals["kept"] > 1:
        return
    excluded = {kind: count for kind, count in totals["excluded_as"].items() if count}
    if totals["excluded"] and totals["excluded"] == totals["read"] - totals["empty"] and LEFT_OUT not in excluded:
        # With true the suite's documents are trained on, and only its queries and labelled texts are left out.
        only_documents = section.exclude_evaluation == "documents" and excluded.get("documents", 0) > 1
        value = "true" if only_documents else "false"
        raise DistilvecError(
            f"all {totals['excluded']:,} texts are {' or '.join(excluded)} of the evaluation suite, which are left "
            f"out of training. To train on them, set corpus.exclude_evaluation={value}; or add other texts.",
            key="corpus.exclude_evaluation",
        )
    causes = [f"{totals['read']:,} rows read", f"{totals['empty']:,} of them empty"]
    if totals["duplicates"]:
        causes.append(f"{totals['duplicates']:,} duplicates")
    if excluded:
        causes.append(f"left out {excluded_line(totals)}")
    conditions = any(source.where for source in section.sources)
    fix = "Add texts, or look at 'where'." if conditions else "Add texts."
    problem = "a single text, of which none is left for validation" if totals["kept"] else "no text to train on"
    raise DistilvecError(f"{problem}: {', '.join(causes)}.", fix, key="corpus.sources")


def describe_corpus(report: dict[str, Any], prompts: Mapping[Role, str], sources: Sequence[Any]) -> dict[str, Any]:
    """The content of a corpus's meta.json; `sources` have a label, a role and perhaps a language."""
    return {
        "report": report,
        "prompts": prompts,
        "source_names": [source.label for source in sources],
        "languages": [getattr(source, "language", None) for source in sources],
        "roles": [source.role for source in sources],
    }


class _Candidate(NamedTuple):
    """A text, 64 bits for the text that it was cut from, or is, and for the document that it is a part of (0: none).

    `column` names the document. `kind`: what the text is in the evaluation; None for texts that may be trained on.
    """

    text: str
    whole: int
    document: int = 0
    column: str = ""
    kind: str | None = None


@dataclass(frozen=True)
class _Ingested:
    """The counts of a source, and the columns that name its documents. Its rows end at `end`, in all that was told of
    candidates.
    """

    count: Counter[str]
    columns: set[str]
    end: int


@dataclass(frozen=True)
class _FoundOrigins:
    """The raw rows' `numbers` int64 and `is_common` as in `Origins`; `kinds`: what their origin is in the evaluation.

    A kind is a number from 1 on, 0 for none. `columns` are those that name documents. `is_single`: all texts are of one
    document, and have the numbers of their copies instead.
    """

    numbers: Rows
    is_common: Mask
    kinds: npt.NDArray[np.uint8]
    columns: list[str]
    is_single: bool


def _ingest(
    sources: list[SourceSection],
    prompts: dict[Role, str],
    excluded: Excluded,
    excluded_kinds: Mapping[bytes, str],
    raw: Path,
    progress: Progress,
) -> list[_Ingested]:
    """Write the candidate rows of every source to `raw`. 'first' limits stop the reading.

    What tells origins is written of excluded texts, too: a text of the same origin is not trained on either.
    """
    raw.mkdir()
    ingested = []
    kind_numbers = {kind: number for number, kind in enumerate(excluded, 1)}
    with contextlib.ExitStack() as stack:
        out = corpus_files.TextWriter(raw, stack)
        runs = RunWriter(raw, stack)
        about = corpus_files.open_columns(raw, stack, wholes=np.uint64, documents=np.uint64, kinds=np.uint8)

        def tell(candidates: Sequence[_Candidate]) -> None:
            runs.append([candidate.text for candidate in candidates])
            about["wholes"].append(np.array([candidate.whole for candidate in candidates], dtype=np.uint64))
            about["documents"].append(np.array([candidate.document for candidate in candidates], dtype=np.uint64))
            numbers = [kind_numbers.get(candidate.kind or "", 0) for candidate in candidates]
            about["kinds"].append(np.array(numbers, dtype=np.uint8))

        end = 0
        for chunk in corpus_files.chunks(_excluded_candidates(excluded), _length):
            tell(chunk)
            end += len(chunk)
        for position, source in enumerate(sources):
            count = Counter[str]()
            columns: set[str] = set()
            prompt = prompts.get(source.role, "")
            candidates = _candidates(read_texts(source, position), source.pieces, excluded_kinds, count)
            limit = source.limit if source.sample == "first" else None
            for chunk in corpus_files.chunks(_first(candidates, limit), _length):
                tell(chunk)
                end += len(chunk)
                columns |= {candidate.column for candidate in chunk}
                texts = [candidate.text for candidate in chunk if candidate.kind is None]
                encoded = [text.encode() for text in texts]
                out.append(
                    encoded, [len(text) for text in encoded], keys=as_keys(text_key(prompt, text) for text in texts)
                )
                count["candidates"] += len(texts)
                progress(f"reading {source.label}", count["read"])
            if count["fixed"]:
                fixed = f"{count['fixed']:,} texts with halves of surrogate pairs"
                log(f"{source.label}: {fixed}, which became {_REPLACEMENT}")
            ingested.append(_Ingested(count, columns - {""}, end))
    return ingested


def _excluded_candidates(excluded: Excluded) -> Iterator[_Candidate]:
    for kind, texts in excluded.items():
        for text in texts:
            clean = corpus_files.clean_text(text, LONGEST_TEXT)
            if clean:
                yield _Candidate(clean, int.from_bytes(loose_key(clean)[:8], "little"), kind=kind)


def _candidates(
    texts: Iterator[SourceText], longest: int | None, excluded_kinds: Mapping[bytes, str], count: Counter[str]
) -> Iterator[_Candidate]:
    """The texts or their pieces, cleaned, without empty ones; an excluded text stays whole. All are counted."""
    for source_text in texts:
        whole = loose_key(corpus_files.clean_text(source_text.text, LONGEST_TEXT))
        is_named = source_text.document is not None
        document = document_key(source_text.document) if is_named else 0
        is_cut = longest is not None and whole not in excluded_kinds
        parts = pieces(source_text.text, longest) if is_cut and longest is not None else [source_text.text]
        for text in parts:
            count["read"] += 1
            clean = corpus_files.clean_text(text, LONGEST_TEXT)
            if not clean:
                count["empty"] += 1
                continue
            kind = excluded_kinds.get(loose_key(clean) if is_cut else whole) if excluded_kinds else None
            if kind is not None:
                count["excluded"] += 1
                count[kind] += 1
            if kind == LEFT_OUT:  # itself alone: what an API refuses says nothing of other texts
                continue
            if _REPLACEMENT in clean and _REPLACEMENT not in text:
                count["fixed"] += 1
            if len(text) > LONGEST_TEXT and len(text.strip()) > LONGEST_TEXT:
                count["cut"] += 1
            column = source_text.named_by if is_named else ""
            yield _Candidate(clean, int.from_bytes(whole[:8], "little"), document, column, kind)


def _first(candidates: Iterator[_Candidate], limit: int | None) -> Iterator[_Candidate]:
    """The candidates up to the one that is the last of `limit` texts to train on."""
    count = 0
    for candidate in candidates:
        yield candidate
        count += candidate.kind is None
        if count == limit:
            return


def _length(candidate: _Candidate) -> int:
    return len(candidate.text)


def _find_origins(
    section: CorpusSection, ingested: Sequence[_Ingested], raw: Path, progress: Progress
) -> _FoundOrigins:
    """Find the origins of the raw rows, and what they are in the evaluation.

    A column that the recipe does not name has to name documents (`names_documents`).
    """
    keys = np.array(open_column(raw / "wholes.npy"))
    documents = open_column(raw / "documents.npy")
    columns: dict[str, None] = {}
    start = 0
    for source, read in zip(section.sources, ingested, strict=True):
        rows = start + np.flatnonzero(documents[start : read.end])  # excluded texts before the first source have none
        start = read.end
        is_certain = source.origin is not None or not read.columns.isdisjoint((COLUMN, DOCSTRING))
        if is_certain or names_documents(len(np.unique(documents[rows])), len(rows)):
            keys[rows] = documents[rows]
            columns.update(dict.fromkeys(sorted(read.columns)))
    origins = find_origins(raw, keys, progress)
    is_single = len(keys) > 1 and not origins.numbers.any()
    if is_single:
        copies = np.unique(open_column(raw / "wholes.npy"), return_inverse=True)[1]
        origins = Origins(copies.astype(np.int64), origins.is_common)

    kinds = open_column(raw / "kinds.npy")
    kinds_of_origins = np.zeros(int(origins.numbers.max(initial=-1)) + 1, dtype=np.uint8)
    excluded = np.flatnonzero(kinds)[::-1]  # backwards: of several kinds the first is written last
    kinds_of_origins[origins.numbers[excluded]] = kinds[excluded]
    raw_rows = np.flatnonzero(kinds == 0)
    numbers = origins.numbers[raw_rows]
    return _FoundOrigins(numbers, origins.is_common[raw_rows], kinds_of_origins[numbers], list(columns), is_single)


def text_name(text: str) -> str:
    """Return the name of a text in corpus.leave_out, the same whatever its case and white space.

    It begins with a letter, so that YAML never reads it as a number.
    """
    return "t" + loose_key(text).hex()


def loose_key(text: str) -> bytes:
    """16 bytes that two texts share if they differ in case and white space alone."""
    return text_key("", loose_text(text))


def _kinds_by_key(excluded: Excluded) -> dict[bytes, str]:
    """Map loose keys of excluded texts to what the texts are; a text of several kinds is the first of them."""
    kinds: dict[bytes, str] = {}
    for kind, texts in excluded.items():
        for text in texts:
            if text.strip():
                kinds.setdefault(loose_key(text), kind)
    return kinds


def _fingerprint_of_keys(keys: Mapping[bytes, str]) -> str:
    parts = sorted(key + kind.encode() for key, kind in keys.items())
    return hashlib.blake2b(b"".join(parts), digest_size=8).hexdigest()


def _files(section: CorpusSection) -> list[list[Path]]:
    """The local files of each source. Those of an address are looked for on its server."""
    return [source_files(source, position) for position, source in enumerate(section.sources)]
