"""Two models in one folder: sentence-transformers' Router, with one tower for queries and one for documents.

modules.json  router_config.json     the Router, read alike by sentence-transformers 5.1 to 6
query/  document/                    the towers, each a portable model folder of its own
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer

from distilvec.core.errors import DistilvecError
from distilvec.core.info import Role
from distilvec.formats.read_back import check_saved
from distilvec.formats.sentence_transformers import in_float32, save_folder, write_json, write_modules, write_settings
from distilvec.models.experts import Experts

ROUTER = "sentence_transformers.models.Router"
DEFAULT = "document"  # the route of `encode`, as in Router.for_query_document


def save_router(
    query: SentenceTransformer,
    document: SentenceTransformer,
    folder: Path,
    distillation: dict[str, Any],
    card: str,
) -> None:
    """Write both towers as one model that `encode_query` and `encode_document` route to, whole or not at all.

    Prompts and similarity are the towers' own.
    """
    towers: dict[Role, SentenceTransformer] = {"query": query, "document": document}
    prompts: dict[str, str] = {role: (tower.prompts or {}).get(role, "") for role, tower in towers.items()}

    def write(new: Path) -> None:
        for role, tower in towers.items():
            (new / role).mkdir()
            _write_tower(tower, new / role, role)
        write_json(new / "modules.json", [{"idx": 0, "name": "0", "path": "", "type": ROUTER}])
        write_json(new / "router_config.json", _config(new, towers))
        write_settings(new, prompts, query.similarity_fn_name)
        check_saved(new, towers, ())

    save_folder(folder, write, distillation, card)


def _write_tower(tower: SentenceTransformer, folder: Path, role: str) -> None:
    if any(isinstance(module, Experts) for module in tower):
        raise DistilvecError(
            f"the {role} tower has experts, which sentence-transformers cannot load in a Router.",
            "Use both models by themselves.",
        )
    try:
        write_modules(in_float32(tower), folder)
    except DistilvecError as error:
        raise DistilvecError(f"the {role} tower cannot be saved: {error.problem}", error.fix) from error


def _config(folder: Path, towers: Mapping[Role, SentenceTransformer]) -> dict[str, Any]:
    """Return the Router's settings; a module's id is its folder, relative to the Router's."""
    types: dict[str, str] = {}
    structure: dict[str, list[str]] = {}
    for role in towers:
        modules = json.loads((folder / role / "modules.json").read_text(encoding="utf-8"))
        tower = {(Path(role) / module["path"]).as_posix(): module["type"] for module in modules}
        types |= tower
        structure[role] = list(tower)
    return {
        "types": types,
        "structure": structure,
        "parameters": {"default_route": DEFAULT, "allow_empty_key": True},
    }
