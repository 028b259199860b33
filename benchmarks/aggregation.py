"""DynamicCKA for a batch at once against the paper's loop over texts and tokens, at equal values.

    python -m benchmarks.aggregation --json results/aggregation.json

Texts of 48 of the student's tokens and 60 of the teacher's, padded to one size. "aggregation" is what eq. 11 asks for:
cosines through Q, the choice of teacher tokens, their weights, and what CKA needs of the aggregate (its Gram matrix
here, the aggregate itself in the loop); "aggregation_bf16_ms" is the same with the products with Q in bf16, as training
in bf16 makes them; "alone" leaves out the cosines; "dynamic_cka" adds CKA itself (eq. 12 and 13; in the loop through
matrices of the widths' size). "both" is forward and backward. Times are medians of rounds; with one thread
(OMP_NUM_THREADS=1) the processor's, which others on the machine hardly change. "gram" asks whether the teacher's Gram
matrix should be cached rather than formed in the step: a step is a student's forward and backward pass and Z = 3
layers. "selection" is what the rules choose.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import BertConfig, BertModel

from benchmarks.dynamic_cka_loop import Case, aggregates, aggregation_by_loop, draw, value_by_loop
from distilvec.core.device import fast_bf16, keep_memory
from distilvec.core.files import write_json
from distilvec.losses import dynamic_cka as batched
from distilvec.losses.dynamic_cka import RULES, Rule

MARK_MS = 5.0  # "aggregation" of 32 texts, forward, 384 wide on both sides, on two cores
WIDTHS = [(384, 384), (256, 384), (768, 4096)]  # the student's, the teacher's
STUDENTS = {384: (6, 12, 1536), 768: (12, 12, 3072)}  # layers, heads and inner width of a student so wide
LAYERS = 3
PARTS = ("times", "gram", "selection")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=32)
    parser.add_argument("--student", type=int, default=48, help="tokens of the longest text")
    parser.add_argument("--teacher", type=int, default=60)
    parser.add_argument(
        "--widths", type=int, nargs="+", default=[width for pair in WIDTHS for width in pair], help="in pairs"
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--loop-rounds", type=int, default=3)
    arguments = parser.parse_args()
    keep_memory()  # as in training
    clock = "processor" if processor_time() else "wall"
    report: dict[str, Any] = {
        "texts": f"{arguments.texts} of {arguments.student} x {arguments.teacher} tokens",
        "machine": f"{torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}; {clock} time",  # noqa: E501
        "mark_ms": MARK_MS,
    }
    pairs = list(zip(arguments.widths[::2], arguments.widths[1::2], strict=True))
    if "times" in arguments.parts:
        for texts, width, teacher_width in [
            *((arguments.texts, *pair) for pair in pairs),
            (4, 256, 256),
        ]:  # the last: the paper's batch
            case = draw(texts, arguments.student, arguments.teacher, width, teacher_width)
            found: dict[str, Any] = {
                rule: measure(case, RULES[rule], arguments.rounds, arguments.loop_rounds) for rule in RULES
            }
            found["similarity_ms"] = widths(case, arguments.rounds)
            report[f"{texts} texts, {width} to {teacher_width}"] = found
            print(f"{texts} texts, {width} to {teacher_width}", json.dumps(found, indent=1), flush=True)
        first = report[f"{arguments.texts} texts, {pairs[0][0]} to {pairs[0][1]}"]
        report["under_mark"] = {rule: first[rule]["distilvec_ms"]["aggregation"] < MARK_MS for rule in RULES}
    if "gram" in arguments.parts:
        cases = [
            draw(arguments.texts, arguments.student, arguments.teacher, *pair) for pair in pairs if pair[0] in STUDENTS
        ]
        report["gram"] = {
            str(case.teacher.shape[2]): caching(case, arguments.rounds, arguments.loop_rounds) for case in cases
        }
        print("gram", report["gram"], flush=True)
    if "selection" in arguments.parts:
        report["selection"] = selection()
        print("selection", report["selection"])
    write_json(arguments.json, report)


def measure(case: Case, rule: Rule, rounds: int, loop_rounds: int) -> dict[str, Any]:
    """Milliseconds of both sides, how many times faster the batched one is, and how far their values and gradients are
    apart.
    """
    learning = case.wanting()
    similarity = batched.token_similarity(case.states, case.teacher, case.projection)
    cosines = [similarity[text, :n, :m] for text, (n, m) in enumerate(case.sizes)]

    def both(work: Callable[[Case, Rule], Tensor], parts: list[Case]) -> Callable[[], None]:
        def run() -> None:
            learning.states.grad = learning.projection.grad = None
            for part in parts:
                torch.autograd.backward(work(part, rule).sum())

        return run

    texts = [
        learning.single(text) for text in range(len(case.sizes))
    ]  # together the loop's matrices would fill the memory
    forms = {
        "distilvec": (aggregation, value, [learning], rounds),
        "loop": (aggregation_by_loop, value_by_loop, texts, loop_rounds),
    }
    alones = {"distilvec": lambda: grams(similarity, case, rule), "loop": lambda: aggregates(cosines, case, rule)}
    found: dict[str, Any] = {}
    for side, (aggregate, whole, parts, count) in forms.items():
        ways: dict[str, Callable[[], Any]] = {
            "alone": alones[side],
            "aggregation": lambda work=aggregate: work(case, rule),  # type: ignore[misc]
            "dynamic_cka": lambda work=whole: work(case, rule),  # type: ignore[misc]
            "aggregation_both": both(aggregate, parts),
            "dynamic_cka_both": both(whole, parts),
        }
        found[f"{side}_ms"] = {name: milliseconds(run, count) for name, run in ways.items()}
    if fast_bf16("cpu"):
        found["aggregation_bf16_ms"] = milliseconds(lambda: aggregation(case, rule, torch.bfloat16), rounds)
    found["times_faster"] = {name: round(found["loop_ms"][name] / ms, 1) for name, ms in found["distilvec_ms"].items()}
    return found | differences(case, rule)


def differences(case: Case, rule: Rule) -> dict[str, float]:
    """How far values and Q's gradients are from the loop's: in float64, where they must be equal, and values in fp32."""  # noqa: E501
    exact, looped = case.doubled().wanting(), case.doubled().wanting()
    found = value(exact, rule)
    torch.autograd.backward(found.sum())
    each = []
    for text in range(len(case.sizes)):
        each.append(value_by_loop(looped.single(text), rule))
        torch.autograd.backward(each[-1].sum())
    expected = torch.cat(each)
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=0)
    torch.testing.assert_close(exact.projection.grad, looped.projection.grad, atol=1e-9, rtol=1e-6)
    torch.testing.assert_close(exact.states.grad, looped.states.grad, atol=1e-9, rtol=1e-6)
    apart = {"float64": found.detach() - expected.detach(), "float32": value(case, rule) - expected.detach()}
    return {f"largest_difference_{name}": float(difference.abs().max()) for name, difference in apart.items()}


def aggregation(case: Case, rule: Rule, products: torch.dtype | None = None) -> Tensor:
    """The aggregates' unit Gram matrices [texts, n, n]."""
    return grams(batched.token_similarity(case.states, case.teacher, case.projection, products), case, rule)


