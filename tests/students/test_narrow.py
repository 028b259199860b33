"""Narrower feed-forward layers: which neurons stay, and what the others' weights become."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from architectures import ARCHITECTURES, TEXTS
from transformers import AutoModel, AutoTokenizer

from distilvec.config.student import StudentSection
from distilvec.core.errors import DistilvecError
from distilvec.students.build import TeacherInfo, build_student
from distilvec.students.narrow import narrow

KNOWN = [name for name in ARCHITECTURES if name not in ("distilbert", "t5")]
TEACHER = TeacherInfo(dim=32, normalized=True, max_length=64)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {name: make(root / name) for name, make in ARCHITECTURES.items()}


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


def test_the_others_weights_are_the_least_squares_fit(folders):
    """On the texts themselves, no other outgoing weights of the kept neurons are nearer to the old output."""
    whole, tokens = AutoModel.from_pretrained(folders["bert"]).eval(), ids(folders["bert"])
    made = narrow(whole, 20, tokens)
    old, new = whole.encoder.layer[0], made.encoder.layer[0]
    read = []
    hook = old.intermediate.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0][0]))
    states(whole, tokens)
    hook.remove()
    inputs = torch.cat(read)
    with torch.no_grad():
        goal, found, neurons = old.output.dense(old.intermediate(inputs)), new.intermediate(inputs), new.output.dense
        columns = torch.cat([found, torch.ones(len(found), 1)], 1).double()
        best = columns @ torch.linalg.lstsq(columns, goal.double()).solution
        ours, least = ((goal - output).square().sum() for output in (neurons(found), best))
    assert ours < 1.01 * least + 1e-6 * goal.square().sum()


def test_the_neurons_kept_are_the_teachers(folders):
    whole = AutoModel.from_pretrained(folders["bert"]).eval()
    made = narrow(whole, 12, ids(folders["bert"]))
    for old, new in zip(whole.encoder.layer, made.encoder.layer, strict=True):
        rows = (new.intermediate.dense.weight[:, None] == old.intermediate.dense.weight).all(-1)
        assert rows.sum(1).tolist() == [1] * 12
        assert torch.equal(new.attention.self.query.weight, old.attention.self.query.weight)


def test_the_choice_beats_the_smallest_weights(folders):
    """Texts tell which neurons are of use: without them the smallest outgoing weights go."""
    whole, tokens = AutoModel.from_pretrained(folders["bert"]).eval(), ids(folders["bert"])
    before = states(whole, tokens)
    fitted, blind = ((states(narrow(whole, 16, read), tokens) - before).square().mean() for read in (tokens, ()))
    assert fitted < 0.7 * blind


def test_students_are_narrow_and_the_same_every_time(folders):
    section = StudentSection(model=str(folders["bert"]), layers=2, intermediate_size=16, embedding={"rank": 8})
    first, again = (build_student(section, TEACHER, seed=0, texts=TEXTS) for _ in range(2))
    assert first[0].auto_model.config.intermediate_size == 16
    assert first[0].auto_model.encoder.layer[0].intermediate.dense.weight.shape == (16, 32)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in first.state_dict().items())


def test_all_neurons_change_nothing(folders):
    whole = AutoModel.from_pretrained(folders["bert"])
    assert narrow(whole, whole.config.intermediate_size, ids(folders["bert"])) is whole


@pytest.mark.parametrize(("size", "words"), [(0, "from 1 to"), (10_000, "from 1 to")])
def test_more_neurons_than_there_are_is_an_error(folders, size, words):
    with pytest.raises(DistilvecError, match=words):
        narrow(AutoModel.from_pretrained(folders["bert"]), size)


def test_another_kind_of_layer_is_an_error(folders):
    with pytest.raises(DistilvecError, match="another kind"):
        narrow(AutoModel.from_pretrained(folders["distilbert"]), 8)


def test_a_fresh_student_has_its_size_in_config():
    with pytest.raises(ValueError, match="set it in 'config'"):
        StudentSection(config={"model_type": "bert"}, tokenizer="x", intermediate_size=8)
