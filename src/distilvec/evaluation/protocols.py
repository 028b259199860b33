"""The papers' evaluation protocols: which figure of a task counts.

Every protocol reads the same evaluation (evaluate.py): a logistic regression on frozen embeddings, fitted to the whole
training split, for classification; the cosine of both sentences for pairs and STS, with Spearman's correlation for STS.
Protocols differ in the figure they report.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from distilvec.core.errors import DistilvecError, nearest
from distilvec.evaluation.evaluator import Score


@dataclass(frozen=True)
class Protocol:
    """The main figure of classification and of pair tasks, and the place that says so."""

    name: str
    classification_metric: Literal["accuracy", "macro_f1"]
    source: str
    pair_metric: Literal["average_precision", "best_accuracy"] = "average_precision"


PROTOCOLS: dict[str, Protocol] = {
    protocol.name: protocol
    for protocol in (
        # Note: only MTEB's figures, not its classifier, which is fitted ten times to a few rows a label.
        Protocol(
            "mteb-like",
            "accuracy",
            "MTEB (Muennighoff et al., 2023), section 3.2: accuracy; average precision of cosine",
        ),
        # Note: the paper says "F1" and "an optimal threshold, reporting the Average Precision"; read as macro F1 and plain AP.
        Protocol("talas", "macro_f1", "TALAS, section 4.1, table 1 and appendix E (Evaluation)"),
        # Note: the row "BGEM3 base" of the table repeats TALAS' table 1 (BGE-M3, there F1 and AP) to the digit, so the text's
        # "Accuracy" and its figures may not fit together; the text is followed. Accuracy of pairs: at the best threshold.
        Protocol("distillmoe", "accuracy", "DistillMoE, table 14 and the text above it", "best_accuracy"),
        # Note: EMO fine-tunes its students with labels; here the encoder stays frozen, as everywhere in distilvec.
        Protocol("emo", "accuracy", "EMO, table 1 and appendix B (Training and Evaluation)", "best_accuracy"),
    )
}

# What mteb calls the same figures; its f1 is macro-averaged.
_MTEB_NAMES = {"macro_f1": "f1", "average_precision": "cosine_ap", "best_accuracy": "cosine_accuracy"}


def find_protocol(name: str) -> Protocol:
    """The protocol of that name. Errors: DistilvecError that lists the names."""
    if name not in PROTOCOLS:
        raise DistilvecError(
            f"[--protocol] unknown protocol '{name}'{nearest(name, PROTOCOLS) or '.'} Known: {', '.join(PROTOCOLS)}."
        )
    return PROTOCOLS[name]


def with_protocol(score: Score, protocol: Protocol) -> Score:
    """The score with the protocol's figure as its main one; STS and retrieval stay as they are.

    Errors: DistilvecError if the figure is not among the score's metrics.
    """
    match score.type:
        case "classification":
            wanted: str = protocol.classification_metric
        case "pair" | "pairclassification":
            wanted = protocol.pair_metric
        case _:
            return score
    metric = wanted if wanted in score.metrics else _MTEB_NAMES.get(wanted, wanted)
    if metric not in score.metrics:
        raise DistilvecError(
            f"[--protocol] task '{score.task}': protocol {protocol.name} reports {wanted}, but the score holds {', '.join(score.metrics)}. "
            "Evaluate the task again."
        )
    return dataclasses.replace(score, metric=metric, value=score.metrics[metric])
