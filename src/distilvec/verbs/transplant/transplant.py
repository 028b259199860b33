"""Transplant: give a model another vocabulary, chosen or trained on texts; saved as a folder."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.constants import HF_HUB_CACHE
from sentence_transformers import SentenceTransformer

from distilvec.alignment.align import unicode_texts
from distilvec.config.schema import SourceSection
from distilvec.config.student import VocabularySection
from distilvec.core.errors import DistilvecError, about
from distilvec.core.files import check_output_folder, write_json
from distilvec.core.info import UNLIMITED
from distilvec.core.log import log
from distilvec.core.model_name import ModelName
from distilvec.core.vectors import spread_items
from distilvec.data.sources import read_source, source_files
from distilvec.formats.replace import check_replaceable, is_ours, real
from distilvec.formats.sentence_transformers import save_student
from distilvec.models.load import folder_of, load_model, model_name, resolve_model, tokenizer_notes
from distilvec.models.origin import origin, terms_of
from distilvec.report.json_values import from_json
from distilvec.report.model_card import card_data
from distilvec.report.record import RunRecord, TeacherRecord
from distilvec.report.values import Report, VocabularyChange
from distilvec.report.verdicts import FLOAT_MB, make_verdict
from distilvec.report.write import draw_vocabulary
from distilvec.students.factorize import COMPARED, TEXTS, check_factorizable, factorize
from distilvec.teachers.cache.manifest import hash_model
from distilvec.vocabulary.choose import FIGURES, Texts, choose
from distilvec.vocabulary.compare import compare_tokenizers, parameter_counts
from distilvec.vocabulary.pieces import BYTE, Pieces
from distilvec.vocabulary.transplant import Composition, check_length, transplant_tokens
from distilvec.vocabulary.trim import ChosenVocabulary

PAGE = "report.html"
TOKENIZER_TEXTS = 2000  # texts of a language on which the tokenizers are compared
MEASURED = 128  # texts on which both models' vectors are compared
SAME = 0.05  # mean distance of vectors below which a model counts as the original: a cosine of 0.999
CARD = """---
{front}
---

# {title} with another vocabulary

