"""Two processes train as one does: gradients of every method, weights after 12 steps, validation, checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import architectures
import pytest
from safetensors.torch import load_file
from several import finish, start, train_alone_and_in_two

from distilvec.config import recipe as recipes
from distilvec.core.method_file import method_names
from distilvec.core.registry import method_class
from distilvec.core.run_folder import RunFolder
from distilvec.train.metrics import read_metrics

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("shared_cache")]
KEPT = (
    "model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "max_position_embeddings",
)  # fmt: skip
OTHER = ("emo", "emo_live", "distillmoe")  # students with another tokenizer than the teacher's
CASES = {
    "redact": {"train__gradient_accumulation_steps": 3, "train__gradient_steps": 5},
    "redact_tokens": {"train__max_tokens": 14},  # batches of one text, too: a process without any
    "talas": {"method__weights": {"simcse": 0}, "train__update": {"name": "asam"}},
    "distillmoe": {  # a nucleus of all tokens, and small steps: at a threshold rounding chooses other tokens
        "method__options": {"layers": 2, "threshold": 1.0},
        "train__learning_rate": 1e-4,
        "train__max_grad_norm": 1.0,
    },
    "distilcse_ckd": {"method__options": {"queue": 40}},
    "emo": {},
    "emo_live": {"teacher__live": True},
    "redact_scores": {"method__options": {"queue": 40}, "train__update": {"name": "disam"}},
    "one_to_two": {},
    "two_to_one": {"method__name": "redact_scores", "method__options": {"queue": 40}},
}


def test_every_method_has_the_gradients_of_one_process(tiny_model):
    """Gloo, to 1e-6: five texts, so that one process has two and the other one three; with whole weights and shards."""
    outputs = finish(start("gradients", tiny_model))
    assert outputs[0] == outputs[1]
    assert {line.split()[0] for line in outputs[0].splitlines()} == {
        name for name in method_names() if not method_class(name).reads_pairs
    }


@pytest.fixture(scope="module")
def trained(tiny_model, tmp_path_factory):
    """All cases trained by one process, and by two in one launch; the two resume what one began, and the reverse."""
    root = tmp_path_factory.mktemp("processes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISTILVEC_CACHE", str(root / "cache"))
        train_alone_and_in_two(recipes_of(root, tiny_model), root)
    return root


def recipes_of(root: Path, tiny_model: Path):
    """The recipes of all cases, of 12 steps without dropout."""
    from samples import make_texts

    (root / "texts.txt").write_text("\n".join(make_texts(200)), encoding="utf-8")
    backbone = architectures.xlm_roberta(root / "backbone", num_hidden_layers=2)
    config = json.loads((backbone / "config.json").read_text())
    other = {"config": {key: config[key] for key in KEPT}, "tokenizer": str(backbone), "max_length": 64}
    found = {}
    for name, changes in CASES.items():
        student = other if name in OTHER else {"model": "teacher", "layers": 2}
        experts = {"experts": {"width": 24, "dropout": 0.0}} if name == "distillmoe" else {}
        tree = {
            "name": name,
            "teacher": {"model": str(tiny_model), "dtype": "float32"},
            "student": {**student, "dropout": 0.0, **experts},
            "corpus": {"sources": [{"path": str(root / "texts.txt")}], "validation_rows": 21},
            "method": {"name": name.removesuffix("_live").removesuffix("_tokens")},
            "train": {"epochs": 30, "max_steps": 12, "batch_size": 7, "logging_steps": 5, "learning_rate": 1e-3}
            | {"precision": "fp32", "device": "cpu"},
        }
        if name == "one_to_two":
            tree["method"] = {"name": "redact"}
        for key, value in changes.items():
            recipes.set_key(tree, key.replace("__", "."), value)
        found[name] = recipes.validate(tree)
    return found


@pytest.mark.parametrize("name", CASES)
def test_weights_after_12_steps_are_those_of_one_process(trained, name):
    """To a thousandth of the way that a weight can go in the mean over a tensor, to a hundredth for each element.

    Single elements may be further apart than the mean: where the gradient of a step is 0 but for rounding (3e-9 next to
    4e-3), Adam divides it by itself.
    """
    way = 12 * recipes.load(trained / f"{name}.yaml").train.learning_rate
    one, two = (load_file(RunFolder(trained / count / name).checkpoint) for count in ("one", "two"))
    assert one.keys() == two.keys()
    for key, value in one.items():
        if key.startswith("model/") and "key.bias" not in key:  # whose gradient is 0, but for rounding
            gap = (two[key] - value).float().abs()
            assert gap.square().mean().sqrt() < 1e-3 * way and gap.max() < 1e-2 * way, key


def test_a_checkpoint_that_is_due_in_one_process_is_written_by_all(trained, tiny_model):
    file = trained / "clocks.yaml"
    file.write_text(recipes.dump(recipes_of(trained, tiny_model)["redact"]))
    assert finish(start("clocks", file)) == ["[1, 12]\n"] * 2  # and at the end


@pytest.mark.parametrize("name", CASES)
def test_metrics_are_those_of_one_process(trained, name):
    """Validation before the first step to the last digit; losses, gradient norms and warnings of training."""
    one, two = (read_metrics(RunFolder(trained / count / name).metrics) for count in ("one", "two"))
    timed = {"train/texts_per_second", "train/tokens_per_second", "train/wait"}
    assert one[0] == two[0] and any(key.startswith("eval/") for key in one[0])
    assert [line.keys() for line in one] == [line.keys() for line in two] and one[-1]["step"] == 12
    for first, second in zip(one, two, strict=True):
        same = {key: value for key, value in first.items() if key not in timed and not isinstance(value, str)}
        assert {key: second[key] for key in same} == pytest.approx(same, rel=1e-3, abs=1e-5)
