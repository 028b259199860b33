"""Attention in bf16 on a processor: in bf16 where nothing is trained, in float32 where gradients flow, with the
gradients of float32.
"""

import architectures
import pytest
import torch
from samples import make_texts
from sentence_transformers import SentenceTransformer
from torch.nn import functional as F

from distilvec.core.batch import TextBatch
from distilvec.core.outputs import OutputSpec
from distilvec.students.encoder import Encoder

NAMES = ["bert", "xlm_roberta", "modernbert", "gemma3", "qwen3", "mistral", "t5"]


@pytest.fixture(params=NAMES)
def encoder(request, tmp_path):
    folder = architectures.sentence_transformer(
        tmp_path / "model", getattr(architectures, request.param)(tmp_path / "backbone")
    )
    return Encoder(SentenceTransformer(str(folder), device="cpu")).eval()


def batch_of(encoder):
    tokenizer = encoder.model.tokenizer
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    tokens = tokenizer([*make_texts(3), "A"], padding=True, return_tensors="pt")
    tokens = {name: tokens[name] for name in ("input_ids", "attention_mask")}
    return TextBatch(torch.arange(4), tokens, torch.zeros(4, dtype=torch.long))


def gradients(encoder, precision):
    """Of every parameter that has one, as one vector."""
    encoder.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        vectors = encoder(batch_of(encoder), OutputSpec(embedding=True)).embedding
    (vectors.float() * torch.linspace(-1, 1, vectors.shape[1])).sum().backward()
    return torch.cat([parameter.grad.flatten() for parameter in encoder.parameters() if parameter.grad is not None])


def test_gradients_are_those_of_full_precision(encoder, monkeypatch):
    wanted, seen, fused = gradients(encoder, "fp32"), [], F.scaled_dot_product_attention

    def recorded(query, *args, **kwargs):
        seen.append(
            (
                torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else query.dtype,
                torch.is_grad_enabled(),
            )
        )
        return fused(query, *args, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", recorded)
    found = gradients(encoder, "bf16")
    assert F.cosine_similarity(found, wanted, dim=0) > 0.99  # the linear layers are in bf16
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        encoder(batch_of(encoder), OutputSpec(embedding=True))
    assert set(seen) == {(torch.float32, True), (torch.bfloat16, False)}
