"""Cutting layers: the same vectors as the whole model with the other layers skipped, and the same again after a reload."""  # noqa: E501

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path

import pytest
import torch
from architectures import ARCHITECTURES, TEXTS, bert, embedding_gemma2, esm, gemma3n, gpt_neo, longformer
from refusals import refused
from transformers import CONFIG_MAPPING, AutoModel, AutoTokenizer, T5Config, T5EncoderModel

from distilvec.core.errors import DistilvecError
from distilvec.students.layer_choice import best_layers
from distilvec.students.layers import choose_layers, cut_layers, layer_list, only_layers, rebuild

# (architecture, layers kept): also several in a row, a changed layer pattern, and a first layer that is not layer 0
CUTS = [(name, [0, 2, 3]) for name in ARCHITECTURES] + [
    ("bert", [1, 3]),
    ("xlm_roberta", [3]),
    ("modernbert", [0, 4, 5]),
    ("modernbert", [0, 3]),
    ("gemma3", [0, 1]),
    ("gemma3", [2, 5]),
    ("gemma3", [1, 2, 4, 5]),
    ("qwen3", [1, 2]),
    ("mistral", [1, 3]),
    ("longformer", [0, 2, 3]),
    ("longformer", [1]),
    ("gpt_neo", [0, 2]),
    ("embedding_gemma2", [0, 2]),
    ("embedding_gemma2", [1, 4, 5]),
    ("embedding_gemma2", [5]),
    ("gemma3n", [1, 2]),
    ("esm", [0, 3]),
]
OTHERS = {"longformer": longformer, "gpt_neo": gpt_neo, "gemma3n": gemma3n, "esm": esm}
if "embedding_gemma2_text" in CONFIG_MAPPING:  # of later versions of transformers 5
    OTHERS["embedding_gemma2"] = embedding_gemma2
