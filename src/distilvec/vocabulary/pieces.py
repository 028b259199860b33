"""What a token stands for in text, and which of another tokenizer's tokens the same text has: the ground of tokenizer surgery.

Four kinds of fast tokenizers write the same text differently: WordPiece marks what goes on a word (##ing), byte-level ones
write bytes as letters and the space before a word as Ġ, metaspace ones (SentencePiece) write it as ▁, and plain ones mark
nothing, or the end of a word. A `Surface` says what they have in common.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from distilvec.core.errors import DistilvecError
from distilvec.models.tokenizers import plain_copy

Kind = Literal["wordpiece", "byte_level", "metaspace", "plain"]
OPTION = "student.vocabulary.tokenizer"  # the recipe's key for a tokenizer that exists
SPACE = "\u2581"
EDGES = ("^ +", " +$")  # patterns that take the spaces around a text away
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_CARRIER = "a"  # stands before text that goes on a word
ROLES = ("cls", "sep", "bos", "eos", "mask", "unk", "pad")  # padding last: a token of another role may be used for it
_STANDS_FOR = {"cls": ("cls", "bos"), "bos": ("bos", "cls"), "sep": ("sep", "eos"), "eos": ("eos", "sep")}
_ONE_SPACE = [  # white space between words as a single space, behind the last one as none
    {"type": "Replace", "pattern": {"Regex": r"(?<=\S)\s+$"}, "content": ""},
    {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
]


@dataclass(frozen=True)
class Surface:
    """A token's text as UTF-8, which a part of a character is not. `initial`: a space stands before it, or the beginning of a text."""

    text: bytes
    initial: bool


