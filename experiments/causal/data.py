"""Instructions with responses, as token ids of each model. A few ten thousand rows: all of them are in memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedTokenizerBase

from distilvec.core.batch import Alignment, TextBatch
from distilvec.core.errors import DistilvecError, about
from distilvec.data.readers import Row, read_rows
from distilvec.data.task_rows import some_of, text_of
from distilvec.teachers.embedder import BatchTeacher
from experiments.causal.schema import CausalDataSection

IGNORED = -100  # transformers' label of a token without a loss
FIELDS = {"instruction": ("prompt", "instruction"), "input": ("input", "context"), "response": ("response", "output")}


@dataclass(frozen=True)
class Pair:
    """A row: the prompt as the model reads it, the response (in test files also several), and the row's place."""

    prompt: str
    responses: tuple[str, ...]
    where: str


def read_pairs(
    path: Path, key: str, section: CausalDataSection, tokenizers: Sequence[PreTrainedTokenizerBase] = ()
) -> tuple[list[Pair], int]:
    """The rows of a table, instruction and input put into the recipe's templates, and the number of rows left out.

    Rows whose prompt is too long for one of the tokenizers are left out, or a DistilvecError, as the recipe sets.
    Errors: DistilvecError for a file that is missing or has no rows, and for a row without its fields or texts.
    """
    with about(key):
        pairs = [_pair(row, where, section) for where, row in read_rows(path)]
    if not pairs:
        raise DistilvecError(f"{path} has no rows. Expected rows with an instruction and a response.", key=key)
    texts = [pair.prompt for pair in pairs]
    lengths = np.array([[len(ids) for ids in prompt_ids(texts, tokenizer)] for tokenizer in tokenizers] or [[0]]).max(0)
    fits = np.broadcast_to(lengths <= section.max_prompt, len(pairs))
    if fits.all():
        return pairs, 0
    if section.long_prompts == "refuse" or not fits.any():
        first = int(np.argmin(fits))
        problem = f"the prompt has {lengths[first]} tokens, at most {section.max_prompt} are allowed"
        where = pairs[first].where
        fix = "Raise data.max_prompt, or set data.long_prompts: drop."
        raise DistilvecError(f"{where}: {problem}.", fix, key=key)
    return [pair for pair, fit in zip(pairs, fits, strict=True) if fit], int((~fits).sum())


def _pair(row: Row, where: str, section: CausalDataSection) -> Pair:
    instruction, context = _field(row, "instruction", where), _field(row, "input", where)
    responses = _field(row, "response", where)
    if len(instruction) > 1:
        raise DistilvecError(f"{where}: several instructions.", "Keep one of them.")
    values = {"{instruction}": instruction[0], "{input}": "".join(context)}
    template = section.template_with_input if context else section.template
    prompt = re.sub("|".join(map(re.escape, values)), lambda found: values[found[0]], template)  # not in the texts
    return Pair(prompt, responses, where)


def _field(row: Row, name: str, where: str) -> tuple[str, ...]:
    """The texts of a field under any of its names; () for an input that is missing or empty."""
    value = next((row[known] for known in FIELDS[name] if row.get(known) is not None), None)
    values = value if isinstance(value, list) else [] if value is None else [value]
    texts = tuple(text_of(text, where, name) for text in values)
    if texts and all(text.strip() for text in texts):
        return texts
    if name == "input":
        return ()
    problem = f"the {name} is empty" if texts else f"no {name} in the columns {some_of(row)}"
    expected = f"Expected a text in {' or '.join(FIELDS[name])}."
    raise DistilvecError(f"{where}: {problem}. {expected}")


