"""Text of a token, and another tokenizer's tokens of the same text: the base of tokenizer surgery.

Fast tokenizers spell the same text differently. WordPiece prefixes continuation tokens (##ing). Byte-level tokenizers
write bytes as letters, and a space as Ġ. Metaspace tokenizers (SentencePiece) write ▁ for a space. Plain tokenizers
write no space, or a suffix at the end of a word. A `Surface` is independent of the spelling.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from distilvec.core.errors import DistilvecError
from distilvec.models.tokenizers import byte_letters, plain_copy

Kind = Literal["wordpiece", "byte_level", "metaspace", "plain"]
State = dict[str, Any]  # the content of tokenizer.json, or of one of its components
SPACE = "\u2581"
EDGES = ("^ +", " +$")  # patterns that remove the spaces around a text
ROLES = ("cls", "sep", "bos", "eos", "mask", "unk", "pad")  # padding last: a token of another role may be used for it
SAME_ROLE = {"cls": ("cls", "bos"), "bos": ("bos", "cls"), "sep": ("sep", "eos"), "eos": ("eos", "sep")}
BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_CARRIER = "a"  # put before text that continues a word
_ONE_SPACE = [  # white space between words becomes a single space, at the end of a text none
    {"type": "Replace", "pattern": {"Regex": r"(?<=\S)\s+$"}, "content": ""},
    {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
]


@dataclass(frozen=True)
class Surface:
    """Text of a token as UTF-8, which may be a part of a character; `initial`: at the beginning of a text or word."""

    text: bytes
    initial: bool


class Pieces:
    """Fast tokenizer with the surface of every token and the tokens of every surface.

    `plain` is a copy without padding and truncation, `state` the content of its tokenizer.json. `tokens` [ids] has None
    for ids without a token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, name: str = "the tokenizer") -> None:
        copy = plain_copy(tokenizer)
        if copy is None:
            raise DistilvecError(
                f"{name} is a {type(tokenizer).__name__} without a fast form (tokenizer.json).",
                "Load it with transformers' AutoTokenizer and use_fast=True, save it, and give that folder.",
            )
        self.tokenizer = tokenizer
        self.name = name
        self.plain = copy
        self.state: State = json.loads(copy.to_str())
        self.vocabulary: dict[str, int] = copy.get_vocab(with_added_tokens=True)
        self.tokens: list[str | None] = [None] * (1 + max(self.vocabulary.values()))
        for token, number in self.vocabulary.items():
            self.tokens[number] = token
        self.kind: Kind = _kind(self.state)
        model = self.state["model"]
        added = self.state["added_tokens"]
        self.prefix: str = model.get("continuing_subword_prefix") or ""
        self.suffix: str = model.get("end_of_word_suffix") or ""
        self.unknown: int | None = tokenizer.unk_token_id
        if self.unknown is None:
            self.unknown = model.get("unk_id", self.vocabulary.get(model.get("unk_token") or ""))
        self.special = {entry["id"] for entry in added if entry["special"]} | set(tokenizer.all_special_ids)
        if self.unknown is not None:
            self.special.add(self.unknown)
        self.added: set[int] = {entry["id"] for entry in added} - self.special

    def dense(self) -> Pieces:
        """Return these pieces; refuse ids without a token."""
        if None in self.tokens:
            raise DistilvecError(
                f"{self.name}: its ids have holes, {self.tokens.index(None)} has no token.",
                "Save it with dense ids.",
            )
        return self

    @property
    def spelling(self) -> tuple[str, str, str]:
        """Return a key: tokenizers with equal keys write the same token as the same string."""
        return self.kind, self.prefix, self.suffix

    @cached_property
    def roles(self) -> dict[str, int]:
        """Return the special tokens' ids by role."""
        numbers = {role: getattr(self.tokenizer, f"{role}_token_id") for role in ROLES}
        return {role: number for role, number in numbers.items() if number is not None}

    @cached_property
    def around(self) -> list[int]:
        """Return the special tokens that are put around a text, in order."""
        return list(self.plain.encode("", add_special_tokens=True).ids)

    def counterpart(self, number: int, other: Pieces) -> int | None:
        """Return the other tokenizer's token with the same role as this special one, or else with the same name."""
        for role, role_number in self.roles.items():
            if role_number != number:
                continue
            for same_role in SAME_ROLE.get(role, (role,)):
                if same_role in other.roles:
                    return other.roles[same_role]
        return other.vocabulary.get(str(self.tokens[number]))

    def surface(self, number: int) -> Surface | None:
        """Return the text of an ordinary token, None for special tokens and ids without a token."""
        token = self.tokens[number]
        if token is None or number in self.special:
            return None
        if number in self.added:
            return _spaced(token.encode())
        if byte := BYTE.fullmatch(token):
            return Surface(bytes([int(byte[1], 16)]), False)
        if self.kind == "byte_level":
            letters = byte_letters()
            if all(letter in letters for letter in token):
                return _spaced(bytes(letters[letter] for letter in token))
            return _spaced(token.encode())
        if self.kind == "metaspace":
            return _spaced(token.replace(SPACE, " ").encode())
        if self.prefix and token.startswith(self.prefix) and token != self.prefix:
            return Surface(token.removeprefix(self.prefix).encode(), False)
        text = token.removesuffix(self.suffix) or token
        return Surface(text.encode(), not text or not _leans_left(text[0]))

    def is_byte(self, number: int) -> bool:
        """Return whether an ordinary token is a byte (<0xNN>) or only a part of a character."""
        surface = self.surface(number)
        is_named = BYTE.fullmatch(str(self.tokens[number])) is not None
        return surface is not None and (is_named or _decoded(surface.text) is None)

    def encode(self, surfaces: Sequence[Surface]) -> list[list[int]]:
        """Return the tokens of each surface inside a text, without special tokens; [] without any.

        Examples: Surface("evler", initial=True) is "ev ##ler", "Ġev ler" or "▁ev ler"; with initial=False it is
        "##ev ##ler", "ev ler" or "ev ler". WordPiece: of "aevler", with a carrier letter, the word's end is found, and
        the part inside the word is read by `_continuing`. Bytes that are no character: letters or byte tokens.
        """
        ids: dict[int, list[int]] = {}
        whole: dict[int, str] = {}  # texts that the neutral tokenizer splits as they are
        inner: dict[int, str] = {}  # parts inside a word, which need a letter before them
        spaced = self.kind in ("byte_level", "metaspace")
        for number, surface in enumerate(surfaces):
            text = _decoded(surface.text)
            if text is None:
                ids[number] = self._bytes(surface.text)
            elif spaced:
                whole[number] = f" {text}" if surface.initial else text
            elif surface.initial:
                whole[number] = text
            else:
                inner[number] = text
        ids |= zip(whole, self._ids(self.neutral, list(whole.values())), strict=True)

        carried = self.neutral.encode_batch([_CARRIER + text for text in inner.values()])
        heads: list[str] = []  # the end of the carrier's word
        tails: list[str] = []
        for text, encoding in zip(inner.values(), carried, strict=True):
            cut = _first_word(encoding)
            heads.append(text[:cut])
            tails.append(text[cut:])
        head_ids = self._ids(self._continuing, heads)
        tail_ids = self._ids(self.neutral, tails)
        for number, head, tail in zip(inner, head_ids, tail_ids, strict=True):
            ids[number] = head + tail
        return [ids[number] for number in range(len(surfaces))]

    def _ids(self, tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
        encodings = tokenizer.encode_batch(texts, add_special_tokens=False)
        return [[number for number in encoding.ids if number != self.unknown] for encoding in encodings]

    def _bytes(self, text: bytes) -> list[int]:
        """Return the tokens of a part of a character: letters of a byte-level alphabet, or byte tokens."""
        if self.kind == "byte_level":
            letters = {value: letter for letter, value in byte_letters().items()}
            return self._ids(self._bare, ["".join(letters[value] for value in text)])[0]
        numbers = []
        for value in text:
            number = self.vocabulary.get(f"<0x{value:02X}>")
            if number is None:
                return []
            numbers.append(number)
        return numbers

    @cached_property
    def _bare(self) -> Tokenizer:
        parts = dict.fromkeys(("normalizer", "pre_tokenizer", "post_processor"))
        return Tokenizer.from_str(json.dumps({**self.state, **parts, "added_tokens": []}))

    @cached_property
    def neutral(self) -> Tokenizer:
        """Return the tokenizer without special tokens, and without the space that it puts before a text."""
        added = [entry for entry in self.state["added_tokens"] if not entry["special"]]
        steps = _without_prefix(self.state["normalizer"])
        splits = _without_prefix(self.state["pre_tokenizer"])
        if self.kind == "metaspace" and any(part["type"] == "WhitespaceSplit" for part in splits):
            # T5 and XLM-R remove the space before they would write ▁
            steps = [*steps, *_ONE_SPACE]
            splits = [part for part in splits if part["type"] != "WhitespaceSplit"]
        normalizer = {"type": "Sequence", "normalizers": steps} if steps else None
        splitter = {"type": "Sequence", "pretokenizers": splits} if splits else None
        parts = {"normalizer": normalizer, "pre_tokenizer": splitter, "post_processor": None, "added_tokens": added}
        return Tokenizer.from_str(json.dumps({**self.state, **parts}))

    @cached_property
    def _continuing(self) -> Tokenizer:
        """Return the neutral WordPiece tokenizer that begins words with continuation tokens; others unchanged."""
        state = json.loads(self.neutral.to_str())
        if not self.prefix or state["model"]["type"] != "WordPiece":
            return self.neutral
        vocabulary = state["model"]["vocab"]
        unknown = state["model"]["unk_token"]
        inner = {token: number for token, number in vocabulary.items() if token.startswith(self.prefix)}
        inner.pop(self.prefix, None)
        bare = {token.removeprefix(self.prefix): number for token, number in inner.items()}
        state["model"]["vocab"] = {unknown: vocabulary[unknown], **inner, **bare}
        return Tokenizer.from_str(json.dumps({**state, "added_tokens": []}))


def components(component: State | None) -> list[State]:
    """Return the parts of a normalizer, pre-tokenizer, decoder or post-processor, nested sequences unfolded."""
    if component is None:
        return []
    for name in ("normalizers", "pretokenizers", "decoders", "processors"):
        if name in component:
            parts: list[State] = []
            for entry in component[name]:
                parts += components(entry)
            return parts
    return [component]


def _kind(state: State) -> Kind:
    kinds: set[str] = set()
    for name in ("normalizer", "pre_tokenizer", "decoder"):
        kinds.update(part["type"] for part in components(state[name]))
    if state["model"]["type"] == "WordPiece":
        return "wordpiece"
    if "ByteLevel" in kinds:
        return "byte_level"
    steps = components(state["normalizer"])
    writes_spaces = any(part["type"] == "Replace" and part["content"] == SPACE for part in steps)
    return "metaspace" if "Metaspace" in kinds or writes_spaces else "plain"


def _without_prefix(component: State | None) -> list[State]:
    """Return the parts of a normalizer or pre-tokenizer, changed to neither add nor remove spaces around a text."""
    parts = []
    for part in components(component):
        edge = part["type"] == "Replace" and part["content"] == "" and part["pattern"].get("Regex") in EDGES
        if part["type"] in ("Prepend", "Strip") or edge:
            continue
        if part["type"] == "ByteLevel" and "add_prefix_space" in part:
            part = {**part, "add_prefix_space": False}
        if part["type"] == "Metaspace":
            part = {**part, "prepend_scheme": "never"}
            part.pop("add_prefix_space", None)
        parts.append(part)
    return parts


def _first_word(encoding: Any) -> int:
    """Return how many characters behind the carrier belong to its word."""
    words = []
    for word, (begin, end) in zip(encoding.word_ids, encoding.offsets, strict=True):
        if end > begin:
            words.append((word, end))
    return max((end for word, end in words if word == words[0][0]), default=1) - len(_CARRIER)


def _spaced(text: bytes) -> Surface:
    """Split off the space before a text; white space alone stays text."""
    if text[:1] == b" " and text.strip():
        return Surface(text[1:], True)
    return Surface(text, False)


def _decoded(text: bytes) -> str | None:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return None


def _leans_left(character: str) -> bool:
    """Return whether a character that is a token of its own follows the word before it without a space: a full stop."""
    category = unicodedata.category(character)
    return (category[0] in "PS" and category not in ("Ps", "Pi")) or unicodedata.east_asian_width(character) == "W"
