"""Some rows of the attention maps, and queries, keys and values: as transformers' eager attention gives them, gradients
too.
"""

import gc
import weakref
from dataclasses import replace

import architectures
import pytest
import torch
from samples import make_texts
from sentence_transformers import SentenceTransformer

from distilvec.core.batch import TextBatch
from distilvec.core.errors import DistilvecError
from distilvec.core.outputs import OutputSpec
from distilvec.students import attention
from distilvec.students.encoder import Encoder
from distilvec.students.pooling import own_saving

NAMES = ["bert", "xlm_roberta", "distilbert", "modernbert", "gemma3", "qwen3", "mistral", "mpnet", "t5"]
TEXTS = [*make_texts(3), "A"]
LAYERS = (1, -1)


def batch_of(model, texts=TEXTS, side="right"):
    tokenizer = model.tokenizer
    tokenizer.padding_side = side
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    tokens = tokenizer(texts, padding=True, return_tensors="pt")
    tokens = {name: tokens[name] for name in ("input_ids", "attention_mask")}
    if bool(tokens["attention_mask"].all()):
        tokens.pop("attention_mask")
    return TextBatch(torch.arange(len(texts)), tokens, torch.zeros(len(texts), dtype=torch.long))


def some_rows(batch, seed=0):
    """Up to five tokens of each text in any order, and -1 in places."""
    generator = torch.Generator().manual_seed(seed)
    lengths = batch.mask.sum(1).tolist()
    rows = torch.full((len(batch), 5), -1)
    for text, length in enumerate(lengths):
        chosen = torch.randperm(length, generator=generator)[: 5 if text else 3]
        rows[text, : len(chosen)] = chosen
    rows[1, 2] = -1
    return rows


@pytest.fixture(scope="module", params=NAMES)
def folder(request, tmp_path_factory):
    place = tmp_path_factory.mktemp(request.param)
    return architectures.sentence_transformer(
        place / "model", getattr(architectures, request.param)(place / "backbone")
    )


def load(folder):
    return Encoder(SentenceTransformer(str(folder), device="cpu")).eval()


def eager_rows(folder, batch, rows):
    """The same rows out of transformers' own eager maps, and the model they come from."""
    backbone = SentenceTransformer(str(folder), device="cpu")[0].auto_model.eval()
    backbone.set_attn_implementation("eager")
    maps = backbone(**batch.tokens, output_attentions=True).attentions
    first = batch.mask.int().argmax(1)
    found = {}
    for number, layer in ((1, 0), (-1, -1)):
        found[number] = torch.stack(
            [
                torch.stack(
                    [full[first[text] + row] if row >= 0 else torch.zeros_like(full[0]) for row in rows[text].tolist()]
                )
                for text, full in enumerate(maps[layer].mean(1))
            ]
        )
    return found, backbone


