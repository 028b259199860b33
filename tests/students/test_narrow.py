"""Narrower feed-forward layers: which neurons stay, and what the others' weights become."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from architectures import ARCHITECTURES, DECODER, TEXTS, longformer
from refusals import refused
from transformers import AutoConfig, AutoModel, AutoTokenizer

from distilvec.config.student import StudentSection
from distilvec.core.errors import DistilvecError
from distilvec.students.build import TeacherInfo, build_student
from distilvec.students.narrow import narrow

KNOWN = [*(name for name in ARCHITECTURES if name not in ("distilbert", "t5")), "longformer"]
TEACHER = TeacherInfo(dim=32, normalized=True, max_length=64)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {name: make(root / name) for name, make in {**ARCHITECTURES, "longformer": longformer}.items()}


def ids(folder: Path) -> list[list[int]]:
    return AutoTokenizer.from_pretrained(folder)(TEXTS)["input_ids"]


def states(backbone, tokens: list[list[int]]) -> torch.Tensor:
    with torch.no_grad():
        return torch.cat([backbone.eval()(torch.tensor([text])).last_hidden_state[0] for text in tokens])


@pytest.mark.parametrize("name", KNOWN)
def test_neurons_that_do_nothing_are_the_first_to_go(folders, name):
    """Half of the neurons are made copies of the others, so that the other half can do everything."""
    whole, tokens = AutoModel.from_pretrained(folders[name]).eval(), ids(folders[name])
    total = whole.config.get_text_config().intermediate_size
    with torch.no_grad():
        for module in (found for found in whole.modules() if isinstance(found, torch.nn.Linear)):
            if module.out_features in (total, 2 * total) and module.in_features != total:
                for half in module.weight.view(-1, total, module.in_features):
                    half[total // 2 :] = half[: total // 2]
                if module.bias is not None:
                    module.bias[total // 2 :] = module.bias[: total // 2]
    made = narrow(whole, total // 2, tokens)
    assert made.config.get_text_config().intermediate_size == total // 2
    assert type(made) is type(whole) and made.num_parameters() < whole.num_parameters()
    before, after = states(whole, tokens), states(made, tokens)
    assert (before - after).abs().max() < 2e-3 * before.abs().max()


def outputs(backbone, tokens, out: str) -> tuple[torch.Tensor, torch.Tensor]:
    """What the first layer's outgoing linear layer reads and writes on the texts."""
    seen = []
    linear = next(module for name, module in backbone.named_modules() if name.endswith(out))
    hook = linear.register_forward_hook(lambda _, inputs, output: seen.append((inputs[0][0], output[0])))
    states(backbone, tokens)
    hook.remove()
    return tuple(torch.cat(parts) for parts in zip(*seen, strict=True))


@pytest.mark.parametrize("batch", [2, 32])
@pytest.mark.parametrize(
    ("name", "out"),
    [
        ("bert", "0.output.dense"),
        ("modernbert", "0.mlp.Wo"),
        ("qwen3", "0.mlp.down_proj"),
        ("gemma3", "0.mlp.down_proj"),
    ],
)
def test_the_others_weights_are_the_least_squares_fit(folders, name, out, batch, monkeypatch):
    """On the texts themselves, no other outgoing weights of the kept neurons are nearer to the old output."""
    monkeypatch.setattr("distilvec.students.narrow._BATCH", batch)
    whole, tokens = AutoModel.from_pretrained(folders[name]).eval(), ids(folders[name])
    made = narrow(whole, 20, tokens)
    _, goal = outputs(whole, tokens, out)
    found, ours = outputs(made, tokens, out)
    columns = found.double()
    if name == "bert":  # the others have no bias
        columns = torch.cat([columns, torch.ones(len(found), 1)], 1)
    best = columns @ torch.linalg.lstsq(columns, goal.double()).solution
    assert (goal - ours).square().sum() < 1.01 * (goal - best).square().sum() + 1e-6 * goal.square().sum()


def test_the_neurons_kept_are_the_teachers(folders):
    whole = AutoModel.from_pretrained(folders["bert"]).eval()
    made = narrow(whole, 12, ids(folders["bert"]))
    for old, new in zip(whole.encoder.layer, made.encoder.layer, strict=True):
        rows = (new.intermediate.dense.weight[:, None] == old.intermediate.dense.weight).all(-1)
        assert rows.sum(1).tolist() == [1] * 12
        assert torch.equal(new.attention.self.query.weight, old.attention.self.query.weight)


