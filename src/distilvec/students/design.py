"""The design of a student: from a number of parameters to the settings of a recipe's `student` section.

The rule comes from docs/levers.md, where one change at a time was measured on students of 4.8M parameters, and from
experiments/design_rule.py, which measures it against other splits of the same budget:

1. every token that the texts use, with rows of at least a quarter of the hidden size: longer rows give less than
   another layer does;
2. as many layers as the rest allows, each with half of its neurons: those that are nearest to the teacher ("best");
3. where the tables get too little for one layer beside them, rows get shorter first, then another half of the neurons
   goes, and the rarest tokens last;
4. what is left makes the rows of the table longer (its rank), or beside all layers the neurons more;
5. where layers, neurons and rows are whole, further tokens of the same letters stay, for words of new texts.

A table that cannot be factorized has rows of the model's own size. About half of the parameters are the table then,
with as many tokens as fit; where one layer alone has more, it keeps a sixteenth of its neurons.
Below the smallest student with layers the student is static (students/static.py): a table of token vectors, and a
linear layer where it is narrower than the vectors of the student. Its rows go first, then the rarest tokens.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from distilvec.core.errors import DistilvecError

TABLE_SHARE = 0.5
LEAST_TABLE_SHARE = 0.33  # of a table that cannot be factorized, below which layers and neurons go first
GOOD_RANK = 4  # part of the hidden size, from which another layer gives more than longer rows
LEAST_RANK = 32  # below it, the rarest tokens cost less than more numbers for every token give
RANK_STEP = 4
NEURON_STEP = 64
LEAST_TOKENS = 1000
LEAST_PARAMETERS = 1000  # of a size: below, its unit was forgotten
SMALL = 15_000_000  # parameters, below which a teacher of WIDE dimensions has wider layers than the budget suits
WIDE = 768
MULTILINGUAL = 100_000  # tokens, from which a vocabulary is taken for that of several languages

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}


@dataclass(frozen=True)
class Budget:
    """The parameters that a student may have: a number, or a share of those of the model.

    A share of the teacher, for a student of another model: Budget(budget.of(teacher_shape)).
    """

    parameters: int | None = None
    share: float | None = None

    def of(self, shape: ModelShape) -> int:
        """Return the number of parameters for a student of this model."""
        if self.parameters is not None:
            return self.parameters
        assert self.share is not None
        return int(self.share * shape.parameters)


def parse_size(text: str) -> Budget:
    """Read a size such as 5M, 800k, 5_000_000 or 25%."""
    match = re.fullmatch(r"(\d[\d_]*(?:\.\d+)?)\s*([kmg%]?)", text.strip().lower())
    number = float(match[1].replace("_", "")) if match else 0.0
    is_share = match is not None and match[2] == "%"
    if match is None or number == 0 or (is_share and number > 100):
        problem = f"found '{text}'; expected a number of parameters, or a percentage of at most 100%."
        raise DistilvecError(problem, "Give for example 5M or 25%.")
    if is_share:
        return Budget(share=number / 100)
    parameters = round(number * _UNITS[match[2]])
    if parameters < LEAST_PARAMETERS:
        raise DistilvecError(f"found '{text}', {parameters:,} parameters.", f"Did you mean {number:g}M?")
    return Budget(parameters=parameters)


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a model that students are cut from (students/shape.py reads them from its folder).

    architecture: the "model_type" of its configuration
    row_size: numbers of a row of the token table; less than `hidden_size` if the table is factorized already
    dim: of the model's vectors
    linear_dim: outputs of the linear layer that its students get behind the pooling: the dim of the teacher
    linear: when they get it: "auto" where the pooling gives other dimensions, "always" or
        "never"; with "keep" students with layers have the model's own modules instead
    position_parameters: the tables of positions and types, with the norm behind them
    layer_parameters: one layer, with all of its `neurons`
    neuron_parameters: one neuron of one feed-forward layer
    other_parameters: the rest of the backbone, such as a pooler and a final norm
    dense_parameters: the model's own modules behind the pooling
    kept_parameters: these modules as its students keep them, with "keep" alone
    no_...: why the model does not allow a change, in words; empty where it does
    """

    name: str
    architecture: str
    hidden_size: int
    layers: int
    neurons: int
    vocabulary: int
    row_size: int
    dim: int
    linear_dim: int
    position_parameters: int
    layer_parameters: int
    neuron_parameters: int
    other_parameters: int
    dense_parameters: int = 0
    kept_parameters: int = 0
    no_trimming: str = ""
    no_factorizing: str = ""
    no_pruning: str = ""
    no_narrowing: str = ""
    linear: Literal["auto", "always", "keep", "never"] = "auto"

    @property
    def parameters(self) -> int:
        """All parameters of the model."""
        backbone = self.vocabulary * self.row_size + self.position_parameters + self.other_parameters
        return backbone + self.layers * self.layer_parameters + self.dense_parameters


