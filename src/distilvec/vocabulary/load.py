"""Existing tokenizers from a model's folder or id, a bare tokenizer.json, or a SentencePiece model.

Source for SentencePiece: github.com/google/sentencepiece, src/normalizer.cc, unigram_model.cc and bpe_model.cc. The
conversion of transformers ignores the settings for spaces, and merges pieces that SentencePiece never merges.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from distilvec.core.errors import DistilvecError, about
from distilvec.core.extras import require_extra
from distilvec.core.model_name import ModelName
from distilvec.models.load import load_tokenizer, tokenizer_file
from distilvec.models.tokenizers import has_all_parts
from distilvec.vocabulary.edit import fast_tokenizer, with_renamed_tokens
from distilvec.vocabulary.pieces import EDGES, SAME_ROLE, SPACE, Pieces, State, components

OPTION = "student.vocabulary.tokenizer"  # the recipe's key for an existing tokenizer
NAMES = {  # usual names by role, the likeliest first
    "pad": ("<pad>", "[PAD]", "<|pad|>", "<|padding|>"),
    "unk": ("<unk>", "[UNK]", "<|unk|>"),
    "mask": ("<mask>", "[MASK]", "<|mask|>"),
    "cls": ("[CLS]", "<cls>"),
    "sep": ("[SEP]", "<sep>"),
    "bos": ("<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "[BOS]"),
    "eos": ("</s>", "<eos>", "<|end_of_text|>", "<|endoftext|>", "[EOS]"),
}
_ORDINARY, _UNKNOWN, _CONTROL, _GIVEN, _UNUSED, _BYTE = range(1, 7)  # types of pieces; given: by the trainer's user
_SENTENCEPIECE_KINDS = {1: "Unigram", 2: "BPE", 3: "word", 4: "character"}
_BYTES_APART = 7  # score of a byte in times the lowest: below the six characters that spell its name
_BONUS = 0.1  # a given piece's score is the best score per byte minus this


def read_tokenizer(name: str, like: Pieces) -> PreTrainedTokenizerBase:
    """Read the tokenizer `name`: a model's folder or id as it is, a `.json` or `.model` file with the roles of `like`.

    Of a folder or id the whole tokenizer.json counts, also where transformers leaves parts of it out.
    `like` is the tokenizer of the model that gets the new one. Files name no roles: special tokens get theirs by their
    usual names, and tokens of the roles that `like` puts around a text are put there. A missing padding token is added.
    """
    path, kind = Path(name), Path(name).suffix.lower()
    with about(OPTION, name):
        if kind not in (".json", ".model") or path.is_dir():
            tokenizer = load_tokenizer(ModelName(name))
            file = tokenizer_file(ModelName(name))
            if file is not None and not has_all_parts(tokenizer, file):
                state = json.loads(file.read_text(encoding="utf-8"))
                tokenizer = fast_tokenizer({**state, "truncation": None, "padding": None}, tokenizer)
            _add_padding(tokenizer, like)
            return tokenizer
        if not path.is_file():
            raise DistilvecError(
                f"no file {name}. Expected a tokenizer.json, a SentencePiece .model, or a model's folder or id."
            )
        if kind == ".json":
            return _with_roles(json.loads(Tokenizer.from_file(str(path)).to_str()), path, like)
        return _with_roles(from_sentencepiece(path), path, like)


def _with_roles(state: State, path: Path, like: Pieces) -> PreTrainedTokenizerFast:
    """Return the tokenizer with roles by name, and the special-token template of `like` with its own tokens."""
    file_parts = components(state["post_processor"])
    state = {**state, "post_processor": None, "truncation": None, "padding": None}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(state)))
    vocabulary = Pieces(tokenizer, str(path)).dense().vocabulary
    roles = {}
    for role in NAMES:
        names = [name for name in _names(role, like) if name in vocabulary]
        if names:
            roles[f"{role}_token"] = names[0]
    bare = fast_tokenizer(state, like.tokenizer, roles)
    _add_padding(bare, like)
    pieces = Pieces(bare, str(path))

    def renamed(token: str, number: int) -> tuple[str, int]:
        same = like.counterpart(number, pieces)
        if same is None:
            usual: list[str] = []
            for role, role_number in like.roles.items():
                if role_number == number:
                    usual += _names(role, like)
            raise DistilvecError(
                f"the model reads texts with {token}, and {path} has no token for it. Expected one of "
                f"{', '.join(dict.fromkeys(usual)) or token}.",
                "Add it, or give a tokenizer's folder with roles.",
            )
        return str(pieces.tokens[same]), same

    parts = [part for part in file_parts if part["type"] == "ByteLevel"]  # trims offsets, adds no token
    for part in components(like.state["post_processor"]):
        if part["type"] != "ByteLevel":
            parts += components(with_renamed_tokens(part, renamed))
    processor = {"type": "Sequence", "processors": parts} if parts else None
    return fast_tokenizer({**pieces.state, "post_processor": processor}, bare)


def _add_padding(tokenizer: PreTrainedTokenizerBase, like: Pieces) -> None:
    """Add a padding token of its own where one is missing: a model may count positions from it, so no other serves."""
    if tokenizer.pad_token is None and like.tokenizer.pad_token is not None:
        tokenizer.add_special_tokens({"pad_token": NAMES["pad"][0]})


def _names(role: str, like: Pieces) -> list[str]:
    """Return the possible names of a role's token: that of `like`, the usual ones, those of an equal role."""
    if role not in like.roles:
        return list(NAMES[role])
    usual = [name for same in SAME_ROLE.get(role, (role,)) for name in NAMES[same]]
    return [str(like.tokens[like.roles[role]]), *usual]


