"""What the machine can do, and what is said where it cannot."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from distilvec.core import device


@pytest.mark.parametrize("fast, said", [(True, False), (False, True)])
def test_slow_bf16_is_said(monkeypatch, capsys, fast, said):
    monkeypatch.setattr(device, "fast_bf16", lambda name: fast)
    device.warn_slow_bf16("cpu", "train.precision=fp32")
    printed = capsys.readouterr()
    assert ("Set train.precision=fp32." in printed.out + printed.err) is said


def test_precision_auto_takes_bf16_only_where_the_processor_has_it(tiny_recipe, tmp_path, monkeypatch):
    from distilvec.train import accelerator as loop

    for fast, precision in ((True, "bf16"), (False, "no")):
        monkeypatch.setattr(loop, "fast_bf16", lambda name, fast=fast: fast)
        section = tiny_recipe(train__precision="auto").train
        assert loop.make_accelerator(section, tmp_path).mixed_precision == precision


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
def test_kept_memory_is_used_again():
    """A large block that is freed and asked for again costs page faults in every round only without `keep_memory`.

    The middle one of many rounds is compared: in the first ones, six at most of those seen, the heap still grows.
    """
    code = """
import json, resource, statistics
import torch
from distilvec.core.device import keep_memory
counts = {}
for kind in ("plain", "keep"):
    if kind == "keep":
        keep_memory()
    rounds = []
    for _ in range(21):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        block = torch.ones(16_000_000)
        del block
        rounds.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    counts[kind] = statistics.median(rounds)
print(json.dumps(counts))
"""
    counts = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert counts["keep"] < counts["plain"] / 10


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
def test_returned_memory_leaves_the_process():
    """By default glibc keeps a block of 8 MB from the third round on."""
    code = """
import torch
from distilvec.core.device import return_memory

def pages():
    return int(open("/proc/self/statm").read().split()[1])

return_memory()
for _ in range(5):
    block = torch.ones(2_000_000)
    full = pages()
    del block
print((full - pages()) * 4096)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(found) > 7_000_000


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_batches_of_many_shapes_keep_no_memory():
    """Every batch of a teacher or a server has another shape; torch by default keeps a kernel for 1,024 of them."""
    code = """
import re
from pathlib import Path
import torch
from distilvec.teachers.fast_linear import pack_linears
layers = torch.nn.ModuleList(torch.nn.Linear(384, width) for width in (384, 768, 1536)).eval()
assert pack_linears(layers) == 3
memory = []
with torch.inference_mode():
    for rows in range(1, 301):
        for layer in layers:
            layer(torch.ones(rows, 384))
        if rows in (60, 300):
            memory.append(int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024)
print(memory[1] - memory[0])
"""

    def grown(**limits: str) -> float:
        outer = {name: value for name, value in os.environ.items() if name != "LRU_CACHE_CAPACITY"}
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True, env=outer | limits)
        return float(done.stdout)

    assert grown() < grown(LRU_CACHE_CAPACITY="1024") / 4
