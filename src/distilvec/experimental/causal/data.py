"""Instructions with responses, cut into each model's own tokens. A few ten thousand rows: everything is held in memory."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedTokenizerBase

from distilvec.core.batch import TextBatch
from distilvec.core.errors import DistilvecError
from distilvec.data.readers import json_rows
from distilvec.experimental.causal.schema import CausalDataSection
from distilvec.teachers.cached import BatchTeacher

IGNORED = -100  # transformers' label of a token that is not to be learnt
FIELDS = {"instruction": ("prompt", "instruction"), "input": ("input", "context"), "response": ("response", "output")}


@dataclass(frozen=True)
class Pair:
    """A row: the prompt as the model reads it, the response to learn (in test files there may be several), and where it stands."""

    prompt: str
    responses: tuple[str, ...]
    place: str


def read_pairs(path: Path, key: str, section: CausalDataSection) -> list[Pair]:
    """The rows of a JSONL file (also .gz), in order; instruction and input are put into the recipe's templates.

    Errors: DistilvecError for a file that is missing, has no rows, or has a row without its fields or with an empty one.
    """
    if not path.is_file():
        raise DistilvecError(
            f"[{key}] not found: {path}. Give a JSONL file; relative paths start at the recipe's folder."
        )
    pairs = [_pair(row, f"[{key}] {path}, line {number}", section) for number, row in json_rows(path, key)]
    if not pairs:
        raise DistilvecError(
            f"[{key}] {path} has no rows. Expected one object a line with an instruction and a response."
        )
    return pairs


def _pair(row: Mapping[str, Any], place: str, section: CausalDataSection) -> Pair:
    instruction, context = _field(row, "instruction", place), _field(row, "input", place, needed=False)
    responses = _field(row, "response", place)
    if len(instruction) > 1:
        raise DistilvecError(f"{place}: found several instructions; expected one text. Keep one of them.")
    template = section.template_with_input if context else section.template
    values = {"{instruction}": instruction[0], "{input}": "".join(context)}
    prompt = re.sub(
        r"\{instruction\}|\{input\}", lambda found: values[found[0]], template
    )  # braces in the row's text stay
    return Pair(prompt, responses, place)


def _field(row: Mapping[str, Any], name: str, place: str, needed: bool = True) -> tuple[str, ...]:
    """The texts of a field under any of its names; () where it is not needed and not there, or empty."""
    found = next((known for known in FIELDS[name] if row.get(known) is not None), None)
    if found is None:
        if not needed:
            return ()
        fields = ", ".join(row) or "none"
        raise DistilvecError(
            f"{place} has no {name}: expected a field {' or '.join(FIELDS[name])}; found {fields}. Add it, or rename one."
        )
    value = row[found]
    texts = value if isinstance(value, list) and value else [value]
    if not all(isinstance(text, str) for text in texts):
        raise DistilvecError(
            f"{place}: '{found}' holds {type(value).__name__} ({str(value)[:40]}), not text. Put it in quotes, or remove the row."
        )
    if any(not text.strip() for text in texts):
        if not needed:
            return ()
        raise DistilvecError(f"{place}: '{found}' is empty. A {name} must have text; remove the row.")
    return tuple(texts)


# -- tokens ----------------------------------------------------------------------------------------------------------


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
        ids = np.where(
            mask, self.ids[np.minimum(self.offsets[rows][:, None] + columns, len(self.ids) - 1)], self.padding
        )
        labels = np.where(mask & (columns >= self.prompts[rows][:, None]), ids, IGNORED)
        found = {"input_ids": ids, "labels": labels, "attention_mask": mask.astype(np.int64)}
        return {name: torch.from_numpy(value) for name, value in found.items()}


def prompt_ids(prompts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """Token ids of prompts, behind the begin token where the tokenizer puts one; no other special tokens."""
    begin = tokenizer.bos_token_id
    first = [begin] if begin is not None and tokenizer("a")["input_ids"][:1] == [begin] else []
    return [first + ids for ids in tokenizer(list(prompts), add_special_tokens=False)["input_ids"]]


def tokenise(pairs: Sequence[Pair], tokenizer: PreTrainedTokenizerBase, section: CausalDataSection) -> Tokens:
    """Prompt and response are cut apart from each other, so that a prompt is the same in training and generation.

    A response too long for `max_length` loses its end and with it the end-of-text token. Note: it is counted in each model's
    own tokens, so the teacher may read a little more or less of it.
    """
    end = tokenizer.eos_token_id
    if end is None:
        raise DistilvecError(
            f"[tokenizer] {tokenizer.name_or_path} has no end-of-text token, so responses have no end. Take another model, or set "
            "eos_token in its tokenizer_config.json."
        )
    prompts = prompt_ids([pair.prompt for pair in pairs], tokenizer)
    responses = tokenizer([pair.responses[0] for pair in pairs], add_special_tokens=False)["input_ids"]
    whole = [[*prompt, *response, end] for prompt, response in zip(prompts, responses, strict=True)]
    rows = [ids[: section.max_length] for ids in whole]
    return Tokens(
        ids=np.concatenate([np.array(ids, dtype=np.int64) for ids in rows]),
        offsets=np.concatenate([[0], np.cumsum([len(ids) for ids in rows])]).astype(np.int64),
        prompts=np.array([len(ids) for ids in prompts], dtype=np.int64),
        padding=int(end if tokenizer.pad_token_id is None else tokenizer.pad_token_id),
        cut=sum(len(ids) > section.max_length for ids in whole),
    )


def fitting(
    pairs: Sequence[Pair], tokenizers: Sequence[PreTrainedTokenizerBase], section: CausalDataSection
) -> list[Pair]:
    """The pairs whose prompts are short enough for every tokenizer; others are dropped, or a DistilvecError, as the recipe says."""
    texts = [pair.prompt for pair in pairs]
    lengths = np.max([[len(ids) for ids in prompt_ids(texts, tokenizer)] for tokenizer in tokenizers], axis=0)
    long = np.flatnonzero(lengths > section.max_prompt)
    if len(long) and section.long_prompts == "refuse":
        raise DistilvecError(
            f"{pairs[long[0]].place}: the prompt has {lengths[long[0]]} tokens, at most {section.max_prompt} are allowed "
            f"({len(long):,} such rows). Raise data.max_prompt, or set data.long_prompts: drop to leave such rows out."
        )
    kept = [pair for pair, length in zip(pairs, lengths, strict=True) if length <= section.max_prompt]
    if not kept:
        raise DistilvecError(
            f"{pairs[0].place.partition(', line')[0]}: every prompt has more than {section.max_prompt} tokens. Raise data.max_prompt."
        )
    return kept


@dataclass(frozen=True)
class CausalData:
    """What the loop draws batches from (train/dataset.py, `TrainingRows`)."""

    tokens: Tokens
    teacher: BatchTeacher
    train_rows: npt.NDArray[np.int64]
    holdout_rows: npt.NDArray[np.int64]

    @property
    def lengths(self) -> npt.NDArray[np.int32]:
        """The student's tokens of every row."""
        return self.tokens.lengths

    def batch(self, numbers: npt.NDArray[np.int64]) -> TextBatch:
        """The student's view of these rows, on the CPU."""
        rows = torch.from_numpy(np.ascontiguousarray(numbers))
        return TextBatch(rows=rows, tokens=self.tokens.batch(numbers), sources=torch.zeros_like(rows))
