"""Ranking losses against Jasper's check value (seed 6), DistillCSE's (seed 17), the quartic form, and loops."""

from __future__ import annotations

import math
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from distilvec.losses.ranking import (
    group_shuffled,
    listwise_cross_entropy,
    others,
    relative_triplet,
)


def cosines(x):
    unit = F.normalize(x, dim=-1)
    return unit @ unit.mT


def quartic(student, teacher, margin=0.015):
    """The triplet term as the paper has it: every pair of pairs written out."""

    def gaps(similarities):
        rows, columns = torch.triu_indices(*similarities.shape, 1)
        pairs = similarities[rows, columns]
        first, second = torch.triu_indices(len(pairs), len(pairs), 1)
        return pairs[second] - pairs[first]

    label = torch.where(gaps(teacher) < 0, 1, -1)
    return torch.stack([F.relu(gaps(matrix) * label + margin).mean() for matrix in student]).mean()


def draw(*shapes, seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes]


# -- Jasper's relative triplets --------------------------------------------------------------------------------------


def triplet_by_definition(student, teacher, margin):
    """Return the value of `relative_triplet` by definition: O(B^4) in time and memory, as the public class."""
    first, second = torch.triu_indices(len(teacher), len(teacher), 1)
    order = teacher[first, second].argsort(stable=True)
    texts = torch.stack([first[order], second[order]], 1)  # of each pair, in ascending order of the teacher
    similarity = student[:, texts[:, 0], texts[:, 1]]
    less, more = torch.triu_indices(len(order), len(order), 1)
    hinge = (margin - (similarity[:, more] - similarity[:, less])).relu().mean(0)
    four = torch.cat([texts[less], texts[more]], 1).flatten()
    return (
        hinge.new_zeros(len(teacher)).index_add(0, four, hinge.repeat_interleave(4))
        * len(teacher)
        / (4 * max(1, len(hinge)))
    )


@pytest.mark.parametrize("batch", [1, 2, 3, 9])
@pytest.mark.parametrize("equal", [False, True])
def test_the_reference_form_has_the_same_value_and_gradient(batch, equal):
    generator = torch.Generator().manual_seed(3)
    student = torch.randn(2, batch, batch, generator=generator, dtype=torch.float64)
    teacher = torch.randn(batch, batch, generator=generator, dtype=torch.float64).round(decimals=0 if equal else 9)
    found, expected = student.clone().requires_grad_(), student.clone().requires_grad_()
    values, reference = relative_triplet(found, teacher, 0.3), triplet_by_definition(expected, teacher, 0.3)
    torch.testing.assert_close(values, reference, atol=1e-13, rtol=1e-10)
    for upstream in (torch.ones(batch, dtype=torch.float64), torch.arange(1.0, batch + 1, dtype=torch.float64)):
        gradients = [
            torch.autograd.grad(y, x, upstream, retain_graph=True)[0]
            for y, x in ((values, found), (reference, expected))
        ]
        torch.testing.assert_close(*gradients, atol=1e-13, rtol=1e-10)


def test_triplet_check_value():
    student, teacher = draw((5, 4), (5, 6), seed=6)
    torch.testing.assert_close(
        student[0], torch.tensor([1.1311597480, 1.8577334371, -0.7972494010, 0.8574615871], dtype=torch.float64)
    )
    found = relative_triplet(cosines(student)[None], cosines(teacher), 0.015)
    assert found.shape == (5,) and found.mean().item() == pytest.approx(0.3094452185, abs=1e-10)


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 7, 12])
@pytest.mark.parametrize("ties", [False, True])
def test_triplet_is_the_quartic_form_in_value_and_gradient(batch, ties):
    x, teacher = draw((3, batch, 5), (batch, 4), seed=batch)
    teacher = teacher.sign() if ties else teacher  # sixteen kinds of texts: most pairs tie with others, to the last bit
    similarities = teacher @ teacher.T
    x.requires_grad_()
    found = relative_triplet(cosines(x), similarities, 0.1)
    if batch < 3:
        assert found.tolist() == [0.0] * batch, "fewer than two pairs"
        return
    expected = quartic(cosines(x), similarities, 0.1)
    assert found.mean().item() == pytest.approx(expected.item(), abs=1e-12)
    ours, theirs = (torch.autograd.grad(value, x)[0] for value in (found.mean(), expected))
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)


def test_triplet_shares_are_a_quarter_of_each_hinge_for_each_of_its_texts():
    x, teacher = draw((1, 6, 5), (6, 4), seed=1)
    student, similarities = cosines(x), cosines(teacher)
    pairs = [(i, j) for i in range(6) for j in range(i + 1, 6)]
    shares, count = [0.0] * 6, 0
    for number, (a, b) in enumerate(pairs):
        for c, d in pairs[number + 1 :]:
            sign = 1 if similarities[c, d] < similarities[a, b] else -1
            hinge = max(0.0, float(student[0, c, d] - student[0, a, b]) * sign + 0.1)
            count += 1
            for text in (a, b, c, d):
                shares[text] += hinge / 4
    expected = torch.tensor(shares, dtype=torch.float64) * 6 / count
    torch.testing.assert_close(relative_triplet(student, similarities, 0.1), expected, atol=1e-12, rtol=0)


def test_triplet_gradient_with_unequal_weights_of_examples():
    x, teacher = draw((2, 6, 5), (6, 4), seed=2)
    weights = torch.tensor([0.1, 2.0, 0.0, 1.0, 0.5, 3.0], dtype=torch.float64)
    student = cosines(x).requires_grad_()
    assert torch.autograd.gradcheck(lambda s: (relative_triplet(s, cosines(teacher), 0.1) * weights).sum(), student)


