"""Pooled layers equal pooling the hidden states, for every architecture; they keep no states alive and survive
checkpointing.
"""

from __future__ import annotations

import architectures
import pytest
import torch
from samples import make_texts
from sentence_transformers import SentenceTransformer

from distilvec.core.batch import TextBatch
from distilvec.core.errors import DistilvecError
from distilvec.core.outputs import OutputSpec
from distilvec.students.encoder import Encoder
from distilvec.students.pooling import KINDS, pool_states, pooling_weights

TEXTS = make_texts(5)


def batch_of(model, texts=TEXTS, side="right"):
    tokenizer = model.tokenizer
    tokenizer.padding_side = side
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    tokens = tokenizer(texts, padding=True, return_tensors="pt")
    tokens = {name: tokens[name] for name in ("input_ids", "attention_mask")}
    if bool(tokens["attention_mask"].all()):
        tokens.pop("attention_mask")
    return TextBatch(torch.arange(len(texts)), tokens, torch.zeros(len(texts), dtype=torch.long))


def pooled_by_hand(states, mask, kind):
    rows = [row[real] for row, real in zip(states, mask, strict=True)]
    return torch.stack([row.mean(0) if kind == "mean" else row[0] if kind == "cls" else row[-1] for row in rows])


@pytest.fixture(scope="module", params=architectures.ARCHITECTURES)
def encoder(request, tmp_path_factory):
    place = tmp_path_factory.mktemp(request.param)
    backbone = architectures.ARCHITECTURES[request.param](place / "backbone")
    folder = architectures.sentence_transformer(place / "model", backbone, "mean dense:24 normalize")
    return Encoder(SentenceTransformer(str(folder), device="cpu")).eval()


