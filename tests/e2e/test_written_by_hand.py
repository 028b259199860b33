"""Whole runs of REDACT and TALAS against training loops that are written by hand here, from the papers' equations.

The loops share with the product the order of the texts and the start of the weights. Model, pooling, losses, gradients,
rates and the optimizer's steps are transformers and plain torch. Dropout is so rare that it never happens.

The loops by hand have 64 bits a number. AdamW makes whole steps of gradients that are hardly more than rounding, such
as those of the queries' weights in the lowest layer: the same loop in 32 bits ends further from itself in 64 than the
product does (TALAS with ASAM: 0.95% of the largest movement against 0.26%).
"""

from __future__ import annotations

import itertools
import json

import pytest
import torch
import torch.nn.functional as F
from loops import make_loop
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

from distilvec.data.sampler import epoch_batches
from distilvec.pipeline.resolve import resolve

pytestmark = pytest.mark.usefixtures("shared_cache")

RATE, FINAL_RATE, EPOCHS, BATCH = 2e-3, 2e-4, 3, 8
BETAS, EPSILON, DECAY = (0.9, 0.999), 1e-8, 0.01


@pytest.fixture(scope="module")
def still_model(tiny_model, tmp_path_factory):
    """The tiny model with a dropout of 1e-12: not 0, since TALAS asks for some."""
    folder = tmp_path_factory.mktemp("still") / "model"
    SentenceTransformer(str(tiny_model), device="cpu").save_pretrained(str(folder))
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"hidden_dropout_prob": 1e-12, "attention_probs_dropout_prob": 1e-12}))
    return folder


class HandWritten:
    """A student of transformers' own classes, at the start of a loop, and the texts with the teacher's vectors."""

    def __init__(self, recipe, loop, folder, teacher_folder) -> None:
        student = loop.module.encoder.model
        student.save_pretrained(str(folder))
        self.model = AutoModel.from_pretrained(folder).double()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        corpus = resolve(recipe, folder).corpus
        self.texts = corpus.stored(range(len(corpus)))
        teacher = SentenceTransformer(str(teacher_folder), device="cpu")
        self.vectors = torch.from_numpy(teacher.encode(self.texts, normalize_embeddings=True)).double()
        self.rows, self.lengths = loop.data.train_rows, loop.data.lengths
        self.moments = {}
        self.steps = 0

    def epoch(self, number: int, drop_last: bool) -> list[list[int]]:
        """The rows of each batch."""
        batches = epoch_batches(
            self.rows,
            self.lengths,
            batch_size=BATCH,
            max_tokens=None,
            window=self.window,
            seed=0,
            epoch=number,
            drop_last=drop_last,
        )
        return [batches[i].tolist() for i in range(len(batches))]

    def layers(self, rows: list[int]) -> list[torch.Tensor]:
        """The mean over the tokens of every layer's output, the embeddings' first."""
        tokens = self.tokenizer([self.texts[row] for row in rows], padding=True, truncation=True, return_tensors="pt")
        outputs = self.model(**tokens, output_hidden_states=True).hidden_states
        mask = tokens["attention_mask"].unsqueeze(-1).double()
        return [(output * mask).sum(1) / mask.sum(1) for output in outputs]

    def adamw(self, parameters: dict[str, torch.Tensor], rate: float, factors: dict[str, float] | None = None) -> None:
        """One step of AdamW (Loshchilov and Hutter, algorithm 2), by its equations."""
        self.steps += 1
        for name, parameter in parameters.items():
            if parameter.grad is None:
                continue
            own_rate = rate * next((f for key, f in (factors or {}).items() if name.startswith(key)), 1.0)
            first, second = self.moments.get(name, (torch.zeros_like(parameter), torch.zeros_like(parameter)))
            first = BETAS[0] * first + (1 - BETAS[0]) * parameter.grad
            second = BETAS[1] * second + (1 - BETAS[1]) * parameter.grad**2
            self.moments[name] = first, second
            unbiased = first / (1 - BETAS[0] ** self.steps), second / (1 - BETAS[1] ** self.steps)
            with torch.no_grad():
                parameter -= own_rate * DECAY * parameter
                parameter -= own_rate * unbiased[0] / (unbiased[1].sqrt() + EPSILON)


def make_both(make_recipe, folder, teacher, **changes):
    """The product's loop of a recipe, and a hand-written student at the same start."""
    train = {"learning_rate": RATE, "final_learning_rate": FINAL_RATE, "epochs": EPOCHS, "batch_size": BATCH}
    settings = {f"train__{name}": value for name, value in train.items()}
    recipe = make_recipe(
        teacher__model=str(teacher),
        cache__dtype="float32",
        corpus__validation_rows=10,
        train__betas=list(BETAS),
        train__weight_decay=DECAY,
        **settings,
        **changes,
    )
    loop = make_loop(recipe, folder / "run")
    hand = HandWritten(recipe, loop, folder / "start", teacher)
    hand.window = recipe.train.window
    return loop, hand


def worst_difference(loop, hand) -> float:
    """The largest difference of a weight of the student.

    Not of the keys' biases: the softmax does not depend on them, and their gradients are rounding alone.
    """
    trained = loop.module.encoder.model[0].auto_model.state_dict()
    names = [name for name in trained if not name.endswith("key.bias")]
    return max(float((hand.model.state_dict()[name] - trained[name]).abs().max()) for name in names)