Transplanted by `distilvec transplant`: {before:,} tokens became {tokens:,}{rank}.
Every weight but the embedding table is that of the original; nothing was trained. `vocabulary.json` has the details.
The license is that of the original: {terms}.
"""


def readers_by_language(
    sources: Sequence[str], columns: Sequence[str] | None = None, limit: int | None = None
) -> dict[str, Texts]:
    """Return readers of texts by language, from FILE or LANGUAGE=FILE; a file without language goes by its name."""
    by_language: dict[str, list[SourceSection]] = {}
    for position, stated_source in enumerate(sources):
        language, path = _language_and_path(stated_source)
        section = SourceSection(path=Path(path), column=list(columns) if columns else None)
        source_files(section, position)
        by_language.setdefault(language or section.label, []).append(section)

    def reader(sections: list[SourceSection]) -> Texts:
        def read() -> Iterator[str]:
            for number, section in enumerate(sections):
                texts = (text.strip() for text in unicode_texts(read_source(section, number), section))
                yield from islice((text for text in texts if text), limit)

        return read

    return {language: reader(sections) for language, sections in by_language.items()}


def stated_languages(sources: Sequence[str]) -> list[str]:
    """Return the languages of LANGUAGE=FILE."""
    return [language for language, _ in map(_language_and_path, sources) if language]


def _language_and_path(source: str) -> tuple[str, str]:
    language, sign, path = source.partition("=")
    return (language, path) if sign and not Path(source).exists() else ("", source)


def check_target(out: Path, overwrite: bool, sources: Sequence[str]) -> None:
    """DistilvecError for an `out` that is not empty, is one of the `sources`, or is in the hub's cache.

    `overwrite` allows a folder with a model that distilvec wrote.
    """
    target = real(out)
    if target.is_relative_to(real(Path(HF_HUB_CACHE))):
        raise DistilvecError(
            f"{out} is in the cache of the hub ({HF_HUB_CACHE}).", "Choose another folder.", key="--out"
        )
    for name in sources:
        folder: Path | None = Path(resolve_model(name))
        if folder is not None and not folder.is_dir():
            try:
                folder = folder.parent if folder.exists() else folder_of(ModelName(str(folder)))[0]
            except (OSError, ValueError):  # no valid id: loading reports it
                folder = None
        if folder is not None and real(folder) == target:
            raise DistilvecError(
                f"{out} is the folder of {name}, which is read.", "Choose another folder.", key="--out"
            )
    with about("--out", out):
        check_output_folder(out)
    if not overwrite and out.is_dir() and any(out.iterdir()):
        fix = ", or replace the model in it with --overwrite" if is_ours(out) else ""
        raise DistilvecError(f"{out} exists and is not empty.", f"Choose a new or empty folder{fix}.", key="--out")
    with about("--out"):
        check_replaceable(out)


def transplant_folder(
    name: str,
    section: VocabularySection,
    texts: dict[str, Texts],
    out: Path,
    max_length: int | None = None,
    *,
    overwrite: bool = False,
    trust_remote_code: bool = False,
    rank: int | None = None,
    budget: int | None = None,
    languages: Sequence[str] = (),
) -> dict[str, Any]:
    """Choose the vocabulary on the texts, give it to the model `name`, save that as `out`, whole or not at all.

    The token table gets `rank` numbers per token if a rank is given; a `budget` of parameters chooses rank and tokens.
    The model card names the `languages`.
    Returns the content of vocabulary.json, which is saved with the model: options, counts of tokens and rows, notes on
    sizes that the texts did not allow, tokens that had no piece in the old vocabulary, both tokenizers compared on the
    first 2,000 texts of each language, and the mean `distance` of both models' vectors.
    """
    check_target(out, overwrite, [name, *([section.tokenizer] if section.tokenizer else [])])
    for first in texts.values():
        next(first(), None)  # a file that cannot be read is reported before the model is loaded
    transformers.utils.logging.disable_progress_bar()
    with about("teacher", name):
        model = load_model(ModelName(name, trusted=trust_remote_code))
        if not hasattr(model[0], "auto_model"):
            kind = type(model[0]).__name__
            raise DistilvecError(f"{name} begins with a {kind} module.", "Take a model that begins with a transformer.")
        pieces = Pieces(model.tokenizer, f"the tokenizer of {name}")
        for note in tokenizer_notes(ModelName(name), model):
            log(f"{name}: {note}.")
    if max_length is not None:
        check_length(model[0], max_length)
    prompts = list(dict.fromkeys(prompt for prompt in (model.prompts or {}).values() if prompt))
    read = {language: _prepended(prompts, reader) for language, reader in texts.items()}
    made = _make(model, pieces, section, read, max_length, rank, budget)
    for note in made.vocabulary.notes:
        log(f"vocabulary: {note}")
    missing = [number for number, origin in enumerate(made.rows.origins) if origin == "missing"]
    teacher_folder = folder_of(ModelName(name))[0]
    record = {
        "teacher": model_name(name),
        "weights": None if teacher_folder is None else hash_model(teacher_folder, ()),
        "vocabulary": section.model_dump(mode="json", exclude_none=True),
        "chosen": made.vocabulary.figures,
        "notes": list(made.vocabulary.notes),
        **({} if made.rank is None else {"rank": made.rank, "start_distance": made.distance}),
        "rows": made.rows.counts,
        "without_pieces": list(made.model.tokenizer.convert_ids_to_tokens(missing)),
        "compared": _compare_models(model, made.model, read),
        "distance": _distance(model, made.model, read),
    }
    del model  # writing needs memory for another table

    def write_extra_files(folder: Path) -> None:
        write_json(folder / FIGURES, record)
        draw_vocabulary(folder / PAGE, transplant_report(record, name, out))

    with about("--out"):
        save_student(made.model, out, record, _card(name, record, languages), write_extra_files, _sample_texts(read))
    return record


def transplant_report(record: Mapping[str, Any], teacher: str, out: Path) -> Report:
    """Return the report of `transplant_folder`'s record: size and tokens first, then what to do next."""
    vocabulary = from_json(VocabularyChange, record["compared"])
    report = Report(name=out.name, vocabulary=vocabulary, folder=str(out))
    before, after = vocabulary.before, vocabulary.after
    verdict = make_verdict({}, vocabulary=vocabulary)
    verdict.text = f"{before.vocabulary.size:,} tokens became {after.vocabulary.size:,}"
    if before.parameters is not None and after.parameters is not None:
        sizes = [FLOAT_MB * side.parameters.total for side in (before, after) if side.parameters is not None]
        verdict.text += f", {sizes[0]:,.0f} MB became {sizes[1]:,.0f}"
        verdict.megabytes = sizes[1]
        verdict.times_smaller = sizes[0] / sizes[1]
    lines = [distance_line(record, teacher, out), *rows_line(record).split("\n")]
    verdict.advice = [f"{line[:1].upper()}{line[1:]}" for line in lines if line]
    report.verdict = verdict
    report.record = RunRecord(teacher=TeacherRecord(name=record["teacher"]))
    return report


def rows_line(record: Mapping[str, Any]) -> str:
    """Return the origins of the rows of `transplant_folder`'s record, with the tokens that had no old piece."""
    text = f"rows {', '.join(f'{count:,} {origin}' for origin, count in sorted(record['rows'].items()))}"
    if not (missing := record["without_pieces"]):
        return text
    words = [token for token in missing if not BYTE.fullmatch(token)]
    examples = [f"{len(missing) - len(words):,} bytes of rare characters"] if len(words) < len(missing) else []
    if words:
        examples.append(" ".join([*words[:5], "…"] if len(words) > 5 else words))
    return f"{text}\nmissing: no old token has their text, training has to fill them ({'; '.join(examples)})"