else:
    CUTS = [(name, keep) for name, keep in CUTS if name != "embedding_gemma2"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("backbones")
    return {name: make(root / name) for name, make in {**ARCHITECTURES, **OTHERS}.items()}


def load(folder: Path):
    return AutoModel.from_pretrained(folder, dtype=torch.float32).eval()


def states(model, folder: Path) -> torch.Tensor:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "right"
    tokens = tokenizer(TEXTS, padding=True, truncation=True, max_length=48, return_tensors="pt")
    with torch.no_grad():
        output = model(**tokens).last_hidden_state
    return output[tokens["attention_mask"].bool()]


class Skip(torch.nn.Module):
    """Stands in for a layer: gives back the hidden states it gets, in the form its layer does."""

    def __init__(self, layer: torch.nn.Module, as_tuple: bool) -> None:
        super().__init__()
        self.as_tuple = as_tuple
        for name in ("attention_type", "layer_type"):
            if hasattr(layer, name):
                setattr(self, name, getattr(layer, name))

    def forward(self, hidden_states, *args, **kwargs):
        return (hidden_states,) if self.as_tuple else hidden_states


def skipping(model, keep: list[int], folder: Path) -> torch.Tensor:
    _, layers = layer_list(model)
    seen: list[bool] = []
    hook = layers[0].register_forward_hook(lambda module, inputs, output: seen.append(isinstance(output, tuple)))
    states(model, folder)
    hook.remove()
    for number, layer in enumerate(list(layers)):
        if number not in keep:
            layers[number] = Skip(layer, as_tuple=seen[0])
    return states(model, folder)


@pytest.mark.parametrize(("name", "keep"), CUTS, ids=[f"{name}-{keep}" for name, keep in CUTS])
def test_cut_equals_skipping_and_survives_a_reload(
    name: str, keep: list[int], folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = folders[name]
    whole = load(folder)
    before = states(whole, folder)
    cut = cut_layers(whole, keep)
    values = states(cut, folder)
    assert torch.equal(states(whole, folder), before), "the model that was cut from must be left alone"
    assert torch.isfinite(values).all() and not torch.allclose(values, before, atol=1e-2)
    torch.testing.assert_close(values, skipping(whole, keep, folder), atol=1e-5, rtol=1e-5)
    cut.save_pretrained(tmp_path)
    reloaded = load(tmp_path)
    assert torch.equal(states(reloaded, folder), values)
    assert reloaded.config.num_hidden_layers == len(keep)
    assert len(getattr(reloaded.config, "layer_types", None) or keep) == len(keep)
    assert not any(value.dtype != torch.float32 for value in cut.parameters())


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_all_layers_kept_is_the_same_model(name: str, folders: dict[str, Path]) -> None:
    model = load(folders[name])
    assert cut_layers(model, list(range(model.config.num_hidden_layers))) is model


def test_layer_kinds_follow_their_layers(folders: dict[str, Path]) -> None:
    cut = cut_layers(load(folders["gemma3"]), [1, 2, 5])
    assert cut.config.layer_types == ["sliding_attention", "full_attention", "full_attention"]
    _, layers = layer_list(cut)
    assert [layer.self_attn.layer_idx for layer in layers] == [0, 1, 2]
    assert [layer.self_attn.sliding_window is None for layer in layers] == [False, True, True]


def test_a_configuration_that_the_architecture_refuses_is_an_error(folders: dict[str, Path]) -> None:
    model = load(folders["longformer"])
    config = copy.deepcopy(model.config)
    config.attention_window = [8, 8]
    with refused("student.layers", "attention_window"):
        rebuild(model, config, model.state_dict())


def test_modernbert_without_layer_0_is_refused(folders: dict[str, Path]) -> None:
    with refused("student.layers", "keep its first"):
        cut_layers(load(folders["modernbert"]), [1, 2])


def test_a_cut_that_its_own_file_would_change_is_refused(folders: dict[str, Path]) -> None:
    """EmbeddingGemma 2 gives its last layer full attention, whatever its configuration says."""
    if "embedding_gemma2" not in folders:
        pytest.skip("needs a later transformers")
    model = load(folders["embedding_gemma2"])
    with refused("student.layers", "EmbeddingGemma2TextModel"):
        cut_layers(model, [0, 1])
    best, found = best_layers(model, 1, lambda: 1.0)
    assert best in ([2], [5]) and {(2,), (5,)} <= {*found}, "the layer that is left has full attention"


def test_each_layer_keeps_its_own_inputs(folders: dict[str, Path]) -> None:
    """Of EmbeddingGemma 2's inputs for every layer those of the kept ones stay, and are the teacher's."""
    if "embedding_gemma2" not in folders:
        pytest.skip("needs a later transformers")
    model = load(folders["embedding_gemma2"])
    blocks = model.ple.per_layer_model_projection.weight.unflatten(0, (6, 8))
    cut = cut_layers(model, [0, 2])
    assert torch.equal(cut.ple.per_layer_model_projection.weight.unflatten(0, (2, 8)), blocks[[0, 2]])
    full = cut.config.per_layer_config[1]
    assert (full.head_dim, full.num_key_value_heads) == (16, 1) and cut.config.per_layer_config[0].head_dim == 8


def test_layers_that_read_those_of_others_are_not_cut(tmp_path: Path) -> None:
    with refused("student.layers", "Gemma3nTextModel"):
        cut_layers(load(gemma3n(tmp_path, num_kv_shared_layers=2)), [0, 3])


def test_t5_encoder(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = T5EncoderModel(
        T5Config(vocab_size=50, d_model=32, d_kv=8, d_ff=64, num_layers=4, num_heads=4, dropout_rate=0.0)
    ).eval()
    ids = torch.randint(1, 50, (3, 9))
    cut = cut_layers(model, [0, 2])
    with torch.no_grad():
        values = cut(ids).last_hidden_state
        cut.save_pretrained(tmp_path)
        again = T5EncoderModel.from_pretrained(tmp_path).eval()(ids).last_hidden_state
        model.encoder.block = torch.nn.ModuleList([model.encoder.block[0], model.encoder.block[2]])
        torch.testing.assert_close(values, model(ids).last_hidden_state)
    assert torch.equal(values, again)


def test_precision_and_generator_are_left_alone(folders: dict[str, Path]) -> None:
    model = AutoModel.from_pretrained(folders["bert"], dtype=torch.bfloat16)
    state = torch.get_rng_state()
    assert {value.dtype for value in cut_layers(model, [0]).parameters()} == {torch.bfloat16}
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("layers", "total", "expected"),
    [
        (3, 6, [0, 2, 5]),
        (2, 6, [0, 5]),
        (6, 6, [0, 1, 2, 3, 4, 5]),
        (1, 6, [0]),
        (4, 12, [0, 4, 7, 11]),
        ([0, 2, 5], 6, [0, 2, 5]),
    ],
)
def test_choice(layers: int | list[int], total: int, expected: list[int]) -> None:
    assert choose_layers(layers, total) == expected


@pytest.mark.parametrize("total", range(1, 40))
def test_a_number_always_gives_distinct_ascending_layers(total: int) -> None:
    for number in range(1, total + 1):
        chosen = choose_layers(number, total)
        assert len(chosen) == number and chosen == sorted(set(chosen)) and chosen[0] == 0
        assert number == 1 or chosen[-1] == total - 1


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        (0, "from 1 to 6"),
        (7, "from 1 to 6"),
        *((layers, "0, 2, 5") for layers in ([], [0, 6], [-1], [0, 2, 2], [2, 0])),
    ],
)
def test_bad_choices_are_named(layers: int | list[int], words: str) -> None:
    with pytest.raises(DistilvecError, match=rf"\[student.layers\].*{words}"):
        choose_layers(layers, 6)


