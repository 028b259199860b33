"""Origin of a model: its id on the hub, and the license in its card. No torch is imported to read a card."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import ModelCard
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from distilvec.core.model_name import BUILTIN, ModelName

_LICENSE = ("license", "license_name", "license_link")  # of a card's metadata
NO_LICENSE = "no license found in its card"
# What a reader of a card should know of a license beyond its id, by the beginning of the id
_WORDS = {
    "gemma": (
        "Gemma Terms of Use, https://ai.google.dev/gemma/terms; they count a model trained on its outputs as a "
        "derivative, which keeps these terms"
    ),
    "cc-by-nc": "no commercial use",
}
_CACHED = re.compile(r"models--(?P<owner>[\w.-]+?)--(?P<name>[\w.-]+)")  # a folder of the hub's cache


def origin(base: ModelName | None, teachers: Sequence[ModelName | None]) -> dict[str, Any]:
    """Return a card's `base_model` (ids) and license for a model made of `base` and trained on vectors of `teachers`.

    The license is the base's. It is left out unless every teacher's card has the same; a teacher without a model that
    can be read here (an API, a table of vectors) is None.
    """
    models = list(teachers)
    if base is not None:
        models.insert(0, base)
    ids: list[str] = []
    for model in models:
        ids += [] if model is None else hub_ids(model)
    fields: dict[str, Any] = {}
    if ids:
        fields["base_model"] = list(dict.fromkeys(ids))  # each once
    licenses = [{} if model is None else license_of(model) for model in models]
    if base is not None and all(license == licenses[0] for license in licenses):
        fields |= licenses[0]
    return fields


def terms_of(model: ModelName) -> str:
    """Return the license of a model in words, as far as its card on this machine has it."""
    license = license_of(model)
    if not license:
        return NO_LICENSE
    words = [text for beginning, text in _WORDS.items() if license["license"].startswith(beginning)]
    return ", ".join([*license.values(), *words])


def is_hub_id(name: Any) -> bool:
    """Return whether the name is a valid id on the hub, and neither a folder of this machine nor "teacher"."""
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return isinstance(name, str) and name != "teacher" and not Path(name).exists()


def read_card(folder: Path) -> dict[str, Any]:
    """Read the metadata of a folder's model card; empty without a card, or if its metadata cannot be read."""
    with suppress(OSError, ValueError, TypeError, RecursionError, yaml.YAMLError):
        text = (folder / "README.md").read_text(encoding="utf-8-sig")
        if text.startswith("---"):
            return dict(ModelCard(text, ignore_metadata_errors=True).data.to_dict())  # type: ignore[no-untyped-call]
    return {}


def hub_ids(model: ModelName) -> list[str]:
    """Return the id of a model on the hub; for a folder without one the ids that its card is based on."""
    from distilvec.models.load import folder_of, hub_name

    name = model.name
    if name.removeprefix("sentence-transformers/") == BUILTIN and not Path(name).exists():
        return [f"sentence-transformers/{BUILTIN}"]
    if not Path(name).exists():
        hub_id = name
        if hub_name(model) != model and folder_of(model)[0] is not None:
            hub_id = hub_name(model).name
        return [hub_id] if is_hub_id(hub_id) else []
    for folder in Path(name).absolute().parents:
        if match := _CACHED.fullmatch(folder.name):
            return [f"{match['owner']}/{match['name']}"]
    base_models = read_card(Path(name)).get("base_model") or []
    if isinstance(base_models, str):
        base_models = [base_models]
    return [base_model for base_model in base_models if is_hub_id(base_model)]


def license_of(model: ModelName) -> dict[str, str]:
    """Return license, license_name and license_link of a model, as far as its card on this machine has them."""
    from distilvec.models.load import folder_of

    with suppress(OSError, ValueError):
        folder, _ = folder_of(model)
        card = {} if folder is None else read_card(folder)
        return {key: card[key] for key in _LICENSE if card.get("license") and isinstance(card.get(key), str)}
    return {}
