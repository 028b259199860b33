"""No step waits for the device: no method reads a value, on a processor by count, elsewhere at all.

Synchronising calls are counted where the dispatcher sees them. What it does not see on a processor (`.tolist()`,
`.cpu()`, `.numpy()`) fails on the meta device, where tensors have shapes and no values: there any reading of a value is
an error.
"""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from dataclasses import fields, is_dataclass

import pytest
import torch
from contexts import make_context
from signals import OPTIONS, labelled_batch, make_student, teacher_signals
from torch.utils._python_dispatch import TorchDispatchMode

from distilvec.core.batch import TextBatch
from distilvec.core.errors import DistilvecError
from distilvec.core.method_file import method_names
from distilvec.core.objective import weighted_loss
from distilvec.core.registry import build_objective
from distilvec.core.task_head import TaskInfo
from distilvec.students.encoder import Encoder
from distilvec.train.distillation import Distillation

# operators whose result, or its shape, the processor has to wait for
WAITING = {
    "_local_scalar_dense",
    "item",
    "nonzero",
    "masked_select",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "equal",
    "is_nonzero",
}


# what a method reads there only, where nothing has to be waited for
ON_A_PROCESSOR = {name: Counter(_local_scalar_dense=1) for name in ("jasper", "distilcse_ckd", "redact_scores")}


class Count(TorchDispatchMode):
    """Counts the operators that would make the processor wait for a device."""

    def __init__(self):
        super().__init__()
        self.calls = Counter()
        self.seen = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.seen += 1
        indexes = args[1] if name in ("index", "index_put", "index_put_") else ()
        if name in WAITING or any(index is not None and index.dtype == torch.bool for index in indexes):
            self.calls[name] += 1
        return func(*args, **(kwargs or {}))


def on_meta(value):
    """The same structure with tensors that have no values."""
    if isinstance(value, torch.Tensor):
        return value.to("meta")
    if isinstance(value, dict):
        return {key: on_meta(entry) for key, entry in value.items()}
    if is_dataclass(value):
        return type(value)(**{entry.name: on_meta(getattr(value, entry.name)) for entry in fields(value)})
    return value


@pytest.fixture(params=method_names())
def name(request):
    return request.param


@pytest.fixture(params=["texts", "task"])
def step(name, request, tiny_model):
    """A method's step: module, batch, teacher's signals. Without dropout, whose seed is drawn on the processor if it
    runs there.
    """
    kind, model = request.param, make_student(name, str(tiny_model))
    encoder, batch = Encoder(model), labelled_batch(model)
    context = make_context(
        student_hidden_size=encoder.hidden_size,
        student_layers=encoder.layers,
        teacher_dim=24,
        teacher_hidden_size=40,
        teacher_layers=4,
        student_dim=model.get_embedding_dimension(),
        task=TaskInfo("classification", 3) if kind == "task" else None,
        teacher_logits=kind == "task",
        same_tokenizer=True,
        student_heads=4,
        teacher_heads=4,
        student_experts=encoder.experts,
    )
    try:
        objective = build_objective(name, OPTIONS.get(name, {}), {}, context)
    except DistilvecError as error:
        assert "task" in str(error)
        pytest.skip(str(error))
    module = Distillation(encoder, objective).train()
    encoder.eval()
    return module, batch, teacher_signals(objective.teacher_outputs, batch)


def test_no_operator_waits(name, step):
    module, batch, teacher = step
    with Count() as count:
        weighted_loss(module(batch, teacher), module.objective.weights).backward()
    assert count.seen > 100
    assert count.calls == ON_A_PROCESSOR.get(name, Counter())


def test_no_value_is_read(step, monkeypatch):
    module, batch, teacher = step
    monkeypatch.setattr(torch, "autocast", lambda *args, **kwargs: nullcontext())  # this device has none
    batch, teacher = on_meta(batch), on_meta(teacher)
    assert isinstance(batch, TextBatch) and batch.rows.device.type == "meta"
    module = module.to("meta")
    loss = weighted_loss(module(batch, teacher), module.objective.weights)
    loss.backward()
    assert loss.device.type == "meta"
    assert any(parameter.grad is not None for parameter in module.parameters())


def test_what_waits_is_seen():
    values = torch.tensor([1.0, 0.0])
    for wait in (
        lambda: values[0].item(),
        lambda: bool(values[0]),
        lambda: values.nonzero(),
        lambda: values[values > 0],
    ):
        with Count() as count:
            wait()
        assert count.calls
    for read in (lambda: on_meta(values).tolist(), lambda: on_meta(values).cpu(), lambda: on_meta(values).numpy()):
        with pytest.raises((RuntimeError, NotImplementedError, TypeError)):
            read()
