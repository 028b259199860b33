"""The encoder gives what SentenceTransformer.encode gives, for every architecture, and exactly what is wanted."""

import architectures
import numpy as np
import pytest
import torch
from samples import make_texts
from sentence_transformers import SentenceTransformer

from distilvec.core.batch import TextBatch
from distilvec.core.errors import DistilvecError
from distilvec.core.outputs import OutputSpec
from distilvec.students.encoder import Encoder

NAMES = ["bert", "xlm_roberta", "modernbert", "gemma3", "qwen3", "mistral"]
TEXTS = make_texts(6)


def batch_of(model, texts, side="right"):
    tokenizer = model.tokenizer
    tokenizer.padding_side = side
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokens = tokenizer(texts, padding=True, return_tensors="pt")
    tokens = {name: tokens[name] for name in ("input_ids", "attention_mask")}
    if bool(tokens["attention_mask"].all()):
        tokens.pop("attention_mask")
    return TextBatch(torch.arange(len(texts)), tokens, torch.zeros(len(texts), dtype=torch.long))


@pytest.fixture(scope="module", params=NAMES)
def folder(request, tmp_path_factory):
    place = tmp_path_factory.mktemp(request.param)
    return architectures.sentence_transformer(
        place / "model", getattr(architectures, request.param)(place / "backbone"), "mean dense:24 normalize"
    )


def test_equals_sentence_transformers(folder):
    reference = SentenceTransformer(str(folder), device="cpu")
    if reference.tokenizer.pad_token is None:
        reference.tokenizer.pad_token = reference.tokenizer.eos_token
    expected = reference.encode(TEXTS)
    encoder = Encoder(SentenceTransformer(str(folder), device="cpu")).eval()
    with torch.no_grad():
        found = encoder(batch_of(encoder.model, TEXTS), OutputSpec(embedding=True)).embedding
    np.testing.assert_allclose(found.numpy(), expected, atol=2e-6)


def test_padding_changes_nothing(folder):
    encoder = Encoder(SentenceTransformer(str(folder), device="cpu")).eval()
    required = OutputSpec(embedding=True, pre_dense=True, pooled_layers=(-1, 1))
    with torch.no_grad():
        together = encoder(batch_of(encoder.model, TEXTS), required)
        for row, text in enumerate(TEXTS):
            alone = encoder(batch_of(encoder.model, [text]), required)
            torch.testing.assert_close(alone.embedding[0], together.embedding[row], atol=2e-6, rtol=0)
            torch.testing.assert_close(
                alone.pooled_layers[-1][0], together.pooled_layers[-1][row], atol=2e-5, rtol=1e-4
            )


def test_attention_maps_equal_eager_ones(folder):
    fast = Encoder(SentenceTransformer(str(folder), device="cpu")).eval()
    eager = SentenceTransformer(str(folder), device="cpu")
    eager[0].auto_model.set_attn_implementation("eager")
    batch = batch_of(fast.model, TEXTS)
    with torch.no_grad():
        maps = fast(batch, OutputSpec(attention_layers=(1, -1))).attentions
        expected = eager[0].auto_model.eval()(**batch.tokens, output_attentions=True).attentions
    real = batch.mask[:, :, None] & batch.mask[:, None, :]
    for number, layer in ((1, 0), (-1, -1)):
        torch.testing.assert_close(maps[number][real], expected[layer].mean(1)[real], atol=1e-5, rtol=0)


@pytest.fixture
def encoder(tiny_model):
    return Encoder(SentenceTransformer(str(tiny_model), device="cpu"))


def test_only_what_is_wanted(encoder):
    found = encoder(batch_of(encoder.model, TEXTS), OutputSpec(hidden_layers=(0, 2), second_view=True))
    assert found.embedding is None and found.pre_dense is None and not found.pooled_layers and not found.attentions
    assert set(found.hidden_layers) == {0, 2} and found.second_view.shape == (6, 32)
    assert encoder(batch_of(encoder.model, TEXTS), OutputSpec()).second_view is None


def test_second_view_differs_in_training_and_equals_in_evaluation(encoder):
    batch, required = batch_of(encoder.model, TEXTS), OutputSpec(embedding=True, second_view=True)
    torch.manual_seed(0)
    found = encoder.train()(batch, required)
    assert (found.embedding - found.second_view).abs().max() > 1e-3
    found = encoder.eval()(batch, required)
    torch.testing.assert_close(found.embedding, found.second_view)


def test_dropout_on_attention_has_the_expected_value(encoder):
    """Averaged over many masks, a training pass comes close to the pass without dropout (one linear layer after it)."""
    from distilvec.students.attention import attention_forward

    module = encoder.backbone.encoder.layer[0].attention.self
    query, key, value = torch.randn(3, 2, 4, 6, 8).unbind()
    expected, _ = attention_forward(module, query, key, value, None, dropout=0.0)
    torch.manual_seed(0)
    mean = torch.stack([attention_forward(module, query, key, value, None, dropout=0.2)[0] for _ in range(800)]).mean(0)
    assert (mean - expected).abs().max() < 0.15 and (mean - expected).abs().mean() < 0.02


def test_a_layer_that_does_not_exist(encoder):
    with pytest.raises(DistilvecError, match=r"^\[method.options\] .* to 4"):
        encoder(batch_of(encoder.model, TEXTS), OutputSpec(hidden_layers=(5,)))


def test_weights_are_registered_once(encoder):
    names = [name for name, _ in encoder.named_parameters(remove_duplicate=False)]
    assert len(names) == len(set(names)) == len(list(encoder.state_dict()))


def test_wants_unite():
    assert OutputSpec(embedding=True, hidden_layers=(2,)) | OutputSpec(
        hidden_layers=(1,), second_view=True
    ) == OutputSpec(embedding=True, hidden_layers=(1, 2), second_view=True)