def distance_line(record: Mapping[str, Any], teacher: str, out: Path) -> str:
    """Return how far the new model's vectors are from the original's, and whether it needs training; "" if unknown."""
    distance = record["distance"]
    if distance is None:
        return ""
    line = f"distance to the original's vectors: {distance:.4f} on {MEASURED} texts"
    if distance < SAME:
        return f"{line}. No training is needed."
    command = ["distilvec", "distill", teacher, "TEXTS", "--student", str(out)]
    return f"{line}. Training brings the model nearer: {shlex.join(command)}"


def _distance(before: SentenceTransformer, after: SentenceTransformer, texts: Mapping[str, Texts]) -> float | None:
    """Return the mean distance of both models' vectors, each of length 1, on the first texts of all languages.

    None without texts: an existing tokenizer needs none.
    """
    if not texts:
        return None
    sample = _sample_texts(texts)
    old, new = (
        model.encode(sample, normalize_embeddings=True, convert_to_tensor=True, show_progress_bar=False)
        for model in (before, after)
    )
    return round(float((old.float() - new.float()).norm(dim=-1).mean()), 6)


def _sample_texts(texts: Mapping[str, Texts]) -> list[str]:
    """Return the first texts of all languages, as many of each."""
    each = -(-MEASURED // max(1, len(texts)))
    return [text for read in texts.values() for text in islice(read(), each)][:MEASURED]


def _make(
    model: SentenceTransformer,
    pieces: Pieces,
    section: VocabularySection,
    texts: dict[str, Texts],
    max_length: int | None,
    rank: int | None,
    budget: int | None,
) -> Transplanted:
    """Return the model with its vocabulary, and with a factorized table of this rank or within this budget."""
    if budget is not None:
        return within_budget(model, lambda section: choose(section, pieces, texts), section, texts, budget, max_length)
    if rank is not None:
        check_factorizable(model[0].auto_model)
    chosen = choose(section, pieces, texts)
    changed, rows = transplant_tokens(model, chosen.tokenizer, section.compose, section.keep_norm, max_length)
    if rank is not None:
        changed = with_rank(changed, rank, some_of_each(texts, TEXTS))
    return Transplanted(changed, chosen, rows, rank)


def _compare_models(before: SentenceTransformer, after: SentenceTransformer, texts: dict[str, Texts]) -> dict[str, Any]:
    """Compare both tokenizers on the first texts of each language, and both models' parameters."""
    length = before.max_seq_length
    limit = length if length is not None and length < UNLIMITED else None  # T5 has no limit: relative positions
    first = {language: list(islice(read(), TOKENIZER_TEXTS)) for language, read in texts.items()}
    comparison = compare_tokenizers(before.tokenizer, after.tokenizer, first, limit)
    comparison["before"]["parameters"], comparison["after"]["parameters"] = (
        parameter_counts(before),
        parameter_counts(after),
    )
    return comparison


def _prepended(prompts: Sequence[str], read: Texts) -> Texts:
    """Return a reader of the prompts and the texts."""
    return lambda: chain(prompts, read())


def _card(name: str, record: dict[str, Any], languages: Sequence[str] = ()) -> str:
    """Write the model's README.md; names are escaped for YAML and Markdown."""
    return CARD.format(
        front=card_data(origin(ModelName(name), []), languages=languages).to_yaml(),
        title=re.sub(r"([\\`*_\[\]<>#|])", r"\\\1", " ".join(model_name(name).split())),
        before=record["chosen"]["before"],
        tokens=record["chosen"]["tokens"],
        terms=terms_of(ModelName(name)),
        rank=f", each of {record['rank']} numbers (ELECTRA's layout)" if "rank" in record else "",
    )


RANKS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384)  # with fewer tokens
_TRIED = 5  # ranks: the largest multiple of 8 that leaves every token, and the next ones of RANKS
Make = Callable[[VocabularySection], ChosenVocabulary]


@dataclass(frozen=True)
class Transplanted:
    """A model with another vocabulary, and with a factorized table if it has a rank.

    `distance`: mean distance of its vectors to the old model's on the first texts; None without a budget.
    """

    model: SentenceTransformer
    vocabulary: ChosenVocabulary
    rows: Composition
    rank: int | None = None
    distance: float | None = None

    @property
    def line(self) -> str:
        """Describe the size: parameters, rank, tokens and start distance."""
        line = f"{parameter_counts(self.model)['total'] / 1e6:.2f} M parameters"
        if self.rank is not None:
            line += f": rank {self.rank} with {len(self.rows.rows):,} tokens"
        return line if self.distance is None else f"{line}, start distance {self.distance:.3f}"