def grams(similarity: Tensor, case: Case, rule: Rule) -> Tensor:
    """The same from the cosines."""
    weights = batched.match_weights(similarity, case.student_mask, case.teacher_mask, rule)
    return batched.aggregate_gram(weights, batched.teacher_gram(case.teacher, case.teacher_mask), case.student_mask)


def value(case: Case, rule: Rule) -> Tensor:
    """1 - sqrt(CKA) of each text."""
    return batched.dynamic_cka(case.states, case.teacher, case.projection, case.student_mask, case.teacher_mask, rule)


# -- which form, what to cache, what is chosen -------------------------------------------------------------------------


def widths(case: Case, rounds: int) -> dict[str, Any]:
    """The similarity in the student's width and in the teacher's, forward and backward; which one is taken."""
    rule, learning = batched.narrow_is_cheaper, case.wanting()
    found: dict[str, Any] = {"taken": "student's" if rule(case.states.shape, case.teacher.shape) else "teacher's"}

    def both() -> None:
        torch.autograd.backward(batched.token_similarity(learning.states, learning.teacher, learning.projection).sum())

    try:
        for name, narrow in (("student's", True), ("teacher's", False)):
            batched.narrow_is_cheaper = lambda *shapes, narrow=narrow: narrow
            found[name] = milliseconds(both, rounds)
    finally:
        batched.narrow_is_cheaper = rule
    return found


