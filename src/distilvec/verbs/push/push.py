"""Upload of a model's folder to the Hugging Face hub: a card that the hub validates, and one commit."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import CommitOperationAdd, HfApi, ModelCard, constants, get_token
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

from distilvec.core.errors import DistilvecError, about, first_line
from distilvec.core.escape import quoted
from distilvec.core.files import is_hidden
from distilvec.core.log import log
from distilvec.core.model_name import ModelName
from distilvec.core.run_folder import RunFolder
from distilvec.formats.replace import EXPORTED, read_record
from distilvec.models.origin import is_hub_id, terms_of
from distilvec.report.exports import EXPORTS, read_exports
from distilvec.report.model_card import FROM_FOLDER

CARD = "README.md"
# Names of a model's files, in any folder of it that is not hidden. Those of tokenizers are VOCAB_FILES_NAMES of the
# tokenizers of transformers; the ..._config.json are modules of sentence-transformers, and processors of pictures.
_WEIGHTS = (
    r"(?:model|head|adapter_model)(?:-[0-9]+-of-[0-9]+)?\.safetensors",
    r"(?:model|adapter_model)\.safetensors\.index\.json",
    r"model[\w-]*\.onnx(?:[._]data)?",
    r"openvino_model[\w-]*\.(?:xml|bin)",
)
_TOKENIZERS = (
    r"\w[\w.-]*\.model(?:\.v[0-9]+)?",  # spiece.model, sentencepiece.bpe.model, tokenizer.model.v3
    r"(?:source|target)\.spm|\w[\w.-]*\.tiktoken|prophetnet\.tokenizer",
    r"vocab\.txt|merges\.txt|dict\.txt|bpe\.codes",
    r"(?:tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab|vocab-src|vocab-tgt|source_vocab|target_vocab"
    r"|entity_vocab|word_shape|word_pronunciation|emoji|normalizer|byte_maps|tekken|chat_template)\.json",
    r"(?:chat_template|additional_chat_templates/[\w-]+)\.jinja",
)
_SETTINGS = (
    r"(?:config|generation_config|adapter_config|modules|head|vocabulary|exports|distillation|idf)\.json",
    r"(?:config_sentence_transformers|sentence_\w+_config|router_config|cnn_config|lstm_config|wordembedding_config"
    r"|whitespacetokenizer_config|phrasetokenizer_config|preprocessor_config|processor_config"
    r"|video_preprocessor_config)\.json",
    r"README\.md|(?:LICEN[CS]E|NOTICE)(?:\.txt|\.md)?",
)
_PUSHED = re.compile(rf"(?:(?!\.)[^/]+/)*(?:{'|'.join((*_WEIGHTS, *_TOKENIZERS, *_SETTINGS))})")
_WITH_CODE = ("modules.json", "config.json", "tokenizer_config.json", "preprocessor_config.json")
_RELATIVE_IMPORT = re.compile(r"^\s*from\s+\.(\w+)\s+import\b", re.MULTILINE)
_LICENSE = re.compile(r"[a-z0-9][a-z0-9.-]*")


@dataclass(frozen=True)
class Pushed:
    """A commit on the hub: its address, the repository's visibility, and the names of the uploaded files."""

    url: str
    private: bool
    files: tuple[str, ...]