def some_of_each(texts: Mapping[str, Texts], most: int) -> list[str]:
    """Return the first texts of each language in turn, at most so many in all: a language of few has them all there."""
    in_turn = chain.from_iterable(zip_longest(*(read() for read in texts.values())))
    return list(islice((text for text in in_turn if text is not None), most))


def with_rank(model: SentenceTransformer, rank: int, texts: list[str]) -> SentenceTransformer:
    """Give a model of one's own a factorized table, fitted to the texts."""
    first = model[0]
    length = min(model.max_seq_length or 512, 512)
    tokens = first.tokenizer(texts, truncation=True, max_length=length)["input_ids"] if texts else ()
    first.model = factorize(first.auto_model, rank, tokens)
    return model


def within_budget(
    model: SentenceTransformer,
    make: Make,
    section: VocabularySection,
    texts: dict[str, Texts],
    parameters: int,
    max_length: int | None,
) -> Transplanted:
    """Return the rank and tokens of at most `parameters` whose vectors are nearest to those of `model`.

    A model that is small enough with the tokens of its texts keeps its rows as they are. `make` chooses a vocabulary on
    the texts. Else tried are the largest multiple of 8 that leaves every token, and larger ranks with fewer tokens.
    """
    if section.kind != "trim" or section.tokenizer is not None or section.size is not None:
        raise DistilvecError(
            "chooses how many tokens are kept.", "Leave out --kind, --vocab-size, --tokenizer.", key="--budget"
        )
    everything = make(section)
    trimmed, rows = transplant_tokens(model, everything.tokenizer, section.compose, section.keep_norm, max_length)
    size = parameter_counts(trimmed)["total"]
    if size <= parameters:  # with its own table, whose vectors are the old model's
        return Transplanted(trimmed, everything, rows)
    try:
        check_factorizable(model[0].auto_model)
    except DistilvecError as error:
        problem = f"with the tokens of the texts the model has {size / 1e6:.2f} M parameters, and no shorter rows"
        fix = "Give at least that many, or prune layers first (student.layers of a recipe)."
        raise DistilvecError(f"{problem}: {error.problem}", fix, key="--budget") from error
    read = some_of_each(texts, TEXTS)
    sample = spread_items(read, COMPARED)
    before = torch.as_tensor(model.encode(sample))
    best: Transplanted | None = None
    for rank, size in _model_sizes(model, parameters, everything.figures["tokens"], everything.figures["least"]):
        whole = size == everything.figures["tokens"]
        chosen = everything if whole else make(section.model_copy(update={"size": size}))
        changed, rows = transplant_tokens(model, chosen.tokenizer, section.compose, section.keep_norm, max_length)
        changed = with_rank(changed, rank, read)
        distance = float((torch.as_tensor(changed.encode(sample)) - before).norm(dim=1).mean())
        candidate = Transplanted(changed, chosen, rows, rank, distance)
        log(candidate.line)
        if best is None or distance < (best.distance or 0):
            best = candidate
    if best is None:
        least = _fixed(model, RANKS[0]) + everything.figures["least"] * RANKS[0]
        raise DistilvecError(
            f"found {parameters / 1e6:.2f} M parameters; the model's layers and the smallest table have "
            f"{least / 1e6:.2f} M.",
            "Give more, or prune layers first (student.layers of a recipe).",
            key="--budget",
        )
    return best


def _model_sizes(model: SentenceTransformer, parameters: int, tokens: int, least: int) -> Iterator[tuple[int, int]]:
    """Yield ranks with the number of tokens that the parameters leave, the smallest rank first."""
    hidden = model[0].auto_model.config.hidden_size
    whole = [rank for rank in range(8, hidden, 8) if _fixed(model, rank) + rank * tokens <= parameters][-1:]
    larger = [rank for rank in RANKS if max(whole, default=0) < rank < hidden]
    for rank in [*whole, *larger][:_TRIED]:
        size = min(tokens, (parameters - _fixed(model, rank)) // rank)
        if size >= least:
            yield rank, size


def _fixed(model: SentenceTransformer, rank: int) -> int:
    """Return the parameters of a factorized model without its rows."""
    backbone = model[0].auto_model
    old, hidden = backbone.embeddings, backbone.config.hidden_size
    total = sum(weight.numel() for weight in model.parameters())
    outside = [backbone.embeddings, backbone.pooler] if backbone.pooler is not None else [backbone.embeddings]
    layers = total - sum(weight.numel() for part in outside for weight in part.parameters())
    rows = len(old.position_embeddings.weight) + len(old.token_type_embeddings.weight) + 2
    return layers + rows * rank + (rank + 1) * hidden