@dataclass(frozen=True)
class Tokens:
    """Token ids of every pair by one tokenizer: prompt (its first `prompts[row]` tokens), response, end of text."""

    ids: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    prompts: npt.NDArray[np.int64]
    padding: int
    cut: int  # responses that lost their end

    @cached_property
    def lengths(self) -> npt.NDArray[np.int32]:
        """Tokens of every pair."""
        return np.diff(self.offsets).astype(np.int32)

    def batch(self, rows: npt.NDArray[np.int64]) -> dict[str, torch.Tensor]:
        """`input_ids` and `labels` (-100 at prompt and padding), padded on the right, and `attention_mask`."""
        lengths = self.lengths[rows].astype(np.int64)
        columns = np.arange(lengths.max(initial=0), dtype=np.int64)
        mask = columns < lengths[:, None]
        positions = np.minimum(self.offsets[rows][:, None] + columns, len(self.ids) - 1)
        ids = np.where(mask, self.ids[positions], self.padding)
        labels = np.where(mask & (columns >= self.prompts[rows][:, None]), ids, IGNORED)
        found = {"input_ids": ids, "labels": labels, "attention_mask": mask.astype(np.int64)}
        return {name: torch.from_numpy(value) for name, value in found.items()}


def prompt_ids(prompts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """Token ids of prompts, after the begin token if the tokenizer adds one; no other special tokens."""
    begin = tokenizer.bos_token_id
    first = [begin] if begin is not None and tokenizer("a")["input_ids"][:1] == [begin] else []
    return [first + ids for ids in tokenizer(list(prompts), add_special_tokens=False)["input_ids"]]


def tokenise(pairs: Sequence[Pair], tokenizer: PreTrainedTokenizerBase, max_length: int) -> Tokens:
    """Tokenise prompts and responses separately, so that a prompt is the same in training and generation.

    A response too long for `max_length` loses its end and with it the end-of-text token.
    Note: the length is counted in each model's own tokens, so the teacher may read a little more or less of a response.
    """
    end = tokenizer.eos_token_id
    if end is None:
        problem = f"{tokenizer.name_or_path} has no end-of-text token"
        raise DistilvecError(
            f"{problem}.", "Take another model, or set eos_token in its tokenizer_config.json.", key="tokenizer"
        )
    prompts = prompt_ids([pair.prompt for pair in pairs], tokenizer)
    responses = tokenizer([pair.responses[0] for pair in pairs], add_special_tokens=False)["input_ids"]
    whole = [[*prompt, *response, end] for prompt, response in zip(prompts, responses, strict=True)]
    return Tokens(
        ids=np.concatenate([np.array(ids[:max_length], dtype=np.int64) for ids in whole]),
        offsets=np.cumsum([0, *(min(len(ids), max_length) for ids in whole)], dtype=np.int64),
        prompts=np.array([len(ids) for ids in prompts], dtype=np.int64),
        padding=int(end if tokenizer.pad_token_id is None else tokenizer.pad_token_id),
        cut=sum(len(ids) > max_length for ids in whole),
    )


@dataclass(frozen=True)
class CausalData:
    """The training rows of the loop (train/dataset.py, `TrainingRows`); `pairs` aligns rows with the teacher's."""

    tokens: Tokens
    teacher: BatchTeacher
    train_rows: npt.NDArray[np.int64]
    holdout_rows: npt.NDArray[np.int64]
    pairs: Callable[[npt.NDArray[np.int64]], Alignment] | None = None

    @property
    def lengths(self) -> npt.NDArray[np.int32]:
        """The student's tokens of every row."""
        return self.tokens.lengths

    def pass_rows(self, epoch: int, seed: int) -> npt.NDArray[np.int64]:
        """Return the rows of one pass: all."""
        return self.train_rows

    def batch(self, numbers: npt.NDArray[np.int64]) -> TextBatch:
        """These rows in the student's tokens, on the CPU."""
        rows = torch.from_numpy(np.ascontiguousarray(numbers))
        alignment = None if self.pairs is None else self.pairs(numbers)
        return TextBatch(rows, self.tokens.batch(numbers), torch.zeros_like(rows), alignment=alignment)
