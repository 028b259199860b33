"""The task's loss: its two forms, and examples whose label is not used."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from distilvec.core.batch import NO_LABEL
from distilvec.losses.supervised import task_loss

LOGITS = {True: torch.randn(6, 1), False: torch.randn(6, 3)}
LABELS = {True: torch.rand(6), False: torch.tensor([0, 1, 2, 0, 1, 2])}
MISSING = {True: torch.nan, False: NO_LABEL}


@pytest.mark.parametrize("scores", [True, False])
def test_the_mean_is_that_of_the_examples_with_a_label(scores):
    logits, labels = LOGITS[scores].clone().requires_grad_(), LABELS[scores].clone()
    labels[[1, 4]] = MISSING[scores]
    losses = task_loss(logits, labels)
    kept = [0, 2, 3, 5]
    plain = (
        (logits[kept, 0] - labels[kept]).square() if scores else F.cross_entropy(logits, labels, reduction="none")[kept]
    )
    torch.testing.assert_close(losses.mean(), plain.mean())
    assert losses[[1, 4]].tolist() == [0, 0]
    (gradient,) = torch.autograd.grad(losses.mean(), logits)
    assert gradient.isfinite().all() and not gradient[[1, 4]].any() and gradient[kept].any(1).all()


def test_several_classes_are_binary_decisions():
    logits, labels = torch.randn(4, 3).requires_grad_(), torch.tensor([[1.0, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]])
    labels[2] = torch.nan
    losses = task_loss(logits, labels)
    right = torch.where(labels > 0, logits, -logits).sigmoid()
    plain = -right.log().mean(1)[[0, 1, 3]]
    torch.testing.assert_close(losses.mean(), plain.mean())
    (gradient,) = torch.autograd.grad(losses.mean(), logits)
    assert gradient.isfinite().all() and not gradient[2].any() and gradient[[0, 1, 3]].all()


@pytest.mark.parametrize("scores", [True, False])
def test_a_batch_without_labels_has_no_loss_and_no_gradient(scores):
    logits = LOGITS[scores].clone().requires_grad_()
    losses = task_loss(logits, torch.full_like(LABELS[scores], MISSING[scores]))
    (gradient,) = torch.autograd.grad(losses.sum(), logits)
    assert not losses.any() and not gradient.any()