@pytest.mark.parametrize(("name", "keep"), CUTS)
def test_a_model_runs_with_some_layers_as_it_does_cut(name: str, keep: list[int], folders: dict[str, Path]) -> None:
    model = load(folders[name])
    before = states(model, folders[name])
    with only_layers(model, keep):
        values = states(model, folders[name])
    torch.testing.assert_close(values, states(cut_layers(model, keep), folders[name]), atol=1e-5, rtol=1e-5)
    assert torch.equal(states(model, folders[name]), before)


def test_the_best_layers_are_found_among_all_or_one_by_one(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(folders["modernbert"])
    whole = states(model, folders["modernbert"])

    def distance() -> float:
        return float((states(model, folders["modernbert"]) - whole).norm())

    best, found = best_layers(model, 3, distance)
    assert len(found) == 10 and all(keep[0] == 0 for keep in found), "ModernBERT's layer 0 is always the first"
    assert best == list(min(found, key=found.__getitem__))
    monkeypatch.setattr("distilvec.students.layer_choice.MOST_CHOICES", 9)
    greedy, some = best_layers(model, 3, distance)
    assert len(some) < 12 and some[tuple(greedy)] == min(value for keep, value in some.items() if len(keep) == 3), (
        "the last step compares what it adds, and the spread layers"
    )
    assert some[tuple(greedy)] <= found[0, 2, 5]


@pytest.mark.parametrize("name", [*ARCHITECTURES, *OTHERS])
def test_layers_that_the_next_choice_begins_with_run_once(name: str, folders: dict[str, Path]) -> None:
    """On several batches; the distances are those of every choice alone, to the last bit."""
    model = load(folders[name])
    ran = []
    for layer in layer_list(model)[1]:
        next(layer.children()).register_forward_hook(lambda *_: ran.append(1))

    def distance() -> float:
        return sum(float(states(model, folders[name])[:, 0].norm()) for _ in range(2))

    _, found = best_layers(model, 2, distance)
    shared = len(ran)
    ran.clear()
    for keep, value in found.items():
        with only_layers(model, keep):
            assert distance() == value
    assert shared < len(ran), "with less work"
    assert not any("forward" in vars(layer) for layer in layer_list(model)[1])


class Eight:
    """A backbone of eight layers: the distance of its states to those of all layers, and how often it was measured."""

    def __init__(self, folder: Path) -> None:
        self.folder = bert(folder, num_hidden_layers=8)
        self.model = load(self.folder)
        self.whole = states(self.model, self.folder)
        self.measured = 0

    def distance(self) -> float:
        self.measured += 1
        return self.glance()

    def glance(self, every: int = 1) -> float:
        return float((states(self.model, self.folder)[::every] - self.whole[::every]).norm())

    def misleading(self) -> float:
        return -self.glance()


def test_a_glance_decides_which_of_many_choices_are_measured(tmp_path: Path) -> None:
    eight = Eight(tmp_path / "bert")
    of_all, found = best_layers(eight.model, 3, eight.distance)
    assert eight.measured == len(found) == 56
    eight.measured = 0
    best, told = best_layers(eight.model, 3, eight.distance, partial(eight.glance, 9))
    assert eight.measured == 17, "16 of them, and the evenly spread layers"
    assert best == of_all and told[tuple(best)] == found[tuple(best)] and len(told) == 56
    misled, _ = best_layers(eight.model, 3, eight.distance, eight.misleading)
    assert found[tuple(misled)] <= found[tuple(choose_layers(3, 8))], "never farther than the evenly spread layers"


def test_a_glance_decides_which_layers_are_measured_where_they_are_added_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distilvec.students.layer_choice.MOST_CHOICES", 10)
    eight = Eight(tmp_path / "bert")
    added, found = best_layers(eight.model, 3, eight.distance)
    assert eight.measured == len(found) <= 1 + 8 + 7 + 6
    eight.measured = 0
    best, told = best_layers(eight.model, 3, eight.distance, eight.glance)
    assert eight.measured <= 1 + 2 * 3 and best == added and told[tuple(best)] == found[tuple(added)]
    misled, told = best_layers(eight.model, 3, eight.distance, eight.misleading)
    assert told[tuple(misled)] <= told[tuple(choose_layers(3, 8))], "never farther than the evenly spread layers"