class Pieces:
    """A fast tokenizer, read both ways: every token's surface, and the tokens of a surface.

    `plain` is a copy that neither pads nor truncates. Errors: DistilvecError with `key` for a slow tokenizer (one without tokenizer.json).
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, name: str = "the tokenizer", key: str = OPTION) -> None:
        copy = plain_copy(tokenizer)
        if copy is None:
            raise DistilvecError(
                f"[{key}] {name} is a {type(tokenizer).__name__} without a fast form (tokenizer.json). Convert it: load it with "
                "transformers' AutoTokenizer and use_fast=True, save it, and give that folder."
            )
        self.tokenizer, self.name, self.key, self.plain = tokenizer, name, key, copy
        self.state: dict[str, Any] = json.loads(copy.to_str())
        self.vocabulary: dict[str, int] = copy.get_vocab(with_added_tokens=True)
        self.tokens: list[str | None] = [None] * (1 + max(self.vocabulary.values()))
        for token, number in self.vocabulary.items():
            self.tokens[number] = token
        self.kind: Kind = _kind(self.state)
        model, role = self.state["model"], tokenizer.unk_token_id
        self.unknown: int | None = (
            model.get("unk_id", self.vocabulary.get(model.get("unk_token") or "")) if role is None else role
        )
        self.special: set[int] = {entry["id"] for entry in self.state["added_tokens"] if entry["special"]} | set(
            tokenizer.all_special_ids
        )
        self.special |= set() if self.unknown is None else {self.unknown}
        self.added: set[int] = {entry["id"] for entry in self.state["added_tokens"]} - self.special

    def dense(self) -> Pieces:
        """This tokenizer, if every id up to the last has a token. Errors: DistilvecError, naming the first that has none."""
        if None in self.tokens:
            raise DistilvecError(
                f"[{self.key}] {self.name}: its ids have holes, {self.tokens.index(None)} has no token. Save it with dense ids."
            )
        return self

    @property
    def marks(self) -> tuple[Any, ...]:
        """Tokenizers with equal marks write the same token as the same string."""
        model = self.state["model"]
        return self.kind, model.get("continuing_subword_prefix") or "", model.get("end_of_word_suffix") or ""

    @cached_property
    def roles(self) -> dict[str, int]:
        """The special tokens' ids by role."""
        found = {role: getattr(self.tokenizer, f"{role}_token_id") for role in ROLES}
        return {role: number for role, number in found.items() if number is not None}

    @cached_property
    def frame(self) -> list[int]:
        """The special tokens that are put around a text, in order."""
        return list(self.plain.encode("", add_special_tokens=True).ids)

    def counterpart(self, number: int, other: Pieces) -> int | None:
        """The other tokenizer's token with the same role as this special one, or else with the same name."""
        for role, own in self.roles.items():
            if own == number:
                for same in _STANDS_FOR.get(role, (role,)):
                    if same in other.roles:
                        return other.roles[same]
        return other.vocabulary.get(str(self.tokens[number]))

    # -- tokens to surfaces ------------------------------------------------------------------------------------------

    def surface(self, number: int) -> Surface | None:
        """What an ordinary token stands for; None for special ones and for ids without a token."""
        token = self.tokens[number]
        if token is None or number in self.special:
            return None
        if number in self.added:
            return _spaced(token.encode())
        model = self.state["model"]
        if byte := _BYTE.fullmatch(token):
            return Surface(bytes([int(byte[1], 16)]), False)
        if self.kind == "byte_level":
            letters = _bytes_of_letters()
            return _spaced(
                bytes(letters[letter] for letter in token)
                if all(letter in letters for letter in token)
                else token.encode()
            )
        if self.kind == "metaspace":
            return _spaced(token.replace(SPACE, " ").encode())
        prefix, suffix = model.get("continuing_subword_prefix") or "", model.get("end_of_word_suffix") or ""
        if prefix and token.startswith(prefix) and len(token) > len(prefix):
            return Surface(token.removeprefix(prefix).encode(), False)
        text = token.removesuffix(suffix) if suffix and len(token) > len(suffix) else token
        return Surface(text.encode(), not _leans_left(text[0]) if text else True)

    # -- surfaces to tokens ------------------------------------------------------------------------------------------

    def encode(self, surfaces: Sequence[Surface]) -> list[list[int]]:
        """The tokens of each surface where it stands in a text, without special ones; [] where the tokenizer has none for it."""
        found: list[list[int]] = [[] for _ in surfaces]
        texts: dict[int, str] = {}
        for place, surface in enumerate(surfaces):
            try:
                texts[place] = surface.text.decode("utf-8")
            except UnicodeDecodeError:
                found[place] = self._bytes(surface.text)
        if self.kind in ("byte_level", "metaspace"):
            written = [" " * surfaces[place].initial + text for place, text in texts.items()]
            for place, ids in zip(texts, self._ids(self.neutral, written), strict=True):
                found[place] = ids
            return found
        begins = {place: text for place, text in texts.items() if surfaces[place].initial}
        goes_on = {place: text for place, text in texts.items() if not surfaces[place].initial}
        cuts = [
            _first_word(encoding)
            for encoding in self.neutral.encode_batch([_CARRIER + text for text in goes_on.values()])
        ]
        heads = self._ids(self._going_on, [text[:cut] for text, cut in zip(goes_on.values(), cuts, strict=True)])
        tails = self._ids(self.neutral, [text[cut:] for text, cut in zip(goes_on.values(), cuts, strict=True)])
        for place, head, tail in zip(goes_on, heads, tails, strict=True):
            found[place] = head + tail
        for place, ids in zip(begins, self._ids(self.neutral, list(begins.values())), strict=True):
            found[place] = ids
        return found

    def _ids(self, tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
        encodings = tokenizer.encode_batch(texts, add_special_tokens=False)
        return [[number for number in encoding.ids if number != self.unknown] for encoding in encodings]

    def _bytes(self, text: bytes) -> list[int]:
        """The tokens of a part of a character: as letters of a byte-level alphabet, or as byte tokens."""
        if self.kind == "byte_level":
            letters = {value: letter for letter, value in _bytes_of_letters().items()}
            return self._ids(self._bare, ["".join(letters[value] for value in text)])[0]
        found = [self.vocabulary.get(f"<0x{value:02X}>") for value in text]
        return [number for number in found if number is not None] if None not in found else []

    @cached_property
    def neutral(self) -> Tokenizer:
        """The tokenizer without special tokens, and without a space that it would put before a text by itself."""
        state = json.loads(json.dumps(self.state))
        state["post_processor"] = None
        state["added_tokens"] = [entry for entry in state["added_tokens"] if not entry["special"]]
        state["normalizer"] = _without_prefix(state["normalizer"])
        state["pre_tokenizer"] = _without_prefix(state["pre_tokenizer"])
        if self.kind == "metaspace" and any(
            part["type"] == "WhitespaceSplit" for part in _parts(state["pre_tokenizer"])
        ):
            # it takes the space away before it is marked (T5, XLM-R), and marks every word anew
            kept = [part for part in _parts(state["pre_tokenizer"]) if part["type"] != "WhitespaceSplit"]
            state["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": kept}
            state["normalizer"] = {"type": "Sequence", "normalizers": [*_parts(state["normalizer"]), *_ONE_SPACE]}
        return _tokenizer(state)

    @cached_property
    def _bare(self) -> Tokenizer:
        """The model alone: what it reads is written in its own letters."""
        return _tokenizer(
            {**self.state, "normalizer": None, "pre_tokenizer": None, "post_processor": None, "added_tokens": []}
        )

    @cached_property
    def _going_on(self) -> Tokenizer:
        """The neutral tokenizer with the tokens that go on a word where otherwise those stand that begin one."""
        state = json.loads(self.neutral.to_str())
        prefix = state["model"].get("continuing_subword_prefix")
        if not prefix or state["model"]["type"] != "WordPiece":
            return self.neutral
        vocabulary = state["model"]["vocab"]
        inner = {token: number for token, number in vocabulary.items() if token.startswith(prefix) and token != prefix}
        unknown = state["model"]["unk_token"]
        state["model"]["vocab"] = {
            unknown: vocabulary[unknown],
            **inner,
            **{t.removeprefix(prefix): n for t, n in inner.items()},
        }
        state["added_tokens"] = []
        return _tokenizer(state)


def _kind(state: dict[str, Any]) -> Kind:
    kinds = {part["type"] for name in ("normalizer", "pre_tokenizer", "decoder") for part in _parts(state[name])}
    if state["model"]["type"] == "WordPiece":
        return "wordpiece"
    if "ByteLevel" in kinds:
        return "byte_level"
    replaced = any(part["type"] == "Replace" and part.get("content") == SPACE for part in _parts(state["normalizer"]))
    return "metaspace" if "Metaspace" in kinds or replaced else "plain"


def _parts(component: dict[str, Any] | None) -> list[dict[str, Any]]:
    """A component, or the components of a sequence."""
    if component is None:
        return []
    for name in ("normalizers", "pretokenizers", "decoders"):
        if name in component:
            return [part for entry in component[name] for part in _parts(entry)]
    return [component]


def _without_prefix(component: dict[str, Any] | None) -> dict[str, Any] | None:
    """A normaliser or pre-tokenizer that neither adds a space before or behind a text nor takes one away."""
    if component is None or component["type"] in ("Prepend", "Strip"):
        return None
    if component["type"] == "Replace" and component["content"] == "" and component["pattern"].get("Regex") in EDGES:
        return None
    for name in ("normalizers", "pretokenizers"):
        if name in component:
            kept = [part for entry in component[name] if (part := _without_prefix(entry)) is not None]
            return {**component, name: kept} if kept else None
    changed = dict(component)
    if "add_prefix_space" in changed and changed["type"] == "ByteLevel":
        changed["add_prefix_space"] = False
    if changed["type"] == "Metaspace":
        changed["prepend_scheme"] = "never"
        changed.pop("add_prefix_space", None)
    return changed


def _tokenizer(state: dict[str, Any]) -> Tokenizer:
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _first_word(encoding: Any) -> int:
    """How many characters behind the carrier belong to its word."""
    words = [word for word, (start, end) in zip(encoding.word_ids, encoding.offsets, strict=True) if end > start]
    ends = [
        end for word, (_, end) in zip(encoding.word_ids, encoding.offsets, strict=True) if words and word == words[0]
    ]
    return max(0, max(ends, default=1) - len(_CARRIER))


def _spaced(text: bytes) -> Surface:
    """A text that may begin with the space before it; nothing but spaces is a text of its own."""
    return Surface(text[1:], True) if text[:1] == b" " and text.strip() else Surface(text, False)


def _leans_left(character: str) -> bool:
    """Whether a character that is a token by itself stands without a space behind what comes before it, as a full stop does."""
    category = unicodedata.category(character)
    return (category[0] in "PS" and category not in ("Ps", "Pi")) or unicodedata.east_asian_width(character) == "W"


@lru_cache(maxsize=1)
def _bytes_of_letters() -> dict[str, int]:
    """The alphabet of byte-level tokenizers (GPT-2): each letter's byte."""
    plain = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("\u00a1"), ord("\u00ac") + 1),
        *range(ord("\u00ae"), ord("\u00ff") + 1),
    ]
    others = [value for value in range(256) if value not in plain]
    return {**{chr(value): value for value in plain}, **{chr(256 + place): value for place, value in enumerate(others)}}
