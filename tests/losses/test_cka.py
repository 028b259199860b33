"""Linear CKA: the check values, the feature-space form, what it does not see, and rows that are not there."""

from __future__ import annotations

import pytest
import torch

from distilvec.losses.cka import centred_gram, root_cka, unit_gram


def linear_cka(first, second, mask):
    """CKA of two sets of columns over the same rows, without root."""
    return (unit_gram(centred_gram(first, mask)) * unit_gram(centred_gram(second, mask))).sum((1, 2))


@pytest.fixture
def pair():
    """The check value's X (6, 4) and Y (6, 5), as batches of one."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(1, 6, columns, generator=generator, dtype=torch.float64) for columns in (4, 5))
    assert x[0, 0].tolist() == pytest.approx([-2.310411800, -0.373250861, -1.060816679, 0.999509355], abs=1e-9)
    assert y[0, 0].tolist() == pytest.approx(
        [0.797010017, 0.211664181, 0.135571143, -0.033892919, 0.460468998], abs=1e-9
    )
    return x, y


def every_row(rows):
    return torch.ones(rows.shape[:2], dtype=torch.bool)


def in_feature_space(x, y, axis=0, centre=True, added=0.0):
    """Eq. 13 as the authors' code has it: norms of X'Y, X'X, Y'Y of one text's matrices (rows, columns)."""
    if centre:
        x, y = x - x.mean(axis, keepdim=True), y - y.mean(axis, keepdim=True)
    cross, first, second = (torch.linalg.norm(a.T @ b) for a, b in ((x, y), (x, x), (y, y)))
    return cross**2 / ((first + added) * (second + added))


def test_check_values(pair):
    x, y = pair
    mask = every_row(x)
    cka = linear_cka(x, y, mask)
    assert cka.item() == pytest.approx(0.6563973489812428, abs=1e-14)
    root = root_cka(centred_gram(x, mask), unit_gram(centred_gram(y, mask)))
    assert root.item() == pytest.approx(0.810183527962179, abs=1e-14)
    assert 1 - root.item() == pytest.approx(0.18981647203782104, abs=1e-14)
    hsic = (centred_gram(x, mask) * centred_gram(y, mask)).sum() / 5**2  # covariances, eq. 11
    assert hsic.item() == pytest.approx(4.063100977117304, abs=1e-12)


def test_the_authors_form_differs_by_its_epsilon_only(pair):
    x, y = pair
    assert 1 - in_feature_space(x[0], y[0], added=1e-8).sqrt().item() == pytest.approx(0.18981647268957813, abs=1e-16)
    assert 1 - linear_cka(x, y, every_row(x)).sqrt().item() == pytest.approx(0.18981647268957813, abs=1e-8)


def test_another_axis_or_none_gives_another_number(pair):
    x, y = pair
    assert 1 - in_feature_space(x[0], y[0], axis=1).sqrt().item() == pytest.approx(0.3275016180, abs=1e-9)
    assert 1 - in_feature_space(x[0], y[0], centre=False).sqrt().item() == pytest.approx(0.2525536940, abs=1e-9)
    assert linear_cka(x, y, every_row(x)).sqrt().item() == pytest.approx(1 - 0.1898164720, abs=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_equal_to_the_feature_space_form(dtype):
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.rand(7, 12, columns, generator=generator).softmax(-1).to(dtype) for columns in (30, 200))
    expected = [in_feature_space(a.double(), b.double()) for a, b in zip(x, y, strict=True)]
    found = linear_cka(x, y, every_row(x))
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(found.double(), torch.stack(expected), atol=1e-5, rtol=1e-5)


def test_sees_neither_rotation_nor_scale_nor_shift(pair):
    x, y = pair
    turn = torch.linalg.qr(torch.randn(5, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64))[0]
    torch.testing.assert_close(linear_cka(x, 3 * y @ turn + 7, every_row(x)), linear_cka(x, y, every_row(x)))
    assert linear_cka(y, 1e-3 * y @ turn, every_row(y)).item() == pytest.approx(1, abs=1e-12)


def test_rows_and_columns_that_are_padding_change_nothing(pair):
    x, y = pair
    expected, grown = x.clone().requires_grad_(), torch.full((1, 9, 6), 5.0, dtype=torch.float64)
    grown[:, 2:8, :4], grown[:, 2:8, 4:] = x, 0
    grown.requires_grad_()
    mask = torch.tensor([[False] * 2 + [True] * 6 + [False]])
    teacher = unit_gram(centred_gram(y, every_row(y)))
    wide = torch.zeros(1, 9, 9, dtype=torch.float64)
    wide[:, 2:8, 2:8] = teacher
    gram = centred_gram(grown, mask)
    assert gram.detach()[:, [0, 1, 8]].abs().sum() == 0 and gram.detach()[:, :, [0, 1, 8]].abs().sum() == 0
    narrow = root_cka(centred_gram(expected, every_row(x)), teacher)
    padded = root_cka(gram, wide)
    torch.testing.assert_close(padded, narrow)
    (narrow + padded).sum().backward()
    torch.testing.assert_close(grown.grad[:, 2:8, :4], expected.grad)
    assert grown.grad[:, [0, 1, 8]].abs().sum() == 0


def test_nothing_to_align_has_value_1_and_no_gradient():
    rows = torch.rand(4, 3, 5).requires_grad_()
    mask = torch.tensor([[True, False, False], [False] * 3, [True] * 3, [True] * 3])
    teacher = unit_gram(centred_gram(torch.rand(4, 3, 6), mask))
    assert teacher[:2].abs().sum() == 0 and teacher[2:].flatten(1).norm(dim=1).tolist() == pytest.approx([1, 1])
    values = root_cka(centred_gram(rows, mask), teacher)
    assert values[:2].tolist() == [1, 1] and 0 < values[2] < 1
    values.sum().backward()
    assert torch.isfinite(rows.grad).all() and rows.grad[:2].abs().sum() == 0 and rows.grad[2:].abs().sum() > 0


def test_a_student_without_structure_has_value_0_and_a_finite_gradient():
    equal = torch.full((1, 3, 4), 0.25)
    apart = torch.zeros(1, 3, 4)
    apart[0, 0, 0] = 1.0  # its Gram matrix is orthogonal to the teacher's, which knows rows 1 and 2 only
    teacher = unit_gram(torch.tensor([[[0.0, 0, 0], [0, 1, -1], [0, -1, 1]]]))
    for rows in (equal, apart):
        rows.requires_grad_()
        value = root_cka(centred_gram(rows, every_row(rows)), teacher)
        value.sum().backward()
        assert value.item() == 0 and torch.isfinite(rows.grad).all()


def test_gradients_are_those_of_differences():
    generator = torch.Generator().manual_seed(3)
    rows, teacher = (torch.rand(2, 4, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    mask = torch.tensor([[True] * 4, [True] * 3 + [False]])
    target = unit_gram(centred_gram(teacher, mask))
    assert torch.autograd.gradcheck(lambda a: root_cka(centred_gram(a, mask), target), rows.requires_grad_())
    assert torch.autograd.gradgradcheck(lambda a: root_cka(centred_gram(a, mask), target), rows)