def caching(case: Case, rounds: int, step_rounds: int) -> dict[str, Any]:
    """The teacher's Gram matrix formed in the step, from states that are there for the cosines anyway, or read from a
    cache.

    A cached one has m (m + 1) / 2 float16 numbers a text and layer, apart from the m (width + 4) bytes of the states as
    int8.
    """
    longest, width = case.teacher.shape[1:]
    row, column = torch.triu_indices(longest, longest)
    kept = batched.teacher_gram(case.teacher, case.teacher_mask)[:, row, column].half()
    places = torch.zeros(longest, longest, dtype=torch.long)
    places[row, column] = places[column, row] = torch.arange(len(row))
    formed = milliseconds(lambda: batched.teacher_gram(case.teacher, case.teacher_mask), rounds)
    read = milliseconds(lambda: kept.float()[:, places], rounds)
    step = milliseconds(student_step(case), step_rounds)
    whole = step + LAYERS * milliseconds(
        lambda: torch.autograd.backward(value(case.wanting(), RULES["paper"]).sum()), rounds
    )
    return {
        "formed_ms": formed,
        "read_ms": read,
        "step_ms": round(whole, 1),
        "share_of_step": round(LAYERS * formed / whole, 4),
        "saved_of_step": round(LAYERS * (formed - read) / whole, 4),
        "bytes_a_text_and_layer": {"states": longest * (width + 4), "gram": longest * (longest + 1)},
    }


def student_step(case: Case) -> Callable[[], None]:
    """A forward and backward pass of an untrained BERT of the student's width over the batch, without its word
    embeddings.
    """
    width = case.states.shape[2]
    layers, heads, inner = STUDENTS[width]
    config = BertConfig(
        vocab_size=8, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=inner
    )
    model = BertModel(config, add_pooling_layer=False).train()

    def run() -> None:
        model.zero_grad(set_to_none=True)
        states = model(inputs_embeds=case.states, attention_mask=case.student_mask.long()).last_hidden_state
        torch.autograd.backward(states.square().mean())

    return run


def selection() -> dict[str, Any]:
    """Which share of the teacher's tokens the rules keep of random ones, and what copies of teacher tokens gather."""
    rules = {
        "paper": RULES["paper"],
        "paper, temperature 0.1": Rule(temperature=0.1),
        "paper, most 3": Rule(most=3),
        "authors": RULES["authors"],
    }
    found: dict[str, Any] = {}
    for name, rule in rules.items():
        random = {tokens: round(chosen(rule, tokens, 384, copies=False)[0] / tokens, 3) for tokens in (16, 64, 256)}
        kept, alike = chosen(rule, 64, 384, copies=True)
        found[name] = {
            "share_of_random": random,
            "copies_keep": round(kept, 2),
            "cosine_with_the_copied": round(alike, 3),
        }
    return found


def chosen(rule: Rule, tokens: int, width: int, copies: bool) -> tuple[float, float]:
    """How many of a text's teacher tokens one of the student's keeps, and the cosine of what it gathers with the token
    of its place.

    With `copies`, a token of the student's is the teacher's at its place and noise of half its length (cosine 0.9),
    else random.
    """
    generator = torch.Generator().manual_seed(1)
    teacher, noise = (torch.randn(8, tokens, width, generator=generator) for _ in range(2))
    states = teacher + noise / 2 if copies else noise
    mask = torch.ones(8, tokens, dtype=torch.bool)
    weights = batched.match_weights(batched.token_similarity(states, teacher, torch.eye(width)), mask, mask, rule)
    return float(batched.kept_tokens(weights, mask)), float(
        F.cosine_similarity(weights @ teacher, teacher, dim=-1).mean()
    )


def processor_time() -> bool:
    """Whether times are the processor's: those of all threads together, so with one thread only."""
    return torch.get_num_threads() == 1


def milliseconds(run: Callable[[], Any], rounds: int) -> float:
    """The median round, after one that does not count."""
    clock = time.process_time if processor_time() else time.perf_counter
    run()
    times = []
    for _ in range(rounds):
        began = clock()
        run()
        times.append(clock() - began)
    return round(1000 * statistics.median(times), 3)


if __name__ == "__main__":
    main()
