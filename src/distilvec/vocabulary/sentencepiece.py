"""A SentencePiece model as a fast tokenizer: what it does to a text before it cuts, how it cuts, and back.

Source: github.com/google/sentencepiece, src/normalizer.cc, unigram_model.cc and bpe_model.cc. transformers' own conversion leaves out
whether a space goes before a text and whether surplus spaces go, and merges pieces that SentencePiece never does.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from distilvec.core.errors import DistilvecError, explained, first_line
from distilvec.core.extras import install_command, require_extra
from distilvec.vocabulary.pieces import EDGES, OPTION, SPACE

_ORDINARY, _UNKNOWN, _CONTROL, _GIVEN, _UNUSED, _BYTE = range(
    1, 7
)  # kinds of pieces; given: by the user of the trainer
_KINDS = {1: "Unigram", 2: "BPE", 3: "word", 4: "character"}
_BYTES_APART = 7  # a byte's score in times the lowest: below that of the six characters that its name is written with
_BONUS = 0.1  # below which a given piece's score is, per byte the best score


def from_sentencepiece(path: Path) -> dict[str, Any]:
    """A model file as the content of tokenizer.json, without special tokens around a text; ids are the pieces' own.

    Text is cut as sentencepiece cuts it, but that special tokens written in a text are read as such. It may be cut otherwise: letters
    that are composed of more than 5 bytes (Hangul of single jamo), merges within a letter repeated, the written name of a byte with
    unknown letters, and in BPE with pieces given by the trainer's user the spaces before and behind these and around the text.
    Errors: DistilvecError without the packages that read it, for a file that is none of its models, or has what fast tokenizers
    lack: word and character models, pieces that are not used, spaces marked behind words or not at all.
    """
    proto = _read(path)
    rules, spec, pieces = proto.normalizer_spec, proto.trainer_spec, list(proto.pieces)
    lacking = {
        f"it is a {_KINDS.get(spec.model_type, 'unknown')} model": spec.model_type not in (1, 2),
        "it marks spaces behind words": spec.treat_whitespace_as_suffix,
        "it does not mark spaces": not rules.escape_whitespaces,
        "it has pieces that are not to be used": any(piece.type == _UNUSED for piece in pieces),
    }
    if reasons := [reason for reason, holds in lacking.items() if holds]:
        raise DistilvecError(
            f"[{OPTION}] {path} has no fast form: {' and '.join(reasons)}. Expected a Unigram or BPE model with spaces marked before words."
        )
    # given pieces are cut out beforehand in BPE (in a Unigram model their score sees to it), but for those with spaces
    given = {number for number, piece in enumerate(pieces) if piece.type == _GIVEN}
    apart = {number for number in given if spec.model_type == 2 and not {" ", SPACE} & set(pieces[number].piece)}
    added = [
        {"id": number, "content": piece.piece, "single_word": False, "lstrip": False, "rstrip": False}
        | {"normalized": False, "special": number not in apart}
        for number, piece in enumerate(pieces)
        if piece.type in (_UNKNOWN, _CONTROL) or number in apart
    ]
    in_words = all(SPACE not in piece.piece[1:] for piece in pieces) and any(piece.piece == SPACE for piece in pieces)
    begins = (
        rules.add_dummy_prefix and not rules.remove_extra_whitespaces and not apart
    )  # a space goes before whatever a text begins with
    scheme = "first" if rules.add_dummy_prefix and not begins else "never"
    decoders: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "}]
    decoders += [{"type": "ByteFallback"}] * spec.byte_fallback + [{"type": "Fuse"}]
    decoders += [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] * rules.add_dummy_prefix
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": _normalizers(rules, begins, bool(apart))},
        "pre_tokenizer": {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": in_words},
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": _unigram(spec, pieces) if spec.model_type == 1 else _bpe(spec, pieces, apart),
    }


def _read(path: Path) -> Any:
    require_extra("sentencepiece", OPTION)
    try:
        from google.protobuf.message import DecodeError
        from transformers.convert_slow_tokenizer import import_protobuf

        proto = import_protobuf().ModelProto()
    except (
        Exception
    ) as error:  # ImportError, or protobuf's own where its version and sentencepiece's do not go together
        raise DistilvecError(
            f"[{OPTION}] reading {path} needs newer versions of the packages sentencepiece and protobuf ({first_line(error)}). "
            f"Install: {install_command('sentencepiece')}"
        ) from error
    with explained(OPTION, path):
        content = path.read_bytes()
    try:
        proto.ParseFromString(content)
    except DecodeError as error:
        raise DistilvecError(
            f"[{OPTION}] cannot read {path} as a SentencePiece model: {error}. Give the .model that it wrote."
        ) from error
    if not proto.pieces:
        raise DistilvecError(
            f"[{OPTION}] {path} is no SentencePiece model: it has no pieces. Give the .model that it wrote."
        )
    return proto


def _normalizers(rules: Any, begins: bool, apart: bool) -> list[dict[str, Any]]:
    """What happens to a text: letters by the model's own table, surplus spaces, the space before it, spaces to marks.

    Where pieces are cut out beforehand (`apart`) every part of a text is seen alone, and the space at its end stays.
    """
    charsmap = base64.b64encode(rules.precompiled_charsmap).decode()
    found: list[dict[str, Any]] = [{"type": "Precompiled", "precompiled_charsmap": charsmap}] if charsmap else []
    if rules.remove_extra_whitespaces:
        found.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
        before, behind = ({"type": "Replace", "pattern": {"Regex": edge}, "content": ""} for edge in EDGES)
        found += [behind] * (not apart) + [before] * (not rules.add_dummy_prefix and not apart)
    found += [{"type": "Prepend", "prepend": SPACE}] * begins
    return [*found, {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}]


def _unigram(spec: Any, pieces: list[Any]) -> dict[str, Any]:
    scores = [piece.score for piece in pieces if piece.type == _ORDINARY]
    best, lowest = max(scores, default=0.0), min(scores, default=0.0)

    def score(piece: Any) -> float:
        if piece.type == _BYTE:
            return _BYTES_APART * lowest - 1.0
        return float(len(piece.piece.encode()) * best - _BONUS if piece.type == _GIVEN else piece.score)

    vocabulary = [[piece.piece, score(piece)] for piece in pieces]
    return {"type": "Unigram", "unk_id": spec.unk_id, "vocab": vocabulary, "byte_fallback": bool(spec.byte_fallback)}


def _bpe(spec: Any, pieces: list[Any], apart: set[int]) -> dict[str, Any]:
    """Two pieces become one in the order of its score, whatever two they are."""
    scores = {
        piece.piece: piece.score
        for number, piece in enumerate(pieces)
        if piece.type in (_ORDINARY, _GIVEN) and number not in apart
    }
    merges = [
        (-score, -cut, piece[:cut], piece[cut:])
        for piece, score in scores.items()
        for cut in range(1, len(piece))
        if piece[:cut] in scores and piece[cut:] in scores
    ]
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": spec.unk_piece,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": bool(spec.byte_fallback),
        "ignore_merges": False,
        "vocab": {piece.piece: number for number, piece in enumerate(pieces)},
        "merges": [[left, right] for *_, left, right in sorted(merges)],
    }
