"""Decoders as teachers: with their causal mask and without it, padded on the left, pooled by the last token or the
mean.
"""

import architectures
import numpy as np
import pytest
import torch
from refusals import refused
from samples import make_texts

from distilvec.config.schema import TeacherSection
from distilvec.core.errors import DistilvecError
from distilvec.models.bidirectional import lift_causal_mask
from distilvec.teachers.open import load_teacher

NAMES = ["mistral", "qwen3", "llama"]
TEXTS = [*make_texts(2), "A", " ".join(make_texts(4))]


@pytest.fixture(scope="module", params=NAMES)
def folder(request, tmp_path_factory):
    return getattr(architectures, request.param)(tmp_path_factory.mktemp(request.param) / "model")


def load(folder, side="left", **changes):
    section = TeacherSection.model_validate(
        {"model": str(folder), "pooling": "mean", "normalize": True, "attention": "bidirectional", **changes}
    )
    teacher = load_teacher(section, "cpu")
    teacher.model.tokenizer.padding_side = side
    teacher._forward.keeps_mask = True  # settled when the model is loaded, from the side it pads on
    return teacher


def states(backbone, ids, **more):
    with torch.no_grad():
        return backbone(input_ids=ids, **more).last_hidden_state


@pytest.mark.parametrize("pooling", ["mean", "lasttoken"])
@pytest.mark.parametrize("attention", ["own", "bidirectional"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("folder", ["mistral", "qwen3"], indirect=True)
def test_vectors_of_a_batch_are_those_of_single_texts(folder, pooling, attention, side):
    teacher = load(folder, side, pooling=pooling, attention=attention)
    together = teacher.embed(TEXTS)
    alone = np.concatenate([teacher.embed([text]) for text in TEXTS])
    np.testing.assert_allclose(together, alone, atol=3e-6)


def test_the_mask_is_lifted_and_only_where_that_is_asked_for(folder):
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    other = torch.tensor([[5, 6, 7, 8, 10]])
    for attention, sees in (("own", False), ("bidirectional", True)):
        backbone = load(folder, attention=attention).model[0].auto_model
        padding = {"attention_mask": torch.tensor([[1] * 5 + [0] * 2])}
        for one, two, more in (
            (ids, other, {}),
            (*(torch.nn.functional.pad(x, (0, 2)) for x in (ids, other)), padding),
        ):
            moved = (states(backbone, one, **more)[0, :4] - states(backbone, two, **more)[0, :4]).abs().amax(-1)
            assert (moved > 1e-4).all() if sees else not moved.any()


def test_vectors_equal_a_plain_model_with_a_mask_of_ones(folder):
    """transformers' eager attention, given a four-dimensional mask that hides nothing (texts shorter than any window)."""  # noqa: E501
    from transformers import AutoModel

    teacher, text = load(folder, pooling="lasttoken"), "A st"
    plain = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    ids = torch.tensor([teacher.model.tokenizer(text)["input_ids"]])
    assert 2 <= ids.shape[1] <= 8
    expected = states(plain, ids, attention_mask=torch.zeros(1, 1, ids.shape[1], ids.shape[1]))[0, -1]
    np.testing.assert_allclose(teacher.embed([text])[0], torch.nn.functional.normalize(expected, dim=0), atol=3e-6)
    assert not np.allclose(
        teacher.embed([text]), load(folder, pooling="lasttoken", attention="own").embed([text]), atol=1e-2
    )


def test_a_sliding_window_stays_and_looks_both_ways(tmp_path):
    folder = architectures.mistral(tmp_path / "one", num_hidden_layers=1, sliding_window=3)
    backbone = load(folder).model[0].auto_model
    ids = torch.arange(5, 15)[None]
    changed = ids.clone()
    changed[0, 5] = 40
    moved = (states(backbone, ids) - states(backbone, changed)).abs().amax(-1)[0] > 1e-5
    assert moved.nonzero()[:, 0].tolist() == [2, 3, 4, 5, 6, 7, 8]  # at most 3 away


def test_mixed_windows_of_qwen(tmp_path):
    kinds = ["sliding_attention", "full_attention"]
    folder = architectures.qwen3(
        tmp_path / "mixed", num_hidden_layers=2, layer_types=kinds, sliding_window=4, use_sliding_window=True
    )
    teacher = load(folder)
    together = teacher.embed(TEXTS)
    np.testing.assert_allclose(together, np.concatenate([teacher.embed([text]) for text in TEXTS]), atol=3e-6)
    backbone, ids = teacher.model[0].auto_model, torch.arange(5, 25)[None]
    changed = ids.clone()
    changed[0, -1] = 40
    assert ((states(backbone, ids) - states(backbone, changed)).abs().amax(-1) > 1e-5).all()


def test_the_manifest_differs(folder):
    own, lifted = (load(folder, attention=attention).manifest() for attention in ("own", "bidirectional"))
    assert lifted.attention == "bidirectional" and own.attention is None
    assert own.fingerprint != lifted.fingerprint
    assert any("attention" in line for line in own.differences(lifted))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_precision_changes_little(tmp_path, dtype):
    folder = architectures.qwen3(tmp_path / "small", initializer_range=0.1)
    exact, found = load(folder).embed(TEXTS), load(folder, dtype=dtype).embed(TEXTS)
    assert (exact * found).sum(1).min() > 0.995


@pytest.mark.parametrize("name", ["bert", "modernbert", "gemma3", "mpnet"])
def test_models_that_see_both_ways_are_refused(tmp_path, name):
    folder = getattr(architectures, name)(tmp_path / name)
    with refused(".attention", "no causal mask"):
        load(folder)


def test_layers_of_another_kind_are_refused_and_the_model_stays(folder):
    backbone = load(folder, attention="own").model[0].auto_model
    backbone.config.layer_types = ["full_attention", "linear_attention"] * 2
    with refused("", "linear_attention"):
        lift_causal_mask(backbone, "it")
    assert getattr(backbone.config, "is_causal", True)


def test_masks_of_the_models_own_making_are_refused(tmp_path, monkeypatch):
    backbone = load(architectures.qwen3(tmp_path / "own"), attention="own").model[0].auto_model

    def always_causal(*, inputs_embeds, **more):
        return torch.ones(1, 1, inputs_embeds.shape[1], inputs_embeds.shape[1], dtype=torch.bool).tril()

    monkeypatch.setattr("transformers.models.qwen3.modeling_qwen3.create_causal_mask", always_causal)
    with pytest.raises(DistilvecError, match="masking functions"):
        lift_causal_mask(backbone, "it")
    assert getattr(backbone.config, "is_causal", None) is None


def test_a_model_without_attention_is_refused():
    with pytest.raises(DistilvecError, match="no attention"):
        lift_causal_mask(torch.nn.Linear(2, 2), "it")
