"""What the machine can do, and what is said where it cannot."""

from __future__ import annotations

import os
import re
import resource
import statistics
import sys
from pathlib import Path

import pytest
import torch
from commands import SERVER

from distilvec.core import device
from distilvec.teachers import fast_linear
from distilvec.teachers.fast_linear import pack_linears


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


def in_a_process(work, *given, **environment):
    """What a function returns in a process of its own, forked from the server of commands.py."""
    ours, theirs = SERVER.Pipe(duplex=False)
    process = SERVER.Process(target=answer, args=(theirs, work, given, environment))
    process.start()
    theirs.close()
    found = ours.recv()
    process.join()
    return found


def answer(pipe, work, given, environment):
    os.environ.pop("LRU_CACHE_CAPACITY", None)
    os.environ.update(environment)
    pipe.send(work(*given))


def faults_of_rounds(keep):
    if keep:
        device.keep_memory()
    rounds = []
    for _ in range(21):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        block = torch.ones(16_000_000)
        del block
        rounds.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return statistics.median(rounds)


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
def test_kept_memory_is_used_again():
    """A large block that is freed and asked for again costs page faults in every round only without `keep_memory`.

    The middle one of many rounds is compared: in the first ones, six at most of those seen, the heap still grows.
    """
    assert in_a_process(faults_of_rounds, True) < in_a_process(faults_of_rounds, False) / 10


def returned_bytes():
    def pages():
        return int(Path("/proc/self/statm").read_text().split()[1])

    device.return_memory()
    for _ in range(5):
        block = torch.ones(2_000_000)
        full = pages()
        del block
    return (full - pages()) * 4096


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is glibc's")
def test_returned_memory_leaves_the_process():
    """By default glibc keeps a block of 8 MB from the third round on."""
    assert in_a_process(returned_bytes) > 7_000_000


def megabytes_of_kernels():
    """Growth of this process between batches of 30 shapes and of 150."""
    layers = torch.nn.ModuleList(torch.nn.Linear(384, width) for width in (384, 768, 1536)).eval()
    fast_linear.is_faster_packed = lambda dtype: True
    assert pack_linears(layers) == 3
    memory = []
    with torch.inference_mode():
        for rows in range(2, 301, 2):
            for layer in layers:
                layer(torch.ones(rows, 384))
            if rows in (60, 300):
                memory.append(int(re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024)
    return memory[1] - memory[0]


@pytest.mark.parametrize(("capability", "packed"), [("AVX2", 0), ("AVX512", 2), ("DEFAULT", 2)])
def test_fp32_layers_are_packed_where_that_is_faster(monkeypatch, capability, packed):
    """On AVX2 the packed product is slower than the plain one, and the copy takes as much memory as the model."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    layers = torch.nn.ModuleList(torch.nn.Linear(64, width) for width in (64, 128)).eval()
    values = torch.linspace(-1, 1, 3 * 64).reshape(1, 3, 64)
    expected = [layer(values) for layer in layers]
    assert pack_linears(layers) == packed
    for layer, plain in zip(layers, expected, strict=True):
        torch.testing.assert_close(layer(values), plain, rtol=1e-4, atol=1e-4)


def peak_after_release():
    def megabytes():
        return int(re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024

    device.keep_memory()
    blocks = [torch.ones(250_000) for _ in range(200)]  # 200 MB
    pins = [torch.ones(1000) for _ in range(200)]
    full = megabytes()
    del blocks
    held = megabytes()
    device.release_memory()
    return full - held, full - megabytes(), len(pins)


@pytest.mark.skipif(sys.platform != "linux", reason="malloc_trim is glibc's")
def test_memory_is_handed_back_between_parts_of_a_command():
    held, released, _ = in_a_process(peak_after_release)
    assert held < 20 and released > 150


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_batches_of_many_shapes_keep_no_memory():
    """Every batch of a teacher or a server has another shape; torch by default keeps a kernel for 1,024 of them."""
    by_default = in_a_process(megabytes_of_kernels, LRU_CACHE_CAPACITY="1024")
    assert in_a_process(megabytes_of_kernels) < by_default / 4
