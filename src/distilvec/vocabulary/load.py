"""Existing tokenizers from a model's folder or id, a bare tokenizer.json, or a SentencePiece model."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from distilvec.core.errors import DistilvecError, about, first_line
from distilvec.core.model_name import ModelName
from distilvec.models.load import load_tokenizer
from distilvec.vocabulary.edit import fast_tokenizer, with_tokens
from distilvec.vocabulary.pieces import OPTION, SAME_ROLE, Pieces, State, components
from distilvec.vocabulary.sentencepiece import from_sentencepiece

NAMES = {  # usual names by role, the likeliest first
    "pad": ("<pad>", "[PAD]", "<|pad|>", "<|padding|>"),
    "unk": ("<unk>", "[UNK]", "<|unk|>"),
    "mask": ("<mask>", "[MASK]", "<|mask|>"),
    "cls": ("[CLS]", "<cls>"),
    "sep": ("[SEP]", "<sep>"),
    "bos": ("<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "[BOS]"),
    "eos": ("</s>", "<eos>", "<|end_of_text|>", "<|endoftext|>", "[EOS]"),
}


def read_tokenizer(name: str, like: Pieces) -> PreTrainedTokenizerBase:
    """Read the tokenizer `name`: a model's folder or id as it is, a `.json` or `.model` file with the roles of `like`.

    `like` is the tokenizer of the model that gets the new one. Files name no roles: special tokens get theirs by their
    usual names, and tokens of the roles that `like` puts around a text are put there. A missing padding token is added.
    """
    path, kind = Path(name), Path(name).suffix.lower()
    if kind not in (".json", ".model") or path.is_dir():
        with about(OPTION, name):
            tokenizer = load_tokenizer(ModelName(name))
        _add_padding(tokenizer, like)
        return tokenizer
    if not path.is_file():
        raise DistilvecError(
            f"no file {name}. Expected a tokenizer.json, a SentencePiece .model, or a model's folder or id.", key=OPTION
        )
    return _with_roles(_from_json(path) if kind == ".json" else from_sentencepiece(path), path, like)


def _from_json(path: Path) -> State:
    try:
        state: State = json.loads(Tokenizer.from_file(str(path)).to_str())
    except Exception as error:  # tokenizers raises bare Exception
        raise DistilvecError(
            f"{path} is not a tokenizer.json: {first_line(error)}. Expected a file of Tokenizer.save.", key=OPTION
        ) from error
    return state


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
                key=OPTION,
            )
        return str(pieces.tokens[same]), same

    parts = [part for part in file_parts if part["type"] == "ByteLevel"]  # trims offsets, adds no token
    for part in components(like.state["post_processor"]):
        if part["type"] != "ByteLevel":
            parts += components(with_tokens(part, renamed))
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
