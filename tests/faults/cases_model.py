"""Models that cannot be read, are damaged, hostile, or load and yet cannot work."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from faults.harness import Outcome, World, case

WEIGHTS, RAN = "model.safetensors", "it-ran"


def model_case(name: str, harm: Callable[[World, Path], Any]) -> None:
    """Three cases of one damage: as a recipe's teacher, as its student's backbone, and as the model of a verb."""

    def damaged(world: World) -> str:
        folder = world.root / "damaged"
        shutil.copytree(world.model, folder)
        harm(world, folder)
        world.checks.append(_nothing_ran(world))
        return str(folder)

    @case(f"model-{name}-as-teacher", key="teacher.model")
    def _(world: World) -> list[str]:
        return ["plan", world.recipe(teacher__model=damaged(world))]

    @case(f"model-{name}-exported", key="model")
    def _(world: World) -> list[str]:
        return ["export", damaged(world), "--out", "out.onnx"]


def _nothing_ran(world: World) -> Callable[[Outcome], None]:
    def check(found: Outcome) -> None:
        assert not (world.root / RAN).exists(), "code of the model was run"
        assert not (world.root / "out.onnx").exists()

    return check


def _write(name: str, content: str | bytes) -> Callable[[World, Path], None]:
    def harm(world: World, folder: Path) -> None:
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)

    return harm


def _weights(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[World, Path], None]:
    def harm(world: World, folder: Path) -> None:
        found = load_file(folder / WEIGHTS)
        change(found)
        save_file(found, folder / WEIGHTS, metadata={"format": "pt"})

    return harm


class Evil:
    """Leaves a file where its pickle is opened with all that pickles may do."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (self.path, "w"))


def _evil_pickle(world: World, folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Evil(str(world.root / RAN)), protocol=2))


