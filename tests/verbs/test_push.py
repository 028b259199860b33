"""`distilvec push` to a hub on this machine: what arrives, who may see it, and every refusal."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from hub_stub import OWNER, TOKEN, Hub
from huggingface_hub import ModelCard
from refusals import refused

from distilvec.core.errors import DistilvecError
from distilvec.report.exports import write_exports
from distilvec.report.json_values import from_json
from distilvec.report.model_card import FROM_FOLDER, model_card
from distilvec.report.record import RunRecord
from distilvec.report.values import ExportedForm
from distilvec.verbs.push import push
from distilvec.verbs.push.push import _PUSHED, checked_card, hub_card, model_files, push_model

ROOT = Path(__file__).parents[2]
RECORD = {
    "name": "pushed",
    "teacher": {"name": "org/large", "width": 32},
    "student": {"name": "pushed", "width": 32, "base_model": "org/base"},
    "scores": {"student": [{"task": "cran", "type": "retrieval", "metric": "ndcg@10", "value": 47.5}]},
    "data": {"sources": [{"name": "wiki", "rows": 3, "role": "document", "language": "tr"}]},
    "hub": {"base_model": ["org/base", "org/large"], "datasets": ["org/texts"], "license": "apache-2.0"},
}
SECRETS = {
    "recipe.yaml": b"secret", ".env": b"HF_TOKEN=secret", ".cache/config.json": b"secret", "optimizer.pt": b"secret",
    "pytorch_model.bin": b"secret", "checkpoint/optimizer.safetensors": b"secret", "notes.txt": b"secret",
    "credentials.json": b"secret",
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(tiny_model, tmp_path_factory):
    """A model with a card and a license, one with a card alone, and files that are nobody's business."""
    root = tmp_path_factory.mktemp("push")
    without = {**RECORD, "hub": {"base_model": ["org/base"]}}
    teacher = {**RECORD, "hub": {"base_model": ["teacher"], "license": "mit"}}
    for name, record in {"student": RECORD, "unlicensed": without, "old": teacher}.items():
        shutil.copytree(tiny_model, root / name)
        (root / name / "README.md").write_text(model_card(from_json(RunRecord, record)), encoding="utf-8")
        (root / name / "distillation.json").write_text(json.dumps(record), encoding="utf-8")
    (root / "secret").write_bytes(b"secret")
    (root / "student" / "vocab.txt").unlink(missing_ok=True)
    (root / "student" / "vocab.txt").symlink_to(root / "secret")
    for name, content in SECRETS.items():
        (root / "student" / name).parent.mkdir(exist_ok=True)
        (root / "student" / name).write_bytes(content)
    (root / "student" / "onnx").mkdir()
    (root / "student" / "onnx" / "model.onnx").write_bytes(b"\x08\x08onnx" * 1000)
    shutil.copytree(root / "unlicensed", root / "wrong")
    card = (root / "wrong" / "README.md").read_text(encoding="utf-8")
    (root / "wrong" / "README.md").write_text(card.replace("- tr\n", "- turkish\n", 1), encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def pushed(folders):
    """The hub after a series of commands, and their answers by name."""
    student, unlicensed = str(folders / "student"), str(folders / "unlicensed")
    commands = {
        "first": [student, f"{OWNER}/first"],
        "again": [student, f"{OWNER}/first"],
        "update": [student, f"{OWNER}/first", "--update", "--revision", "v2", "--message", "second try"],
        "public": [student, "open", "--public"],
        "into public": [student, f"{OWNER}/open", "--update"],
        "listed": [student, f"{OWNER}/never", "--dry-run"],
        "prepared": [student, f"{OWNER}/first", "--out", "ready/first"],
        "prepared again": [student, f"{OWNER}/first", "--out", "ready/first"],
        "unlicensed, listed": [unlicensed, f"{OWNER}/never", "--dry-run"],
        "unlicensed": [unlicensed, f"{OWNER}/asked"],
        "licensed": [unlicensed, f"{OWNER}/asked", "--license", "cc-by-4.0"],
        "unknown license": [unlicensed, f"{OWNER}/never", "--license", "no-such-license"],
        "wrong card": [str(folders / "wrong"), f"{OWNER}/never", "--license", "mit"],
        "another owner": [student, "somebody/never"],
        "refused": [student, f"{OWNER}/never"],
        "no token": [student, f"{OWNER}/never"],
    }
    tokens = {"refused": "hf_wrong", "no token": "", "listed": "", "prepared": ""}
    jobs = [
        {"arguments": ["push", *words], "environment": {"HF_TOKEN": tokens.get(name, TOKEN)}}
        for name, words in commands.items()
    ]
    (folders / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
    with Hub() as hub:
        environment = {
            **os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1",
            "HF_HOME": str(folders / "home"), "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "NO_PROXY": "127.0.0.1",
        }  # fmt: skip
        command = [sys.executable, str(Path(__file__).with_name("push_commands.py")), "jobs.json", "answers.json"]
        done = subprocess.run(command, env=environment, cwd=folders, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    answers = json.loads((folders / "answers.json").read_text(encoding="utf-8"))
    return hub, dict(zip(commands, answers, strict=True))


def test_the_folder_arrives_in_a_private_repository(pushed, folders):
    hub, answers = pushed
    repo, folder = hub.repos[f"{OWNER}/first"], folders / "student"
    assert answers["first"]["status"] == 0 and "private: http://127.0.0.1" in answers["first"]["out"]
    arrived = repo["branches"]["main"]
    expected = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink() and path.relative_to(folder).as_posix() not in SECRETS
    }
    own = expected["README.md"].decode()
    expected["README.md"] = own.replace(f'("."){FROM_FOLDER}', f'("{OWNER}/first")').encode()
    assert own.count(FROM_FOLDER) == 1 and b'(".")' not in expected["README.md"]
    assert arrived == expected and {"model.safetensors", "onnx/model.onnx", "1_Pooling/config.json"} <= set(arrived)
    assert repo["private"] and not any(b"secret" in content for content in arrived.values())
    assert "optimizer.pt" in answers["first"]["err"] and "vocab.txt" in answers["first"]["err"]


def test_an_existing_repository_is_kept_unless_asked(pushed):
    hub, answers = pushed
    assert answers["again"]["status"] == 2 and f"[repo_id] {OWNER}/first exists on the hub." in answers["again"]["err"]
    assert [commit["repo"] for commit in hub.commits] == [f"{OWNER}/first"] * 2 + [f"{OWNER}/open", f"{OWNER}/asked"]
    assert answers["update"]["status"] == 0
    assert (hub.commits[1]["revision"], hub.commits[1]["summary"]) == ("v2", "second try")
    branches = hub.repos[f"{OWNER}/first"]["branches"]
    assert f'SentenceTransformer("{OWNER}/first", revision="v2")'.encode() in branches["v2"]["README.md"]
    without_card = [{**branches[name], "README.md": b""} for name in ("v2", "main")]
    assert without_card[0] == without_card[1]


def test_the_card_of_a_labelled_student_loads_its_head_from_the_hub():
    supervised = {"task": "intents", "type": "classification", "rows": 9, "scores": {"student": {"accuracy": 0.9}}}
    card = model_card(from_json(RunRecord, {**RECORD, "supervised": supervised}))
    assert card.count('(".")') == 2
    text = hub_card(card, "me/intents", "v2")
    assert '(".")' not in text and FROM_FOLDER not in text
    (code,) = re.findall(r"```python\n(from distilvec.*?)```", text, re.DOTALL)
    assert 'TaskModel(snapshot_download("me/intents", revision="v2"))' in code
    compile(code, "card", "exec")


def test_public_only_on_request(pushed):
    hub, answers = pushed
    assert answers["public"]["status"] == 0 and not hub.repos[f"{OWNER}/open"]["private"]
    assert answers["into public"]["status"] == 2 and "[--public]" in answers["into public"]["err"]
    assert hub.repos[f"{OWNER}/asked"]["private"]


def test_a_dry_run_lists_what_would_go_and_sends_nothing(pushed, folders):
    """Without a token; the license of each model that the card names is stated as far as its card is here."""
    hub, answers = pushed
    listed = answers["listed"]["out"]
    assert answers["listed"]["status"] == 0 and f"{OWNER}/never" not in hub.repos
    shown = [line.split("│")[0].strip() for line in listed.splitlines() if "│" in line][1:]
    assert shown == sorted(hub.repos[f"{OWNER}/first"]["branches"]["main"])
    assert (
        f"{OWNER}/never (private), branch main:" in listed and "license: apache-2.0; it is made of org/base" in listed
    )
    assert "optimizer.pt" in answers["listed"]["err"]


def test_the_folder_to_publish_is_what_a_push_sends(pushed, folders):
    hub, answers = pushed
    assert answers["prepared"]["status"] == 0
    assert answers["prepared"]["out"].endswith(f"ready: hf upload {OWNER}/first ready/first\n")
    folder = folders / "ready" / "first"
    prepared = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert prepared == hub.repos[f"{OWNER}/first"]["branches"]["main"]
    card = ModelCard(prepared["README.md"].decode())
    assert (card.data.base_model, card.data.datasets, card.data.license) == (
        ["org/base", "org/large"], ["org/texts"], "apache-2.0"
    )  # fmt: skip
    assert answers["prepared again"]["status"] == 2 and "[--out] " in answers["prepared again"]["err"]


def test_a_license_is_asked_for_by_the_terms_of_the_teacher(pushed, folders, monkeypatch):
    hub, answers = pushed
    for name in ("unlicensed", "unlicensed, listed"):
        assert answers[name]["status"] == 2
        assert "made of org/base (no license found in its card). Read their terms" in answers[name]["err"]
    assert "model.safetensors" in answers["unlicensed, listed"]["out"]
    monkeypatch.setattr(push, "terms_of", lambda model: "cc-by-nc-4.0, no commercial use")
    with refused("--license", "it is made of org/base (cc-by-nc-4.0, no commercial use)"):
        checked_card(folders / "unlicensed", None)
    assert answers["licensed"]["status"] == 0
    arrived = hub.repos[f"{OWNER}/asked"]["branches"]["main"]
    before = ModelCard((folders / "unlicensed" / "README.md").read_text(encoding="utf-8"))
    card = ModelCard(arrived["README.md"].decode())
    assert card.data.license == "cc-by-4.0" and card.text == hub_card(before.text, f"{OWNER}/asked")
    assert card.data.eval_results == before.data.eval_results and len(card.data.eval_results) == 1


def test_refusals_of_the_hub_leave_nothing(pushed):
    hub, answers = pushed
    keys = {
        "unknown license": "[README.md] the hub refuses the card: ", "wrong card": "[README.md] ",
        "another owner": "[token] http://127.0.0.1",
        "refused": "[token] http://127.0.0.1", "no token": "[token] no token of the hub was found.",
    }  # fmt: skip
    for name, beginning in keys.items():
        assert answers[name]["status"] == 2, name
        assert f"distilvec: {beginning}" in answers[name]["err"], answers[name]["err"]
        assert "Traceback" not in answers[name]["err"] and TOKEN not in answers[name]["err"]
    assert set(hub.repos) == {f"{OWNER}/first", f"{OWNER}/open", f"{OWNER}/asked"}


def test_folders_that_are_not_pushed(folders, tiny_model, tmp_path):
    """Each is refused before the hub is reached."""
    with refused("README.md", "'teacher'"):
        checked_card(folders / "old", None)
    with pytest.raises(DistilvecError, match=r"^\[--license\] found 'MIT License'"):
        checked_card(folders / "unlicensed", "MIT License")
    with refused("repo_id"):
        push_model(folders / "student", "not/a/name")
    with refused("model", "a run's model is in"):
        model_files(folders)
    bare = shutil.copytree(folders / "old", tmp_path / "bare")
    (bare / "README.md").write_text("---\n- a list\n---\n", encoding="utf-8")
    with refused("README.md", "damaged"):
        checked_card(bare, None)
    (bare / "README.md").unlink()
    with pytest.raises(DistilvecError, match=r"^\[model\] .* has no model card"):
        model_files(bare)
    for weights in bare.rglob("*.safetensors"):
        weights.rename(weights.with_name("pytorch_model.bin"))
    with refused("model", "safetensors"):
        model_files(bare)
    (bare / "modules.json").unlink()
    with refused("model", "modules.json"):
        model_files(bare)
    with refused("HF_HUB_OFFLINE"):
        push_model(folders / "student", "me/offline")


@pytest.mark.parametrize(
    "name",
    [
        "sentencepiece.bpe.model", "spiece.model", "tokenizer.model", "tokenizer.model.v3", "source.spm", "bpe.codes",
        "qwen.tiktoken", "vocab.json", "entity_vocab.json", "adapter_config.json", "adapter_model.safetensors",
        "0_Transformer/sentencepiece.bpe.model", "sentence_roberta_config.json",
        "0_WordEmbeddings/wordembedding_config.json", "0_WordEmbeddings/whitespacetokenizer_config.json",
        "preprocessor_config.json", "additional_chat_templates/search.jinja",
    ],
)  # fmt: skip
def test_files_that_tokenizers_and_modules_need_are_pushed(name):
    assert _PUSHED.fullmatch(name)


@pytest.mark.parametrize(
    "name", [*SECRETS, ".model", ".secret.model", "a/.b/spiece.model", "modeling.py", "key.json", "scaler.pt"]
)
def test_files_that_are_nobodys_business_are_not_pushed(name):
    assert not _PUSHED.fullmatch(name)


def test_every_file_that_a_tokenizer_of_transformers_may_have_is_pushed():
    from transformers import AutoTokenizer  # noqa: F401 - so that the table of tokenizers is filled
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES, tokenizer_class_from_name

    names = set()
    for entry in TOKENIZER_MAPPING_NAMES.values():
        for name in [entry] if isinstance(entry, str) else entry or ():
            try:
                found = tokenizer_class_from_name(name) if name else None
            except (ImportError, AttributeError):  # of a package that is not installed
                continue
            names |= {*getattr(found, "vocab_files_names", {}).values()}
    missing = sorted(name for name in names if isinstance(name, str) and not _PUSHED.fullmatch(name))
    assert len(names) > 10 and not missing


def test_code_that_the_settings_name_is_pushed_and_no_other(folders, tmp_path):
    model = shutil.copytree(folders / "old", tmp_path / "model")
    settings = {"auto_map": {"AutoModel": "modeling.New", "AutoConfig": "me/elsewhere--configuration.New"}}
    (model / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    (model / "modeling.py").write_text("from .layers import Layer\n", encoding="utf-8")
    for name in ("layers.py", "train.py", "configuration.py"):
        (model / name).write_text("", encoding="utf-8")
    assert {name for name in model_files(model) if name.endswith(".py")} == {"modeling.py", "layers.py"}


def exported_form():
    """A file that is as good as PyTorch."""
    numbers = {field.name: 1 for field in fields(ExportedForm) if field.type in ("int", "float")}
    texts = {field.name: "x" for field in fields(ExportedForm) if field.type == "str"}
    return ExportedForm(**{**numbers, **texts, "latency_ms": 1, "file": "onnx/model.onnx"})


def test_files_that_were_exported_from_an_earlier_model_stay(folders, tmp_path, capsys):
    """A reader of the hub would run them instead of the new weights."""
    model = shutil.copytree(folders / "unlicensed", tmp_path / "model")
    for name in ("onnx/model.onnx", "openvino/openvino_model.xml", "openvino/openvino_model.bin"):
        (model / name).parent.mkdir(exist_ok=True)
        (model / name).write_bytes(b"exported")
    write_exports(model, {})
    assert "onnx/model.onnx" not in model_files(model)
    (model / "exports.json").unlink()
    assert {"onnx/model.onnx", "openvino/openvino_model.bin"} <= {*model_files(model)}, "files of unknown origin"
    write_exports(model, {"onnx": exported_form()})
    assert {"onnx/model.onnx", "exports.json"} <= {*model_files(model)}
    capsys.readouterr()
    settings = model / "1_Pooling" / "config.json"
    settings.write_text(settings.read_text().replace("32", "32 "))
    left = {*model_files(model)}
    assert not any(name.endswith((".onnx", ".xml", ".bin", "exports.json")) for name in left)
    assert "openvino/openvino_model.xml" in capsys.readouterr().err