@pytest.mark.parametrize("side", ["right", "left", "none"])
def test_rows_and_gradients_equal_eager_ones(folder, side):
    encoder = load(folder)
    batch = batch_of(encoder.model, TEXTS if side != "none" else [TEXTS[0]] * 2, "right" if side == "none" else side)
    rows = some_rows(batch)
    found = encoder(batch, OutputSpec(attention_layers=LAYERS), rows).attentions
    expected, backbone = eager_rows(folder, batch, rows)
    for number in LAYERS:
        assert found[number].shape == (len(batch), 5, batch.mask.shape[1])
        torch.testing.assert_close(found[number], expected[number], atol=1e-5, rtol=0)
        assert not found[number][rows < 0].any()
        assert not found[number].masked_select(~batch.mask[:, None]).any()
    weights = torch.randn(found[1].shape, generator=torch.Generator().manual_seed(1))
    for maps in (found, expected):
        sum((maps[number] * weights).square().sum() for number in LAYERS).backward()
    ours, theirs = (
        {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        for model in (encoder.backbone, backbone)
    )
    assert any("q" in name for name in theirs) and any("k" in name for name in theirs)
    largest = max(float(gradient.abs().max()) for gradient in theirs.values())
    for name, gradient in theirs.items():
        torch.testing.assert_close(
            ours[name], gradient, atol=1e-5 * largest, rtol=1e-3, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_rows_are_those_of_the_whole_maps_and_nothing_else_changes(folder):
    encoder = load(folder)
    batch = batch_of(encoder.model)
    rows, required = some_rows(batch), OutputSpec(embedding=True, attention_layers=LAYERS, hidden_layers=(2,))
    with torch.no_grad():
        some, whole, none = (
            encoder(batch, required, rows),
            encoder(batch, required),
            encoder(batch, OutputSpec(embedding=True)),
        )
    for number in LAYERS:
        gathered = torch.stack(
            [full[row.clamp_min(0)] for full, row in zip(whole.attentions[number], rows, strict=True)]
        )
        torch.testing.assert_close(some.attentions[number], gathered * (rows >= 0)[..., None], atol=1e-5, rtol=0)
    assert torch.equal(some.embedding, none.embedding)  # every layer keeps its fast kernel


def test_the_last_hidden_layer_is_the_model_s_output(folder):
    encoder = load(folder)
    batch = batch_of(encoder.model)
    with torch.no_grad():
        alone = encoder(batch, OutputSpec(hidden_layers=(-1,))).hidden_layers[-1]
        hidden = encoder.backbone(**batch.tokens, output_hidden_states=True).hidden_states
    assert len(hidden) == encoder.layers + 1
    torch.testing.assert_close(alone, hidden[-1])


@pytest.mark.parametrize("name", ["bert", "qwen3"])
def test_projections_are_what_enters_the_attention_function(name, tmp_path, monkeypatch):
    folder = architectures.sentence_transformer(tmp_path / "model", getattr(architectures, name)(tmp_path / "backbone"))
    encoder = load(folder)
    batch = batch_of(encoder.model)
    found = encoder(batch, OutputSpec(projection_layers=(2, -1), second_view=True)).projections
    assert set(found) == {2, -1}
    outputs = {}
    for layer in (1, 3):
        if name == "bert":
            own = encoder.backbone.encoder.layer[layer].attention.self
            parts = {"query": own.query, "key": own.key, "value": own.value}
        else:
            own = encoder.backbone.layers[layer].self_attn
            parts = {"query": own.q_norm, "key": own.k_norm, "value": own.v_proj}
        for part, module in parts.items():
            module.register_forward_hook(
                lambda module, args, output, place=(layer, part): outputs.__setitem__(place, output)
            )
    rotary = {}
    if name == "qwen3":
        encoder.backbone.rotary_emb.register_forward_hook(
            lambda module, args, output: rotary.update(cos=output[0], sin=output[1])
        )
    with torch.no_grad():
        encoder(batch, OutputSpec())
    for number, layer in ((2, 1), (-1, 3)):
        expected = {
            part: outputs[layer, part].view(*batch.mask.shape, -1, 8).transpose(1, 2)
            for part in ("query", "key", "value")
        }
        if name == "qwen3":
            from transformers.models.qwen3.modeling_qwen3 import apply_rotary_pos_emb

            expected["query"], expected["key"] = apply_rotary_pos_emb(expected["query"], expected["key"], **rotary)
        for part, value in expected.items():
            torch.testing.assert_close(getattr(found[number], part), value, atol=1e-5, rtol=0)
    assert found[2].query.shape[1] == 4 and found[2].key.shape[1] == (4 if name == "bert" else 2)
    assert found[2].value.requires_grad


@pytest.fixture
def encoder(tiny_model):
    return Encoder(SentenceTransformer(str(tiny_model), device="cpu"))


def test_rows_leave_dropout_in_training_as_it_is(encoder):
    """The layer's own attention draws the same masks with rows and without; the rows have no dropout of their own."""
    batch = batch_of(encoder.model)
    rows = some_rows(batch)
    encoder.train()
    torch.manual_seed(0)
    plain = encoder(batch, OutputSpec(embedding=True)).embedding
    torch.manual_seed(0)
    found = encoder(batch, OutputSpec(embedding=True, attention_layers=(1, 4)), rows)
    assert torch.equal(plain, found.embedding)
    sums = found.attentions[1].sum(-1)
    torch.testing.assert_close(sums, (rows >= 0).float())


def test_padding_columns_change_neither_rows_nor_gradients(encoder):
    encoder.eval()
    batch = batch_of(encoder.model)
    more = {name: torch.nn.functional.pad(value, (0, 3)) for name, value in batch.tokens.items()}
    rows, required = some_rows(batch), OutputSpec(attention_layers=LAYERS)
    gradients, maps = [], []
    for each in (batch, replace(batch, tokens=more)):
        encoder.zero_grad()
        found = encoder(each, required, rows).attentions
        (found[1].square().sum() + found[-1].square().sum()).backward()
        maps.append(found[-1].detach())
        gradients.append(encoder.backbone.encoder.layer[0].attention.self.query.weight.grad.clone())
    torch.testing.assert_close(maps[1][..., :-3], maps[0], atol=1e-6, rtol=0)
    assert not maps[1][..., -3:].any()
    torch.testing.assert_close(*gradients, atol=1e-6, rtol=1e-4)


def test_with_a_second_view_rows_are_the_first_views(encoder):
    batch = batch_of(encoder.model)
    rows = some_rows(batch)
    encoder.eval()
    both = encoder(batch, OutputSpec(attention_layers=(2,), second_view=True), rows).attentions[2]
    torch.testing.assert_close(
        both, encoder(batch, OutputSpec(attention_layers=(2,)), rows).attentions[2], atol=1e-6, rtol=0
    )


def test_rows_only_of_texts_that_have_none(encoder):
    batch = batch_of(encoder.model)
    for rows in (torch.full((4, 2), -1), torch.zeros(4, 0, dtype=torch.long)):
        found = encoder(batch, OutputSpec(attention_layers=(1,)), rows).attentions[1]
        assert found.shape == (4, rows.shape[1], batch.mask.shape[1]) and not found.any()
        found.sum().backward()
        assert all(torch.isfinite(p.grad).all() for p in encoder.parameters() if p.grad is not None)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_gradient_checkpointing_gives_the_same_gradients(encoder, precision):
    batch = batch_of(encoder.model)
    rows, required, gradients = some_rows(batch), OutputSpec(embedding=True, attention_layers=(2, 4)), []
    weight = encoder.backbone.encoder.layer[1].attention.self.key.weight
    for checkpointing in (False, True):
        if checkpointing:
            encoder.backbone.gradient_checkpointing_enable({"use_reentrant": False})
        encoder.train().zero_grad()
        torch.manual_seed(0)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            found = encoder(batch, required, rows)
        assert found.attentions[2].dtype == torch.float32
        (
            found.attentions[2].square().sum() + found.attentions[4].square().sum() + found.embedding[:, 0].sum()
        ).backward()
        gradients.append(weight.grad.clone())
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-4)
    assert gradients[0].abs().max() > 1e-3


def test_heads_that_share_keys_do_not_repeat_them(monkeypatch):
    module = torch.nn.Module()
    query, key = torch.randn(2, 6, 7, 4), torch.randn(2, 3, 7, 4)
    rows = torch.tensor([[3, 0], [6, -1]])
    inputs = attention.Inputs(module, query, key, is_causal=True)
    weights = attention.attention_weights(inputs).mean(1)
    monkeypatch.setattr(attention, "repeat_kv", None)
    found = attention.attention_rows(inputs, rows)
    torch.testing.assert_close(found[0], weights[0, [3, 0]])
    torch.testing.assert_close(found[1, 0], weights[1, 6])
    assert not found[1, 1].any()


def test_attention_that_cannot_be_read_is_refused(tmp_path, encoder):
    folder = architectures.sentence_transformer(tmp_path / "model", architectures.mpnet(tmp_path / "backbone"))
    other = load(folder)
    with pytest.raises(DistilvecError, match=r"^\[method.name\] .*\[4\]"):
        other(batch_of(other.model), OutputSpec(projection_layers=(-1,)))
    with pytest.raises(DistilvecError, match=r"^\[method.name\] .*\[0\]"):
        encoder(batch_of(encoder.model), OutputSpec(projection_layers=(0,)))


def test_a_forward_pass_without_a_backward_pass_leaves_nothing_behind():
    """A saved result that knew its graph would keep it alive: no reference cycle that Python sees, but memory all the
    same.
    """
    freed = []

    class SavedStudent(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.witness = type("Witness", (), {})()
            weakref.finalize(ctx.witness, freed.append, True)
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    x = SavedStudent.apply(torch.randn(2, 5, requires_grad=True))
    with own_saving():
        y = x.softmax(-1)
    gc.collect()
    assert not freed
    del x, y
    gc.collect()
    assert freed


def test_saving_of_its_own_keeps_second_derivatives():
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)

    def function(values):
        with own_saving():
            return (values.softmax(-1).square() * values.exp()).sum(-1)

    assert torch.autograd.gradgradcheck(function, x)
