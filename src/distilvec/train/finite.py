"""Guard against losses, gradients and weights that are not finite numbers."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor

from distilvec.core.objective import Terms


class FiniteGuard:
    """Refuses the optimizer's step from the first loss or gradient norm on that is not finite.

    The weights stay those of the step before.

    - CUDA: reading a loss would make every step wait for the device. The fused AdamW gets `failed` as its `found_inf`
      (the flag of torch.amp.GradScaler) and skips the update on the device. The flag stays 1, so all later steps
      are skipped too. `problem` reads the flag at logged lines, validations and checkpoints.
    - Other devices: every step reads the flag, and the optimizer is not called.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, accelerator: Accelerator, deferred: bool) -> None:
        self.accelerator, self.deferred = accelerator, deferred
        self.failed = torch.zeros((), device=accelerator.device)  # 1 from the first failed step on
        self.unread: list[tuple[int, Terms]] = []  # step (from 1) and terms of all passes since the flag was read
        if deferred:
            optimizer.found_inf = self.failed  # type: ignore[attr-defined]

    def allows(self, number: int, passes: list[Terms]) -> bool:
        """Whether to call the optimizer in step `number` (from 0); always if the device decides itself."""
        self.unread += [(number + 1, terms) for terms in passes]
        sums = torch.stack([values.sum().float() for terms in passes for values in terms.values()])
        failed = 1 - sums.isfinite().all().float()
        if self.accelerator.num_processes > 1:
            failed = self.accelerator.reduce(failed, "sum").clamp(max=1)
        self.failed.copy_(torch.maximum(self.failed, failed))
        return self.deferred or not self.failed

    def problem(self) -> str | None:
        """Describe the first failed step; None if all steps were finite. Waits for the device."""
        unread, self.unread = self.unread, []
        if not self.failed:
            return None
        for step, terms in unread:
            means = {name: float(values.float().mean()) for name, values in terms.items()}
            if not np.isfinite([*means.values()]).all():
                worst = sum(means.values())  # nan or inf
                return f"loss is {worst} at step {step} (terms: {', '.join(f'{n} {m:.4g}' for n, m in means.items())})"
        return "loss is not finite in another process"


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether every number in these tensors is finite. A finite sum proves it at a tenth of the cost."""
    several = [tensor.detach() for tensor in tensors]
    if not several or bool(torch.stack([tensor.sum(dtype=torch.float32) for tensor in several]).isfinite().all()):
        return True
    return all(bool(tensor.isfinite().all()) for tensor in several)