def push_model(
    model: Path,
    repo: str,
    public: bool = False,
    license: str | None = None,
    revision: str | None = None,
    message: str | None = None,
    update: bool = False,
) -> Pushed:
    """Upload a model's folder as one commit to the hub (HF_ENDPOINT), into a new repository, private by default.

    Args:
        model: A folder with safetensors weights and a card. Other files than a model's are left out.
        repo: OWNER/NAME, or NAME for the token's owner.
        public: Make a public repository, or push into one.
        license: An id for the card; required if the card has none. The folder's own card stays as it is.
        revision: A branch; made from main if it does not exist.
        message: The commit's first line.
        update: Push into a repository that exists.

    The pushed card loads the model by its id on the hub, and by the branch if that is given.

    The token is that of HF_TOKEN or of `hf auth login`.
    """
    with about("repo_id", repo):
        validate_repo_id(repo)
    files = model_files(model)
    card = checked_card(model, license)
    if constants.is_offline_mode():
        raise DistilvecError("is set, so that the hub is not reached.", "Unset it to push.", key="HF_HUB_OFFLINE")
    if get_token() is None:
        raise DistilvecError(
            "no token of the hub was found.", "Log in with `hf auth login`, or set HF_TOKEN.", key="token"
        )
    api = HfApi()
    with about("hub", f"{constants.ENDPOINT}/{repo}"):
        try:
            card.validate()  # the hub is asked
        except ValueError as error:
            reasons = " ".join(str(error).split())[:300].rstrip(" .")
            raise DistilvecError(f"the hub refuses the card: {reasons}.", "Correct the card.", key=CARD) from error
        try:
            repo = api.create_repo(repo, private=not public, exist_ok=update).repo_id
        except HfHubHTTPError as error:
            status = error.response.status_code
            if status == 409:
                fix = "Choose another name, or push into it with --update."
                raise DistilvecError(f"{repo} exists on the hub.", fix, key="repo_id") from error
            if status in (401, 403):
                fix = "Log in again (`hf auth login`), or set HF_TOKEN to a token that may write there."
                problem = f"{constants.ENDPOINT} refuses the token for {repo}."
                raise DistilvecError(problem, fix, key="token") from error
            raise
        private = bool(api.repo_info(repo).private)
        if not (private or public):
            raise DistilvecError(f"{repo} exists and is public.", "Push into it with --public.", key="--public")
        if revision is not None:
            api.create_branch(repo, branch=revision, exist_ok=True)
        content: dict[str, Any] = {name: model / name for name in files}
        content[CARD] = _card_of_push(model, card, license, repo, revision)
        operations = [CommitOperationAdd(name, value) for name, value in content.items()]
        title = message or f"Upload {card.data.get('model_name') or 'model'} with distilvec"
        commit = api.create_commit(repo, operations, commit_message=title, revision=revision)
    return Pushed(str(commit.commit_url), private, tuple(files))


def prepare_push(
    model: Path, repo: str, folder: Path, files: Iterable[str], license: str | None, revision: str | None
) -> None:
    """Write into a new folder what a push would send; neither the hub nor a token is needed."""
    card = _card_of_push(model, checked_card(model, license), license, repo, revision)
    with about("--out", folder):
        folder.mkdir(parents=True)
        for name in files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(model / name, folder / name)
        (folder / CARD).write_bytes(card)


def _card_of_push(model: Path, card: ModelCard, license: str | None, repo: str, revision: str | None) -> bytes:
    """Return the card that loads the model from the hub; without a new license the folder's own text is kept."""
    text = (model / CARD).read_text(encoding="utf-8") if license is None else str(card)
    return hub_card(text, repo, revision).encode()


def planned_files(model: Path, repo: str) -> dict[str, int]:
    """Return the bytes of the files that a push would send; neither the hub nor a token is needed."""
    with about("repo_id", repo):
        validate_repo_id(repo)
    return {name: (model / name).stat().st_size for name in model_files(model)}


def planned_license(model: Path, license: str | None) -> str:
    """Return the license of a push with those of the models it is made of. Errors: as `checked_card`."""
    card = checked_card(model, license)
    return f"license: {card.data.get('license')}; {_terms(model, card)}"


def _terms(model: Path, card: ModelCard) -> str:
    """Return the models that a model is made of, each with its license: by its record, else by its card."""
    terms = (read_record(model) or {}).get("terms")
    if not isinstance(terms, dict) or not terms:
        bases = card.data.get("base_model") or []
        terms = {base: terms_of(ModelName(base)) for base in ([bases] if isinstance(bases, str) else bases)}
    if not terms:
        return "its card names no model that it is made of"
    return f"it is made of {', '.join(f'{name} ({text})' for name, text in terms.items())}"