def relative_difference(loop, hand, before) -> float:
    """The norm of all differences over that of all movements."""
    trained = loop.module.encoder.model[0].auto_model.state_dict()
    by_hand = hand.model.state_dict()
    names = [name for name in trained if not name.endswith("key.bias")]
    difference = torch.cat([(by_hand[name] - trained[name]).flatten() for name in names])
    movement = torch.cat([(by_hand[name] - before[name]).flatten() for name in names])
    return float(difference.norm() / movement.norm())


def test_redact_takes_the_steps_that_its_paper_describes(tiny_recipe, still_model, tmp_path):
    """Eq. 3, the norm of the difference; a rate that falls linearly at the ends of epochs (section 3.2)."""
    loop, hand = make_both(
        tiny_recipe, tmp_path, still_model, method__name="redact", train__schedule={"name": "cycles"}
    )
    before = {name: value.clone() for name, value in hand.model.state_dict().items()}
    loop.run()

    parameters = dict(hand.model.named_parameters())
    for epoch in range(EPOCHS):
        rate = RATE - (RATE - FINAL_RATE) * epoch / (EPOCHS - 1)
        for rows in hand.epoch(epoch, drop_last=False):
            hand.model.zero_grad()
            embedding = F.normalize(hand.layers(rows)[-1], dim=-1)
            (embedding - hand.vectors[rows]).norm(dim=-1).mean().backward()
            hand.adamw(parameters, rate)

    moved = max(float((value - before[name]).abs().max()) for name, value in hand.model.state_dict().items())
    assert loop.state.step == hand.steps > 20 and moved > 0.01
    assert worst_difference(loop, hand) < 1e-4 * moved


def info_nce(first, second, temperature):
    """Eq. 6: the other view of the same text among those of all texts."""
    cosines = F.normalize(first, dim=-1) @ F.normalize(second, dim=-1).T
    scores = (cosines / temperature).exp()
    return -(scores.diagonal() / scores.sum(1)).log().mean()


def talas_loss(hand, anchors, rows):
    """Eq. 7, with eq. 3 over the last two layers, and eq. 5 over all adjacent layers but the embeddings'."""
    vectors = hand.layers(rows)[1:]
    embedding = F.normalize(vectors[-1], dim=-1)
    simcse = info_nce(embedding, embedding, 0.1)  # without dropout both views are the same
    tamd = 0
    for number, weight in anchors.items():
        tamd += (1 - F.cosine_similarity(vectors[number - 1] @ weight.T, hand.vectors[rows])).mean() / len(anchors)
    relations = [F.normalize(vector, dim=-1) @ F.normalize(vector, dim=-1).T for vector in vectors]
    lasd = 0
    for lower, upper in itertools.pairwise(relations):
        lasd += (upper - lower).square().sum() / len(rows) ** 2 / (len(relations) - 1)
    return 0.001 * simcse + 0.75 * tamd + 1.0 * lasd


@pytest.mark.parametrize("rule", ["plain", "asam"])
def test_talas_takes_the_steps_that_its_paper_describes(tiny_recipe, still_model, tmp_path, rule):
    """Eq. 3 to 7 and algorithm 1: two micro-batches a step; ASAM goes up rho T^2 g / |T g| with T = |w|."""
    changes = {"train__update": {"name": rule} | ({"rho": 0.5} if rule == "asam" else {})}
    loop, hand = make_both(
        tiny_recipe,
        tmp_path,
        still_model,
        student={"model": str(still_model), "layers": 3},
        method={"name": "talas"},
        train__gradient_accumulation_steps=2,
        train__schedule={"name": "linear", "warmup": 0},
        **changes,
    )
    names = {number: f"objective.anchors.{number}.weight" for number in (2, 3)}
    weights = dict(loop.module.named_parameters())
    anchors = {number: weights[name].detach().double().requires_grad_() for number, name in names.items()}
    before = {name: value.clone() for name, value in hand.model.state_dict().items()}
    loop.run()

    parameters = dict(hand.model.named_parameters())
    parameters |= {names[number]: anchor for number, anchor in anchors.items()}

    def descend_from(step):
        """The gradients of the mean loss of a step's micro-batches."""
        for parameter in parameters.values():
            parameter.grad = None
        for rows in step:
            (talas_loss(hand, anchors, rows) / len(step)).backward()

    epochs = [hand.epoch(epoch, drop_last=True) for epoch in range(EPOCHS)]
    steps = [batches[first : first + 2] for batches in epochs for first in range(0, len(batches), 2)]
    for number, step in enumerate(steps):
        rate = RATE + (FINAL_RATE - RATE) * number / (len(steps) - 1)
        descend_from(step)
        if rule == "asam":
            scaled = {name: p.detach().abs() * p.grad for name, p in parameters.items() if p.grad is not None}
            norm = torch.cat([value.flatten() for value in scaled.values()]).norm()
            origin = {name: p.detach().clone() for name, p in parameters.items()}
            with torch.no_grad():
                for name, value in scaled.items():
                    parameters[name] += 0.5 * parameters[name].abs() * value / norm
            descend_from(step)
            with torch.no_grad():
                for name, value in origin.items():
                    parameters[name].copy_(value)
        hand.adamw(parameters, rate)

    moved = max(float((value - before[name]).abs().max()) for name, value in hand.model.state_dict().items())
    assert loop.state.step == hand.steps > 20 and moved > 0.01
    assert worst_difference(loop, hand) < (1e-3 if rule == "plain" else 5e-3) * moved
    assert relative_difference(loop, hand, before) < 5e-4
    for number, name in names.items():
        anchor = anchors[number].detach().float()
        torch.testing.assert_close(weights[name].detach(), anchor, rtol=1e-3, atol=1e-3 * moved)