def from_sentencepiece(path: Path) -> State:
    """Return a model file as the content of tokenizer.json, with the file's ids and without a special-token template.

    Text is split as sentencepiece splits it, except: special tokens written in a text, letters composed of more than 5
    bytes (Hangul of single jamo), repeated merges within a letter, and in BPE the spaces around given pieces.
    """
    proto = _read_sentencepiece(path)
    rules = proto.normalizer_spec
    spec = proto.trainer_spec
    pieces = list(proto.pieces)
    obstacles = {
        f"it is a {_SENTENCEPIECE_KINDS.get(spec.model_type, 'unknown')} model": spec.model_type not in (1, 2),
        "its words end with spaces": spec.treat_whitespace_as_suffix,
        "it does not write spaces": not rules.escape_whitespaces,
        "it has unused pieces": any(piece.type == _UNUSED for piece in pieces),
    }
    reasons = [reason for reason, holds in obstacles.items() if holds]
    if reasons:
        raise DistilvecError(
            f"{path} has no fast form: {' and '.join(reasons)}. Expected a Unigram or BPE model with spaces before "
            "words."
        )
    # Pieces given by the trainer's user. BPE splits those without spaces off first, as added tokens; Unigram prefers
    # them by their score.
    apart: set[int] = set()
    if spec.model_type == 2:
        for number, piece in enumerate(pieces):
            if piece.type == _GIVEN and not {" ", SPACE} & set(piece.piece):
                apart.add(number)
    off = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [
        {"id": number, "content": piece.piece, **off, "special": number not in apart}
        for number, piece in enumerate(pieces)
        if piece.type in (_UNKNOWN, _CONTROL) or number in apart
    ]
    in_words = all(SPACE not in piece.piece[1:] for piece in pieces) and any(piece.piece == SPACE for piece in pieces)
    begins = rules.add_dummy_prefix and not rules.remove_extra_whitespaces and not apart  # a space before every text
    scheme = "first" if rules.add_dummy_prefix and not begins else "never"
    decoders: list[State] = [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "}]
    if spec.byte_fallback:
        decoders.append({"type": "ByteFallback"})
    decoders.append({"type": "Fuse"})
    if rules.add_dummy_prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": _sentencepiece_normalizers(rules, begins, bool(apart))},
        "pre_tokenizer": {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": in_words},
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": _unigram(spec, pieces) if spec.model_type == 1 else _bpe(spec, pieces, apart),
    }


def _read_sentencepiece(path: Path) -> Any:
    require_extra("sentencepiece", "")
    from transformers.convert_slow_tokenizer import import_protobuf

    proto = import_protobuf().ModelProto()
    proto.ParseFromString(path.read_bytes())
    if not proto.pieces:
        raise DistilvecError(f"{path} is not a SentencePiece model: it has no pieces.")
    return proto


def _sentencepiece_normalizers(rules: Any, begins: bool, apart: bool) -> list[State]:
    """Return the steps: the model's own table, no surplus spaces, a space before the text, spaces as ▁.

    With pieces split off first (`apart`), each part of a text is normalized alone and keeps the space at its end.
    """
    charsmap = base64.b64encode(rules.precompiled_charsmap).decode()
    steps: list[State] = []
    if charsmap:
        steps.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
    if rules.remove_extra_whitespaces:
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
        begin, end = EDGES
        if not apart:
            steps.append({"type": "Replace", "pattern": {"Regex": end}, "content": ""})
        if not apart and not rules.add_dummy_prefix:
            steps.append({"type": "Replace", "pattern": {"Regex": begin}, "content": ""})
    if begins:
        steps.append({"type": "Prepend", "prepend": SPACE})
    steps.append({"type": "Replace", "pattern": {"String": " "}, "content": SPACE})
    return steps


def _unigram(spec: Any, pieces: list[Any]) -> State:
    scores = [piece.score for piece in pieces if piece.type == _ORDINARY]
    best = max(scores, default=0.0)
    lowest = min(scores, default=0.0)

    def score(piece: Any) -> float:
        if piece.type == _BYTE:
            return _BYTES_APART * lowest - 1.0
        if piece.type == _GIVEN:
            return float(len(piece.piece.encode()) * best - _BONUS)
        return float(piece.score)

    vocabulary = [[piece.piece, score(piece)] for piece in pieces]
    return {"type": "Unigram", "unk_id": spec.unk_id, "vocab": vocabulary, "byte_fallback": bool(spec.byte_fallback)}


def _bpe(spec: Any, pieces: list[Any], apart: set[int]) -> State:
    """Return a model that merges any two pieces into a third in the order of the third's score."""
    scores: dict[str, float] = {}
    for number, piece in enumerate(pieces):
        if piece.type in (_ORDINARY, _GIVEN) and number not in apart:
            scores[piece.piece] = piece.score
    merges = []
    for text, score in scores.items():
        for cut in range(1, len(text)):
            left = text[:cut]
            right = text[cut:]
            if left in scores and right in scores:
                merges.append((-score, -cut, left, right))
    return {
        "type": "BPE",
        "unk_token": spec.unk_piece,
        "fuse_unk": True,
        "byte_fallback": bool(spec.byte_fallback),
        "vocab": {piece.piece: number for number, piece in enumerate(pieces)},
        "merges": [[left, right] for *_, left, right in sorted(merges)],
    }