def model_files(model: Path) -> list[str]:
    """Return the relative names of a folder's files to upload, and log those left out."""
    if not (model / "modules.json").is_file():
        problem = f"{model} is not the folder of a SentenceTransformer: it has no modules.json."
        raise DistilvecError(problem, f"Name a model; a run's model is in {RunFolder(model).student}.", key="model")
    root = model.resolve()
    names = sorted(path.relative_to(model).as_posix() for path in model.rglob("*") if path.is_file())
    code = code_files(model)
    outdated: set[str] = set()
    if (model / EXPORTS).is_file() and not read_exports(model):  # made of other weights than the folder's
        outdated = {name for name in names if name == EXPORTS or name.endswith(EXPORTED)}
    if outdated:
        log(f"not pushed, since made of an earlier model: {', '.join(sorted(outdated))}; `distilvec export` again")
    names = [name for name in names if name not in outdated]
    files = []
    for name in names:
        is_of_the_model = name in code or _PUSHED.fullmatch(name)
        if is_of_the_model and (root / name).resolve().is_relative_to(root):
            files.append(name)
    if left := sorted({*names} - {*files}):
        log(f"not pushed, since no files of a model: {', '.join(left)}")
    if not any(name.endswith(".safetensors") for name in files):
        raise DistilvecError(
            f"{model} has no weights in safetensors; pickles are not pushed.", "Save it again.", key="model"
        )
    if CARD not in files:
        raise DistilvecError(
            f"{model} has no model card.", f"Write a {CARD} with its base model and license.", key="model"
        )
    return files


def code_files(model: Path) -> set[str]:
    """Return the relative names of Python files that a model's settings name, and of those that they import.

    They are types in modules.json and classes in `auto_map`, which a reader runs with trust_remote_code. Other Python
    files are nobody's business.
    """
    pending = []
    for path in model.rglob("*.json"):
        if path.name in _WITH_CODE and not is_hidden(path.relative_to(model)):
            pending += [path.parent / f"{module}.py" for module in _named_modules(path)]
    files: set[str] = set()
    while pending:
        path = pending.pop()
        name = path.relative_to(model).as_posix()
        if name in files or not path.is_file():
            continue
        files.add(name)
        text = path.read_text(encoding="utf-8", errors="replace")
        pending += [path.parent / f"{module}.py" for module in _RELATIVE_IMPORT.findall(text)]
    return files


def _named_modules(path: Path) -> list[str]:
    """Return the modules that a file of settings names; none of a damaged file, or of code in another repository."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError):
        return []
    classes: list[Any] = []
    if isinstance(content, list):
        classes = [module.get("type") for module in content if isinstance(module, dict)]
    elif isinstance(content, dict) and isinstance(content.get("auto_map"), dict):
        for named in content["auto_map"].values():
            if isinstance(named, list):  # a tokenizer has two: the slow and the fast one
                classes += named
            else:
                classes += [named]
    # a module of an installed package has dots in its own name
    names = [name.rpartition(".")[0] for name in classes if isinstance(name, str) and "--" not in name]
    return [name for name in names if name.isidentifier()]


def checked_card(model: Path, license: str | None) -> ModelCard:
    """Return a model's card, with `license` if that is given."""
    try:
        card = ModelCard((model / CARD).read_text(encoding="utf-8"))
    except (ValueError, TypeError, RecursionError, yaml.YAMLError) as error:
        problem = f"the metadata of {model}/{CARD} is damaged: {first_line(error)}"
        raise DistilvecError(f"{problem}.", "Correct it.", key=CARD) from error
    bases = card.data.get("base_model") or []
    for base in [bases] if isinstance(bases, str) else bases:
        if not is_hub_id(base):
            fix = "Correct the card; a run's card is written again if the same recipe runs again."
            raise DistilvecError(f"base_model {base!r} is no id of a model on the hub.", fix, key=CARD)
    if license is not None:
        if not _LICENSE.fullmatch(license):
            raise DistilvecError(f"found {license!r}.", "Give an id of the hub, such as apache-2.0.", key="--license")
        card.data["license"] = license
    if not card.data.get("license"):
        problem = f"the card of {model} states no license; {_terms(model, card)}."
        fix = "Read their terms and give a license that they allow with --license, such as apache-2.0, mit or other."
        raise DistilvecError(problem, fix, key="--license")
    return card


def hub_card(card: str, repo: str, revision: str | None = None) -> str:
    """Return a card of ours whose code loads the model from the hub instead of from its folder."""
    source = quoted(repo)
    if revision is not None:
        source += f", revision={quoted(revision)}"
    folder = f'("."){FROM_FOLDER}'
    # TaskModel takes a folder alone
    task_model = f"from huggingface_hub import snapshot_download\nmodel = TaskModel(snapshot_download({source}))"
    return card.replace(f"model = TaskModel{folder}", task_model).replace(folder, f"({source})")