def test_triplet_has_second_derivatives():
    x, teacher = draw((2, 6, 5), (6, 4), seed=3)
    x.requires_grad_()

    def loss(form):
        return form(cosines(x), cosines(teacher), 0.1).mean()

    products = []
    for form in (relative_triplet, quartic):
        (gradient,) = torch.autograd.grad(loss(form), x, create_graph=True)
        products.append(torch.autograd.grad((gradient * draw((2, 6, 5), seed=4)[0]).sum(), x)[0])
    assert products[1].abs().max() > 1e-3
    torch.testing.assert_close(*products, atol=1e-12, rtol=0)


def test_triplet_gradient_is_finite_for_equal_vectors():
    x = torch.ones(1, 8, 4, requires_grad=True)
    value = relative_triplet(cosines(x), cosines(torch.ones(8, 4)), 0.015).mean()
    value.backward()
    assert value.item() == pytest.approx(0.015, abs=1e-6) and torch.isfinite(x.grad).all()


class PeakBytes(TorchDispatchMode):
    """Most bytes of tensors alive at once, of those made inside."""

    def __enter__(self):
        self.now = self.peak = 0
        self.seen: set[int] = set()
        return super().__enter__()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in self.seen:
                storage = tensor.untyped_storage()
                self.seen.add(storage.data_ptr())
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self.free, storage.data_ptr(), storage.nbytes())
        return result

    def free(self, pointer, size):
        self.seen.discard(pointer)
        self.now -= size


class Work(TorchDispatchMode):
    """How many numbers the operations inside have made."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.numbers += sum(tensor.numel() for tensor in tree_leaves(result) if isinstance(tensor, torch.Tensor))
        return result


def similarities(batch, prefixes):
    x, teacher = (vectors.float() for vectors in draw((prefixes, batch, 16), (batch, 16), seed=batch))
    return cosines(x).requires_grad_(), cosines(teacher)


def test_triplet_at_batch_512_takes_less_memory_than_the_quartic_form_at_64():
    peaks = []
    for form, batch in ((lambda *inputs: relative_triplet(*inputs, 0.015).mean(), 512), (quartic, 64)):
        inputs = similarities(batch, prefixes=3)
        with PeakBytes() as memory:
            form(*inputs).backward()
        peaks.append(memory.peak)
    pairs = 512 * 511 // 2
    assert peaks[0] > 3 * pairs * 8, "the measure sees the tensors"
    assert peaks[0] < peaks[1]


def test_triplet_work_is_quasi_linear_in_the_pairs():
    work = []
    for batch in (128, 512):
        inputs = similarities(batch, prefixes=1)
        with Work() as counted:
            relative_triplet(*inputs, 0.015).mean().backward()
        work.append(counted.numbers)
    assert work[1] < 30 * work[0], "16 times the pairs, 21 times P log P, 259 times the pairs of pairs"


# -- DistillCSE ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("temperatures", "expected"), [((0.025, 0.0125), 29.8253111008), ((0.05, 0.05), 14.0037976555)]
)
def test_listwise_check_values(temperatures, expected):
    student, teacher = draw((5, 4), (5, 6), seed=17)
    found = listwise_cross_entropy(others(cosines(student)), others(cosines(teacher)), *temperatures)
    assert found.shape == (5,) and found.mean().item() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_others_leaves_out_the_diagonal(batch):
    matrix = torch.arange(batch * batch).view(batch, batch).float()
    expected = [[float(matrix[i, j]) for j in range(batch) if j != i] for i in range(batch)]
    assert others(matrix).tolist() == expected


def groups_of(row, mass):
    """The groups of one row as the paper builds them: down the teacher's order, `mass` of the softmax to each."""
    shares = row.softmax(-1).tolist()
    last, filled, found = math.ceil(1 / mass) - 1, 0.0, {}
    for candidate in sorted(range(len(row)), key=lambda j: -row[j]):
        filled += shares[candidate]
        found[candidate] = min(last, sum(filled >= (g + 1) * mass for g in range(last + 1)))
    return found


@pytest.mark.parametrize("mass", [0.15, 0.1, 0.34, 1.0])
def test_shuffling_stays_inside_the_groups_and_is_uniform(mass):
    (teacher,) = draw((4, 9), seed=5)
    student = torch.arange(36.0, dtype=torch.float64).view(4, 9)
    torch.manual_seed(0)
    drawn = torch.stack([group_shuffled(student, teacher, mass) for _ in range(600)])
    for row in range(4):
        groups = groups_of(teacher[row], mass)
        for place in range(9):
            members = {float(student[row, j]) for j in range(9) if groups[j] == groups[place]}
            values, counts = drawn[:, row, place].unique(return_counts=True)
            assert set(values.tolist()) == members, "every member of the group comes here, and nothing else"
            assert (counts / 600 - 1 / len(members)).abs().max() < 0.1
    torch.testing.assert_close(drawn.sort(-1).values, student.expand_as(drawn), msg="a permutation of each row")


def test_shuffling_follows_the_global_generator_and_lets_the_gradient_through():
    student, teacher = draw((4, 9), (4, 9), seed=6)
    student.requires_grad_()
    torch.manual_seed(3)
    first = group_shuffled(student, teacher, 0.3)
    torch.manual_seed(3)
    assert torch.equal(first, group_shuffled(student, teacher, 0.3))
    first.square().sum().backward()
    torch.testing.assert_close(student.grad, 2 * student.detach())


def test_listwise_gradient_is_finite_at_low_temperatures():
    student = torch.ones(3, 4).sub(torch.eye(3, 4)).requires_grad_()
    listwise_cross_entropy(student, -student.detach(), 0.001, 0.001).sum().backward()
    assert torch.isfinite(student.grad).all()