@dataclass(frozen=True)
class TokensUsed:
    """The tokens of a model's vocabulary that texts use.

    number: those of a vocabulary that is trimmed to the texts
    least: of these, special tokens, bytes and letters, which stay in any smaller vocabulary
    counts: how often each of them occurs (a number or a share), in descending order; empty if unknown
    possible: the tokens used and those that new texts of the same letters may use; 0 if unknown
    """

    number: int
    least: int = 0
    counts: Sequence[float] = ()
    possible: int = 0

    def coverage(self, tokens: int) -> float | None:
        """Return the share of all occurrences that the most frequent tokens have; None if unknown."""
        if not len(self.counts):
            return None
        return float(sum(self.counts[:tokens]) / sum(self.counts))


@dataclass(frozen=True)
class Split:
    """How a student spends its parameters.

    `rank`: None for a table with the model's own rows; of a static student (no layers) the width of its table.
    """

    layers: int
    neurons: int
    tokens: int
    rank: int | None = None

    @property
    def is_static(self) -> bool:
        """Whether the student is a table without layers."""
        return self.layers == 0

    def recipe_keys(self, shape: ModelShape) -> dict[str, Any]:
        """Return the keys of a recipe's `student` section; none for what stays as the model has it."""
        keys: dict[str, Any] = {}
        if self.is_static:
            keys["layers"] = 0
        elif self.layers < shape.layers:
            keys["layers"] = {"count": self.layers, "choose": "best"}
        if self.neurons < shape.neurons and not self.is_static:
            keys["intermediate_size"] = self.neurons
        if self.tokens < shape.vocabulary:
            keys["vocabulary"] = {"kind": "trim", "size": self.tokens, "letters": "seen"}
        if self.rank is not None:
            keys["embedding"] = {"rank": self.rank}
        return keys


@dataclass(frozen=True)
class Parts:
    """Parameters of a student by part. `table` has the layer that leads from a factorized table to the hidden size."""

    table: int
    positions: int
    layers: int
    other: int
    dense: int

    @property
    def total(self) -> int:
        """All parameters."""
        return self.table + self.positions + self.layers + self.other + self.dense


@dataclass(frozen=True)
class Design:
    """A student within a budget: its split, the parameters that it will have, and what else to know, in sentences."""

    shape: ModelShape
    budget: int
    split: Split
    parts: Parts
    notes: tuple[str, ...]

    def student_keys(self) -> dict[str, Any]:
        """Return the keys of a recipe's `student` section, without its model."""
        return self.split.recipe_keys(self.shape)


def design_student(shape: ModelShape, budget: Budget, tokens_used: TokensUsed | int, static: bool = False) -> Design:
    """Design a student with the model's own layers; a static one if that is asked for, or if no layer fits."""
    parameters = budget.of(shape)
    if parameters > shape.parameters:
        raise DistilvecError(
            f"a student of {_millions(parameters)} parameters cannot be cut from {shape.name}, which has "
            f"{_millions(shape.parameters)}.",
            "Give a smaller size, or name a larger model with --student.",
            key="student.size",
        )
    tokens = available_tokens(shape, tokens_used)
    split = None if static else _first_split(shape, parameters, tokens)
    if split is None:
        split = _static_split(shape, parameters, tokens)
        split = with_unseen_tokens(shape, parameters, tokens, split)
        notes = _static_notes(shape, parameters, tokens, split, static)
        return Design(shape, parameters, split, count_parts(shape, split), notes)
    split = widen(shape, parameters, tokens, split)
    split = with_unseen_tokens(shape, parameters, tokens, split)
    notes = _notes(shape, parameters, tokens, split)
    return Design(shape, parameters, split, count_parts(shape, split), notes)