@pytest.fixture
def bert(tiny_model):
    return Encoder(SentenceTransformer(str(tiny_model), device="cpu"))


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_pooled_hidden_states(encoder, kind, side):
    batch, layers = batch_of(encoder.model, side=side), tuple(range(encoder.layers + 1))
    with torch.no_grad():
        states = encoder.backbone(**batch.tokens, output_hidden_states=True).hidden_states
        found = encoder(batch, OutputSpec(pooled_layers=(*layers, -1), layer_pooling=kind)).pooled_layers
        twice = encoder(batch, OutputSpec(pooled_layers=layers, layer_pooling=kind, second_view=True)).pooled_layers
    for layer in layers:
        torch.testing.assert_close(found[layer], pooled_by_hand(states[layer], batch.mask, kind), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(twice[layer], found[layer], atol=1e-5, rtol=1e-4)
    assert torch.equal(found[-1], found[encoder.layers])


def test_own_is_what_the_model_ships(encoder):
    with torch.no_grad():
        found = encoder(batch_of(encoder.model), OutputSpec(pooled_layers=(-1,), pre_dense=True))
        alone = encoder(batch_of(encoder.model, TEXTS[:1]), OutputSpec(pooled_layers=(-1, 1), layer_pooling="mean"))
    torch.testing.assert_close(found.pooled_layers[-1], found.pre_dense, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(alone.pooled_layers[-1], found.pre_dense[:1], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("mode", ["max", "mean_sqrt_len_tokens", ("cls", "mean")])
def test_own_pooling_of_a_kind_that_is_not_ours(bert, mode):
    from sentence_transformers.sentence_transformer.modules import Pooling

    bert.model[1] = Pooling(32, mode)
    bert.eval()
    with torch.no_grad():
        batch = batch_of(bert.model)
        found = bert(batch, OutputSpec(pooled_layers=(1, -1)))
        states = bert.backbone(**batch.tokens, output_hidden_states=True).hidden_states
    for layer in (1, -1):
        expected = bert.model[1]({"token_embeddings": states[layer], "attention_mask": batch.tokens["attention_mask"]})
        torch.testing.assert_close(found.pooled_layers[layer], expected["sentence_embedding"])


def test_no_state_is_kept_for_the_gradient():
    """Only tensors of batch x tokens are saved, whatever the precision and whether states need a gradient."""
    mask = torch.ones(3, 5, dtype=torch.bool)
    for dtype in (torch.float32, torch.bfloat16):
        kept = []
        states = torch.randn(3, 5, 16, requires_grad=True).to(dtype)
        vector = pool_states(states, pooling_weights(mask, "mean"))
        node = vector.grad_fn
        while node is not None:
            kept += [getattr(node, name) for name in dir(node) if name.startswith("_saved_")]
            node = node.next_functions[0][0] if node.next_functions else None
        assert sum(value.numel() for value in kept if isinstance(value, torch.Tensor)) <= mask.numel()
        assert vector.dtype == torch.float32


@pytest.mark.parametrize("kind", KINDS)
def test_twice_differentiable(kind):
    mask = torch.tensor([[True, True, False], [False, True, True]])
    states = torch.randn(2, 3, 2, dtype=torch.float64, requires_grad=True)
    weights = pooling_weights(mask, kind)
    assert pool_states(states, weights).dtype == torch.float64
    assert torch.autograd.gradcheck(lambda x: pool_states(x, weights).square(), states)
    assert torch.autograd.gradgradcheck(lambda x: pool_states(x, weights).square(), states)


def test_a_row_without_tokens_is_zero_for_the_mean():
    weights = pooling_weights(torch.zeros(1, 4, dtype=torch.bool), "mean")
    assert weights.tolist() == [[[0.0] * 4]]


def gradients(encoder, batch, required):
    encoder.zero_grad()
    torch.manual_seed(0)
    found = encoder.train()(batch, required)
    loss = sum((number + 2) * (vector**3).mean() for number, vector in enumerate(found.pooled_layers.values()))
    (loss + found.second_view[:, 0].sum()).backward()
    return loss.detach(), {
        name: value.grad.clone() for name, value in encoder.named_parameters() if value.grad is not None
    }


def assert_same_gradients(first, second):
    torch.testing.assert_close(first[0], second[0])
    assert first[1].keys() == second[1].keys()
    for name in first[1]:
        torch.testing.assert_close(first[1][name], second[1][name], msg=name)


def test_gradients_are_those_of_pooled_hidden_states(bert):
    batch, layers = batch_of(bert.model), (0, 1, 3, 4)
    found = gradients(bert, batch, OutputSpec(pooled_layers=layers, second_view=True))

    class ByHand:
        named_parameters, zero_grad = bert.named_parameters, bert.zero_grad

        def train(self):
            return lambda batch, required: self.run(batch)

        def run(self, batch):
            kept = bert.train()(batch, OutputSpec(hidden_layers=layers, second_view=True))
            kept.pooled_layers.update(
                {layer: pooled_by_hand(kept.hidden_layers[layer], batch.mask, "mean") for layer in layers}
            )
            return kept

    assert_same_gradients(found, gradients(ByHand(), batch, OutputSpec()))


@pytest.mark.parametrize("reentrant", [None, False])
def test_gradient_checkpointing_changes_nothing_and_counts_nothing_twice(bert, reentrant):
    batch, required = batch_of(bert.model), OutputSpec(pooled_layers=(0, 1, 3, 4), second_view=True)
    expected = gradients(bert, batch, required)
    settings = {} if reentrant is None else {"gradient_checkpointing_kwargs": {"use_reentrant": reentrant}}
    bert.backbone.gradient_checkpointing_enable(**settings)
    assert_same_gradients(expected, gradients(bert, batch, required))
    assert not any(layer._forward_pre_hooks for layer in bert.backbone.encoder.layer)


def test_under_autocast_sums_are_in_full_precision(bert):
    batch = batch_of(bert.model)
    with torch.autocast("cpu", torch.bfloat16):
        found = bert.eval()(batch, OutputSpec(pooled_layers=(1, -1), hidden_layers=(1, -1), layer_pooling="mean"))
    for layer in (1, -1):
        assert found.pooled_layers[layer].dtype == torch.float32
        expected = pooled_by_hand(found.hidden_layers[layer].float(), batch.mask, "mean")
        torch.testing.assert_close(found.pooled_layers[layer], expected, atol=1e-6, rtol=1e-5)


def test_no_hook_stays_behind_an_error(bert):
    batch = batch_of(bert.model)
    batch.tokens["input_ids"][0, 0] = 10**6
    with pytest.raises(IndexError):
        bert(batch, OutputSpec(pooled_layers=(1, 2)))
    assert not any(layer._forward_pre_hooks for layer in bert.backbone.encoder.layer)


def test_two_ways_of_pooling_cannot_be_wanted_together():
    mean, cls = (
        OutputSpec(pooled_layers=(1,), layer_pooling="mean"),
        OutputSpec(pooled_layers=(2,), layer_pooling="cls"),
    )
    assert (
        (mean | OutputSpec(embedding=True)).layer_pooling == (OutputSpec(embedding=True) | mean).layer_pooling == "mean"
    )
    with pytest.raises(DistilvecError, match=r"^\[method.options.layer_pooling\] .*cls"):
        mean | cls