def _evil_archive(world: World, folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    torch.save({"weight": Evil(str(world.root / RAN))}, folder / "pytorch_model.bin")


def _settings(name: str, **changes: Any) -> Callable[[World, Path], None]:
    def harm(world: World, folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(content | changes))

    return harm


def _without_a_layer(found: dict[str, torch.Tensor]) -> None:
    for name in [name for name in found if ".layer.1." in name]:
        del found[name]


def _without_tokenizer(world: World, folder: Path) -> None:
    for path in folder.glob("tokenizer*"):
        path.unlink()


def _another_token(world: World, folder: Path) -> None:
    state = json.loads((folder / "tokenizer.json").read_text())
    state["model"]["vocab"]["student2"] = 1100
    (folder / "tokenizer.json").write_text(json.dumps(state))


def _becomes(make: Callable[[Path], Any]) -> Callable[[World, Path], None]:
    def harm(world: World, folder: Path) -> None:
        shutil.rmtree(folder)
        make(folder)

    return harm


def evil_code(world: World, folder: Path) -> None:
    """Code in the model's folder that configuration and tokenizer name; it leaves a file where it runs."""
    for name, classes in (
        ("config.json", {"AutoConfig": "evil.C", "AutoModel": "evil.M", "AutoModelForCausalLM": "evil.M"}),
    ):
        (folder / name).write_text(
            json.dumps({**json.loads((folder / name).read_text()), "model_type": "evil", "auto_map": classes})
        )
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings |= {"tokenizer_class": "EvilTokenizer", "auto_map": {"AutoTokenizer": ["evil.T", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "tokenizer.json").unlink()
    (folder / "evil.py").write_text(f"open({str(world.root / RAN)!r}, 'w').close()\n")


TRANSFORMER = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
DAMAGE: dict[str, Callable[[World, Path], Any]] = {
    "weights-cut-short": lambda world, folder: (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:1000]),
    "pickle-with-code": _evil_pickle,
    "archive-with-code": _evil_archive,
    "modules-no-json": _write("modules.json", "{"),
    "modules-no-list": _write("modules.json", '"x"'),
    "modules-above-the-folder": _write("modules.json", json.dumps([{**TRANSFORMER, "path": "../.."}])),
    "modules-of-another-package": _write(
        "modules.json", json.dumps([TRANSFORMER, {**TRANSFORMER, "type": "os.system"}])
    ),
    "modules-too-deep": _write("modules.json", "[" * 100_000),
    "modules-without-pooling": _write("modules.json", json.dumps([TRANSFORMER])),
    "config-no-json": _write("config.json", "{"),
    "config-unknown-type": _write("config.json", '{"model_type": "evil"}'),
    "tokenizer-missing": _without_tokenizer,
    "tokenizer-no-json": _write("tokenizer.json", "{"),
    "tokenizer-with-more-ids": _another_token,
    "weights-without-a-layer": _weights(_without_a_layer),
    "layers-that-are-left-out": _settings("config.json", num_hidden_layers=1),
    "layers-without-weights": _settings("config.json", num_hidden_layers=6),
    "length-without-room-for-a-text": _settings("sentence_bert_config.json", max_seq_length=2),
    "adapter-without-its-base": _write("adapter_config.json", '{"base_model_name_or_path": "/nowhere/model"}'),
    "weights-nan": _weights(lambda found: found["encoder.layer.0.output.dense.weight"].fill_(float("nan"))),
    "weights-of-other-shape": _weights(
        lambda found: found.update({"encoder.layer.0.output.dense.weight": torch.zeros(3, 3)})
    ),
    "empty-folder": _becomes(lambda folder: folder.mkdir()),
    "a-file": _becomes(lambda folder: folder.write_text("x")),
    "link-to-nothing": _becomes(lambda folder: folder.symlink_to("/nowhere/model")),
    "absent": _becomes(lambda folder: None),
    "code-in-the-folder": evil_code,
}
for _name, _harm in DAMAGE.items():
    model_case(_name, _harm)


def _student(name: str, harm: Callable[[World, Path], Any], **changes: Any) -> None:
    @case(f"student-{name}", key="student.model")
    def _(world: World) -> list[str]:
        folder = world.root / "damaged"
        shutil.copytree(world.model, folder)
        harm(world, folder)
        world.checks.append(_nothing_ran(world))
        return ["run", world.recipe(student__model=str(folder), **changes), "--out", "run"]


for _name in ("weights-cut-short", "config-no-json", "weights-nan", "absent", "code-in-the-folder"):
    _student(_name, DAMAGE[_name])


VERBS: dict[str, tuple[str, Callable[[World, str], list[str]]]] = {
    "run-teacher": (
        "teacher.model",
        lambda world, folder: ["run", world.recipe(teacher__model=folder), "--out", "run"],
    ),
    "run-student": (
        "student.model",
        lambda world, folder: ["run", world.recipe(student={"model": folder}), "--out", "run"],
    ),
    "run-tokenizer": (
        "student.tokenizer",
        lambda world, folder: [
            "run",
            world.recipe(
                student={
                    "config": {"model_type": "bert", "hidden_size": 32, "num_attention_heads": 4},
                    "tokenizer": folder,
                }
            ),
            "--out",
            "run",
        ],
    ),
    "run-vocabulary": (
        "student.vocabulary.tokenizer",
        lambda world, folder: ["run", world.recipe(student__vocabulary={"tokenizer": folder}), "--out", "run"],
    ),
    "cache": ("teacher.model", lambda world, folder: ["cache", "fill", world.recipe(teacher__model=folder)]),
    "export": ("model", lambda world, folder: ["export", folder, "--out", "out.onnx"]),
    "transplant": (
        "teacher",
        lambda world, folder: ["transplant", folder, "--texts", str(world.texts), "--out", "out"],
    ),
    "transplant-tokenizer": (
        "--tokenizer",
        lambda world, folder: ["transplant", str(world.model), "--tokenizer", folder, "--out", "out"],
    ),
    "align-teacher": (
        "--teacher",
        lambda world, folder: [
            "align",
            "--teacher",
            folder,
            "--student",
            str(world.model),
            "--texts",
            str(world.texts),
        ],
    ),
    "align-student": (
        "--student",
        lambda world, folder: [
            "align",
            "--teacher",
            str(world.model),
            "--student",
            folder,
            "--texts",
            str(world.texts),
        ],
    ),
    "finetune": (
        "model",
        lambda world, folder: [
            "finetune",
            folder,
            "--task",
            str(world.texts),
            "--type",
            "classification",
            "--out",
            "run",
        ],
    ),
}


def _answered(name: str, key: str, command: Callable[[World, str], list[str]]) -> None:
    """Code in a model's folder is not run, though somebody types y."""

    @case(f"code-refused-though-answered-{name}", key=key)
    def _(world: World) -> list[str]:
        folder = world.root / "damaged"
        shutil.copytree(world.model, folder)
        evil_code(world, folder)
        before = sys.stdin
        world.undo.append(lambda: setattr(sys, "stdin", before))
        sys.stdin = io.StringIO("y\n" * 50)
        world.checks += [_nothing_ran(world), _says_how_to_allow]
        return command(world, str(folder))


def _says_how_to_allow(found: Outcome) -> None:
    assert (
        "trust_remote_code" in found.err
        or "--trust-remote-code" in found.err
        or "save it as a tokenizer.json" in found.err
    ), found.err


for _name, (_key, _command) in VERBS.items():
    _answered(_name, _key, _command)
_answered("evaluate", "model", lambda world, folder: ["evaluate", folder, "--suite", _suite(world)])
_answered(
    "evaluate-teacher",
    "--teacher",
    lambda world, folder: ["evaluate", str(world.model), "--teacher", folder, "--suite", _suite(world)],
)
_answered("speed", "models", lambda world, folder: ["speed", folder, "--seconds", "0.01"])


def _suite(world: World) -> str:
    world.file("sts.csv", "sentence1,sentence2,score\nriver,stone,1\nbridge,river,3\nstone,stone,5\n")
    return world.file("suite.yaml", "- {name: mini, type: sts, path: sts.csv}\n")


@case("onnx-missing", key="--to onnx")
def _(world: World) -> list[str]:
    hidden = {name: sys.modules.get(name) for name in ("onnx", "onnxruntime", "onnxscript")}
    world.undo.append(
        lambda: [
            sys.modules.__setitem__(name, found) if found else sys.modules.pop(name, None)
            for name, found in hidden.items()
        ]
    )
    sys.modules["onnxscript"] = None  # type: ignore[assignment]
    return ["export", str(world.model)]


@case("peft-missing", key="--lora")
def _(world: World) -> list[str]:
    hidden = sys.modules.get("peft")
    world.undo.append(lambda: sys.modules.__setitem__("peft", hidden) if hidden else sys.modules.pop("peft", None))
    sys.modules["peft"] = None  # type: ignore[assignment]
    world.checks.append(lambda found: _assert_absent(world.root / "run"))
    return ["finetune", str(world.model), "--task", str(world.texts), "--type", "classification", "--out", "run"]


def _assert_absent(path: Path) -> None:
    assert not path.exists()


@case("finetune-into-a-file", key="--out")
def _(world: World) -> list[str]:
    return [
        "finetune",
        str(world.model),
        "--task",
        str(world.texts),
        "--type",
        "classification",
        "--out",
        world.file("run"),
    ]


@case("no-pooling-stated", key="model")
def _(world: World) -> list[str]:
    (world.model / "modules.json").unlink()
    return ["export", str(world.model), "--out", "out.onnx"]


@case("align-tokenizer-missing", key="--student")
def _(world: World) -> list[str]:
    return [
        "align",
        "--teacher",
        str(world.model),
        "--student",
        world.file("empty/notes.txt")[:-10],
        "--texts",
        str(world.texts),
    ]


@case("align-texts-missing", key="--texts")
def _(world: World) -> list[str]:
    return ["align", "--teacher", str(world.model), "--student", str(world.model), "--texts", "absent.txt"]


@case("align-column-unknown", key="--column")
def _(world: World) -> list[str]:
    path = world.file("t.jsonl", '{"text": "river"}\n')
    return [
        "align",
        "--teacher",
        str(world.model),
        "--student",
        str(world.model),
        "--texts",
        path,
        "--column",
        "absent",
    ]


@case("align-no-text", key="--texts")
def _(world: World) -> list[str]:
    return [
        "align",
        "--teacher",
        str(world.model),
        "--student",
        str(world.model),
        "--texts",
        world.file("empty.txt", ""),
    ]


@case("align-half-a-character", key="--texts")
def _(world: World) -> list[str]:
    path = world.file("t.jsonl", '{"text": "river \\ud800 stone"}\n')
    return ["align", "--teacher", str(world.model), "--student", str(world.model), "--texts", path]


@case("align-length-without-room", key="--max-length")
def _(world: World) -> list[str]:
    line = ["align", "--teacher", str(world.model), "--student", str(world.model), "--texts", str(world.texts)]
    return [*line, "--max-length", "2"]


@case("align-json-below-a-file", key="--json")
def _(world: World) -> list[str]:
    line = ["align", "--teacher", "absent", "--student", "absent", "--texts", str(world.texts)]
    world.file("notes")
    return [*line, "--json", "notes/out.json"]