def count_parts(shape: ModelShape, split: Split) -> Parts:
    """Return the parameters of a student as students/build.py makes it."""
    if split.is_static and split.rank is not None:
        return Parts(split.tokens * split.rank, 0, 0, 0, linear_parameters(shape, split.rank))
    width = shape.hidden_size
    layer = shape.layer_parameters - (shape.neurons - split.neurons) * shape.neuron_parameters
    if split.rank is None:
        table = split.tokens * shape.row_size
        positions = shape.position_parameters
        other = shape.other_parameters
    else:
        # ELECTRA's layout (students/factorize.py): small tables, a linear layer with bias, and no pooler
        table = split.tokens * split.rank + (split.rank + 1) * width
        positions = shape.position_parameters // width * split.rank
        other = 0
    dense = shape.kept_parameters if shape.linear == "keep" else linear_parameters(shape, width)
    return Parts(table, positions, split.layers * layer, other, dense)


def linear_parameters(shape: ModelShape, width: int) -> int:
    """Return the parameters of the new linear layer behind pooled vectors of this width; 0 without one."""
    if shape.linear == "never" or (shape.linear != "always" and width == shape.linear_dim):
        return 0
    return width * shape.linear_dim


def available_tokens(shape: ModelShape, tokens_used: TokensUsed | int) -> TokensUsed:
    """Return the tokens used, or the whole vocabulary for a model that cannot be trimmed."""
    if shape.no_trimming:
        return TokensUsed(shape.vocabulary, shape.vocabulary)
    tokens = TokensUsed(tokens_used) if isinstance(tokens_used, int) else tokens_used
    number = min(tokens.number, shape.vocabulary)
    least = min(number, max(tokens.least, LEAST_TOKENS))
    possible = min(max(tokens.possible, number), shape.vocabulary)
    return replace(tokens, number=number, least=least, possible=possible)