def test_the_choice_beats_the_smallest_weights(folders):
    """Texts tell which neurons are of use: with the same fit, those with the largest outgoing weights do less."""
    whole, tokens = AutoModel.from_pretrained(folders["bert"]).eval(), ids(folders["bert"])
    neurons, goal = outputs(whole, tokens, "0.output.dense")
    errors = []
    for read in (tokens, ()):
        rows = narrow(whole, 12, read).encoder.layer[0].intermediate.dense.weight
        kept = (rows[:, None] == whole.encoder.layer[0].intermediate.dense.weight).all(-1).int().argmax(1)
        columns = torch.cat([neurons[:, kept], torch.ones(len(neurons), 1)], 1).double()
        best = columns @ torch.linalg.lstsq(columns, goal.double()).solution
        errors.append(float((goal - best).square().sum()))
    assert errors[0] < 0.9 * errors[1], errors


def test_texts_of_every_part_of_the_corpus_are_read(folders, monkeypatch):
    """The texts come source by source: those that are read are drawn from all of them."""
    monkeypatch.setattr("distilvec.students.narrow._TEXTS", 8)
    whole, tokens = AutoModel.from_pretrained(folders["bert"]).eval(), ids(folders["bert"])
    apart, alone = [tokens[0]] * 16 + [tokens[1]] * 16, [tokens[0]] * 32
    weights = [narrow(whole, 16, read).encoder.layer[0].output.dense.weight for read in (apart, alone)]
    assert not torch.equal(*weights)


def test_few_layers_at_a_time_give_the_same(folders, monkeypatch):
    whole, tokens = AutoModel.from_pretrained(folders["bert"]).eval(), ids(folders["bert"])
    first = narrow(whole, 16, tokens).state_dict()
    monkeypatch.setattr("distilvec.students.narrow._BYTES", 1)
    again = narrow(whole, 16, tokens).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_students_are_narrow_and_the_same_every_time(folders):
    section = StudentSection(model=str(folders["bert"]), layers=2, intermediate_size=16, embedding={"rank": 8})
    first, again = (build_student(section, TEACHER, seed=0, texts=TEXTS) for _ in range(2))
    assert first[0].auto_model.config.intermediate_size == 16
    assert first[0].auto_model.encoder.layer[0].intermediate.dense.weight.shape == (16, 32)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in first.state_dict().items())
    blind = build_student(section, TEACHER, seed=0)[0].auto_model.encoder.layer[0].output.dense.weight
    assert not torch.equal(blind, first[0].auto_model.encoder.layer[0].output.dense.weight), "texts are read"


def test_fresh_layers_stay_as_drawn(folders):
    """The last layer starts from the initialiser's weights, which nothing is fitted to."""
    section = StudentSection(model=str(folders["bert"]), intermediate_size=16, reinitialize=1)
    layer = build_student(section, TEACHER, seed=0, texts=TEXTS)[0].auto_model.encoder.layer[-1]
    assert not layer.output.dense.bias.any() and layer.output.dense.weight.shape == (32, 16)


def test_all_neurons_change_nothing(folders):
    whole = AutoModel.from_pretrained(folders["bert"])
    assert narrow(whole, whole.config.intermediate_size, ids(folders["bert"])) is whole


@pytest.mark.parametrize(("size", "words"), [(0, "from 1 to"), (10_000, "from 1 to")])
def test_more_neurons_than_there_are_is_an_error(folders, size, words):
    with pytest.raises(DistilvecError, match=words):
        narrow(AutoModel.from_pretrained(folders["bert"]), size)


def test_another_kind_of_layer_is_an_error(folders):
    phi = AutoModel.from_config(
        AutoConfig.for_model("phi3", **DECODER, num_hidden_layers=2, vocab_size=99, pad_token_id=0)
    )
    for model in (AutoModel.from_pretrained(folders["distilbert"]), phi):
        with refused("student.intermediate_size", "another kind"):
            narrow(model, 8)


def test_adapters_need_the_same_weights_at_each_resume():
    with pytest.raises(ValueError, match="leave out one"):
        StudentSection(model="x", lora={}, intermediate_size=8)


def test_a_fresh_student_has_its_size_in_config():
    with pytest.raises(ValueError, match="set it in 'config'"):
        StudentSection(config={"model_type": "bert"}, tokenizer="x", intermediate_size=8)
