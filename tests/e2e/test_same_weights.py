"""`python -m benchmarks.same_weights`: how two students are compared."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from benchmarks.same_weights import Case, compare

CASE = Case("redact", "redact")


@pytest.fixture
def students(tmp_path):
    """Write the students of both checkouts and compare them."""

    def make(before, after):
        for name, tensors in (("before", before), ("after", after)):
            folder = tmp_path / name / "redact" / "student"
            folder.mkdir(parents=True)
            save_file(tensors, folder / "model.safetensors")
        return compare(CASE, tmp_path, {"before": {}, "after": {}})

    return make


def test_the_same_numbers_are_equal(students):
    tensors = {"a": torch.arange(6.0), "b": torch.zeros(0)}
    result = students(tensors, {name: values.clone() for name, values in tensors.items()})
    assert result.is_equal and result.tensors == 2 and result.cell() == "equal"


def test_the_largest_difference_is_named(students):
    after = {"a": torch.tensor([1.0, 2.5]), "b": torch.tensor([0.125])}
    result = students({"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([0.0])}, after)
    assert not result.is_equal and result.difference == 0.5 and result.tensor == "model.safetensors: a"


@pytest.mark.parametrize("after", [{"b": torch.zeros(2)}, {"a": torch.zeros(3)}, {"a": torch.tensor([0.0, torch.nan])}])
def test_other_tensors_shapes_and_what_is_no_number_differ(students, after):
    result = students({"a": torch.zeros(2)}, after)
    assert not result.is_equal and result.tensor


def test_a_run_that_failed_is_named(tmp_path):
    result = compare(CASE, tmp_path, {"before": {}, "after": {"redact": "DistilvecError: [train] no."}})
    assert not result.is_equal and "failed after" in result.cell() and "[train]" in result.cell()