def part_of_neurons(shape: ModelShape, divisor: int) -> int:
    """Return a part of the neurons, all of them for a model whose layers cannot be narrower."""
    return shape.neurons if shape.no_narrowing else max(1, shape.neurons // divisor)


def fewest_neurons(shape: ModelShape) -> int:
    """Return the neurons of the narrowest layer: an eighth, and a sixteenth beside rows that cannot be shorter."""
    return part_of_neurons(shape, 16 if shape.no_factorizing else 8)


def fill_table(
    shape: ModelShape, parameters: int, tokens: TokensUsed, layers: int, neurons: int, least_rank: int = LEAST_RANK
) -> Split | None:
    """Give the table what layers leave: every token first, then numbers for each; None if it is too little for any.

    Tokens are left out where there are less than `least_rank` numbers for each of them.
    """
    whole = Split(layers, neurons, tokens.number)
    if count_parts(shape, whole).total <= parameters:
        return whole
    if shape.no_factorizing:
        return with_tokens(shape, parameters, tokens, whole)
    least_rank = min(least_rank, shape.hidden_size // 4)
    fixed = count_parts(shape, replace(whole, rank=0)).total
    each = count_parts(shape, replace(whole, rank=1)).total - fixed
    rank = (parameters - fixed) // each // RANK_STEP * RANK_STEP
    rank = min(max(0, rank), shape.hidden_size - RANK_STEP)
    if rank >= least_rank:
        return replace(whole, rank=rank)
    return with_tokens(shape, parameters, tokens, replace(whole, rank=least_rank))


def with_tokens(shape: ModelShape, parameters: int, tokens: TokensUsed, split: Split) -> Split | None:
    """Return the split with as many tokens as fit; None below the least number of tokens."""
    row = shape.row_size if split.rank is None else split.rank
    room = parameters - count_parts(shape, replace(split, tokens=0)).total
    count = min(tokens.number, room // row)
    return replace(split, tokens=count) if count >= tokens.least else None


def _first_split(shape: ModelShape, parameters: int, tokens: TokensUsed) -> Split | None:
    """Return the first split, in the rule's order, that keeps the tokens; else the one with most of them.

    None if not even one layer fits.
    """
    for layers, neurons in _attempts(shape, parameters, tokens):
        split = fill_table(shape, parameters, tokens, layers, neurons)
        if split is None:
            continue
        # All tokens, or about half of the parameters in rows that cannot be shorter
        has_all_tokens = split.tokens == tokens.number
        is_large = split.rank is None and count_parts(shape, split).table >= LEAST_TABLE_SHARE * parameters
        if has_all_tokens or is_large:
            return split

    layers = shape.layers if shape.no_pruning else 1
    narrow = [fewest_neurons(shape)]
    if not shape.no_factorizing:  # rows that cannot be shorter need all that narrow layers leave (docs/sizes.md)
        narrow.insert(0, part_of_neurons(shape, 4))
    for neurons in narrow:
        split = fill_table(shape, parameters, tokens, layers, neurons)
        if split is not None:
            return split

    return None


def _static_split(shape: ModelShape, parameters: int, tokens: TokensUsed) -> Split:
    """Return the split of a static student: every token, with rows as long as fit; the rarest tokens go last."""
    most = shape.dim
    whole = Split(0, 0, tokens.number, most)
    if count_parts(shape, whole).total <= parameters:
        return whole
    least = min(LEAST_RANK, most)
    outputs = 0 if shape.linear == "never" else shape.linear_dim
    rank = min(most, parameters // (tokens.number + outputs) // RANK_STEP * RANK_STEP)
    if rank >= least:
        return replace(whole, rank=rank)

    smallest = smallest_static(shape, tokens)
    count = (parameters - count_parts(shape, replace(smallest, tokens=0)).total) // least
    if count >= tokens.least:
        return replace(smallest, tokens=min(count, tokens.number))
    needed = count_parts(shape, smallest).total
    raise DistilvecError(
        f"found {parameters:,} parameters; the smallest student of {shape.name} has {needed:,}: "
        f"{describe_split(smallest)}.",
        f"Give at least {_millions(math.ceil(needed / 10_000) * 10_000)}, or a smaller model with --student.",
    )


def smallest_static(shape: ModelShape, tokens: TokensUsed) -> Split:
    """Return the smallest static student of a model: the least tokens and rank."""
    return Split(0, 0, tokens.least, min(LEAST_RANK, shape.dim))


def _static_notes(
    shape: ModelShape, parameters: int, tokens: TokensUsed, split: Split, is_asked: bool
) -> tuple[str, ...]:
    """Say that the student is static, why, and what was left out."""
    notes = ["The student is static: the mean of learned token vectors. It knows no order of words."]
    if not is_asked:
        smallest = smallest_split(shape, tokens)
        least = _millions(math.ceil(count_parts(shape, smallest).total / 10_000) * 10_000)
        notes.append(f"A student with a layer needs at least {least} parameters: {describe_split(smallest)}.")
    if shape.no_trimming:
        notes.append(f"The vocabulary stays whole: {shape.no_trimming}")
    if split.tokens != tokens.number:
        notes.append(_tokens_note(tokens, split))
    total = count_parts(shape, split).total
    if total < 0.9 * parameters:
        notes.append(
            f"The student has {_millions(total)} parameters, less than the {_millions(parameters)} allowed: its table "
            "is as wide as the model's vectors."
        )
    return tuple(notes)


def _tokens_note(tokens: TokensUsed, split: Split) -> str:
    """Say how many of the tokens stay, and how much of the texts they are, or how many there are for new texts."""
    if split.tokens > tokens.number:
        more = split.tokens - tokens.number
        return f"{more:,} tokens are kept beside the {tokens.number:,} that the texts use, for the words of new texts."
    coverage = tokens.coverage(split.tokens)
    share = "" if coverage is None else f", about {coverage:.1%} of their occurrences"
    return f"{split.tokens:,} of the {tokens.number:,} tokens that the texts use are kept{share}."


def _attempts(shape: ModelShape, parameters: int, tokens: TokensUsed) -> Iterator[tuple[int, int]]:
    """Yield numbers of layers and neurons, in the order in which the rule tries them."""
    half, quarter = part_of_neurons(shape, 2), part_of_neurons(shape, 4)
    if shape.no_pruning:
        yield from ((shape.layers, neurons) for neurons in (half, quarter))
        return
    most = _layer_count(shape, parameters, tokens, half)
    for layers in range(most, 0, -1):
        yield layers, half
    yield 1, quarter


def _layer_count(shape: ModelShape, parameters: int, tokens: TokensUsed, neurons: int) -> int:
    """Return the number of layers beside a table of good rows; whole rows may have about half of the parameters."""
    without_layers = Split(0, neurons, tokens.number)
    each = count_parts(shape, replace(without_layers, layers=1)).layers
    whole = count_parts(shape, without_layers)
    if not shape.no_factorizing:
        good = count_parts(shape, replace(without_layers, rank=shape.hidden_size // GOOD_RANK))
        count = (parameters - min(good.total, whole.total)) // each
    elif whole.table + whole.positions <= TABLE_SHARE * parameters:
        count = (parameters - whole.total) // each
    else:
        count = round(((1 - TABLE_SHARE) * parameters - whole.other - whole.dense) / each)
    return min(max(count, 1), shape.layers)


def widen(shape: ModelShape, parameters: int, tokens: TokensUsed, split: Split) -> Split:
    """Return the split with more neurons where neither layers nor the table can take what is left for the layers."""
    parts = count_parts(shape, split)
    if split.tokens == tokens.number and split.rank is None:
        room = parameters - parts.total
    elif split.layers == shape.layers:
        room = int((1 - TABLE_SHARE) * parameters) - parts.layers - parts.other - parts.dense
    else:
        return split
    steps = room // (split.layers * max(1, shape.neuron_parameters) * NEURON_STEP)
    if shape.no_narrowing or steps <= 0:
        return split
    neurons = min(shape.neurons, split.neurons + int(steps) * NEURON_STEP)
    return fill_table(shape, parameters, tokens, split.layers, neurons) or split


def with_unseen_tokens(shape: ModelShape, parameters: int, tokens: TokensUsed, split: Split) -> Split:
    """Return the split with tokens that the texts do not use, where nothing else can take what is left.

    New texts have words that the texts of the training lack. The whole vocabulary stays where it fits, else the tokens
    that are possible.
    """
    has_whole_rows = split.rank is None or (split.is_static and split.rank == shape.dim)
    if split.tokens < tokens.number or not has_whole_rows:
        return split
    row = shape.row_size if split.rank is None else split.rank
    room = parameters - count_parts(shape, split).total
    count = split.tokens + max(0, room) // row
    if count < shape.vocabulary:
        count = min(count, tokens.possible)
    return replace(split, tokens=min(count, shape.vocabulary))


def smallest_split(shape: ModelShape, tokens: TokensUsed) -> Split:
    """Return the smallest student of a model: one layer, the fewest neurons, the least tokens and rank."""
    layers = shape.layers if shape.no_pruning else 1
    rank = None if shape.no_factorizing else min(LEAST_RANK, shape.hidden_size // 4)
    return Split(layers, fewest_neurons(shape), tokens.least, rank)


def describe_split(split: Split) -> str:
    """Return a split in words: "2 layers, 768 neurons, 24,000 tokens, rank 96"."""
    if split.is_static:
        return f"static, {split.tokens:,} tokens by {split.rank}"
    parts = [f"{split.layers} {'layer' if split.layers == 1 else 'layers'}"]
    if split.neurons:
        parts.append(f"{split.neurons:,} neurons in each")
    parts.append(f"{split.tokens:,} tokens")
    if split.rank is not None:
        parts.append(f"rank {split.rank}")
    return ", ".join(parts)


def _notes(shape: ModelShape, parameters: int, tokens: TokensUsed, split: Split) -> tuple[str, ...]:
    """Return what was not possible, and what would be another choice."""
    notes = []
    parts = count_parts(shape, split)
    if shape.no_trimming:
        notes.append(f"The vocabulary stays whole: {shape.no_trimming}")
    if shape.no_factorizing and split.tokens < tokens.number:
        notes.append(f"The token table keeps {shape.row_size} numbers for each token: {shape.no_factorizing}")
    if shape.no_pruning:
        notes.append(f"All layers stay: {shape.no_pruning}")
    if shape.no_narrowing:
        notes.append(f"All neurons stay: {shape.no_narrowing}")
    if split.tokens != tokens.number:
        notes.append(_tokens_note(tokens, split))
    if split.neurons < shape.neurons // 2:
        notes.append(f"{split.neurons:,} of {shape.neurons:,} neurons: half of them would leave the table too little.")
    if parts.positions + parts.other > 0.1 * parts.total:
        beside = _millions(parts.positions + parts.other)
        notes.append(f"{beside} parameters are positions, a pooler or a norm, which cannot be made smaller.")
    if parts.total < 0.9 * parameters:
        notes.append(
            f"The student has {_millions(parts.total)} parameters, less than the {_millions(parameters)} allowed: a "
            "further layer does not fit, and the texts use no further token."
        )
    if shape.hidden_size >= WIDE and parameters < SMALL:
        model = "multilingual-e5-small" if shape.vocabulary >= MULTILINGUAL else "all-MiniLM-L6-v2"
        notes.append(
            f"Layers of {shape.hidden_size} dimensions are wide for {_millions(parameters)} parameters. A student of "
            f"384 dimensions from {model} (--student) has room for more layers and tokens."
        )
    return tuple(notes)


def _millions(parameters: int) -> str:
    """Return a number of parameters, such as 4.98M."""
    return f"{parameters / 1e6:.2f}M"
