"""The papers' headline figures beside those of this repository, for docs/results.md; `python -m experiments.readme`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.markdown import markdown_table
from distilvec.evaluation.aggregate import RETRIEVAL
from experiments.cross_tokenizer import MOE_PAPER, PAPER, values
from experiments.score_table import retained
from experiments.sentence_level import by_name, by_seed
from experiments.shootout import difference

Rows = Sequence[Mapping[str, Any]]

# REDACT, section 4.1: shares of the teacher's nDCG@10 on BEIR. Surgery, table 1: Spearman on STSb-TR. TALAS, table 1,
# Qwen3-Embedding 0.6B to MiniLMv2 H384: averages of nine tasks.
REDACT_STANDARD, REDACT_ASYMMETRIC = 96.1, 97.7
STSB_TR_STUDENT, STSB_TR_TEACHER = 77.45, 72.92
TALAS, SIMCSE = 74.79, 68.80


@dataclass(frozen=True)
class Headline:
    """One figure of a paper, the same one here, and how the settings differ."""

    paper: str
    what: str
    printed: str
    here: str
    differs: str


def headlines_table(read: Callable[[str], Any], three_layers: Mapping[str, Any]) -> str:
    """Return the table; `read` gives a file of results/ or None, `three_layers` is the student cut from its teacher."""
    headlines = [
        *redact_rows(read("result_students")["rows"], three_layers),
        *surgery_rows(read("real_teachers_turkish")["rows"], read("teacher_prompts")["rows"]["STS"]["against_none"]),
        *emo_rows(read("shootout_cross_tokenizer")["rows"], read("shootout_all_labels")["rows"]),
        *moe_rows(read("shootout_cross_tokenizer")["rows"]),
        *talas_rows(*(read(f"shootout_sentence_level{name}") for name in ("_mpnet", "", "_cut"))),
    ]
    head = ["paper", "figure", "in the paper", "here", "how the settings differ"]
    rows = [[row.paper, row.what, row.printed, row.here, row.differs] for row in headlines]
    return markdown_table(head, rows, columns="llrrl")


def redact_rows(rows: Rows, three_layers: Mapping[str, Any]) -> list[Headline]:
    """Shares of the teacher's retrieval: a student of another family, and one that is cut from its teacher."""
    student = next(row for row in rows if row["name"] == "english-23m-480k")
    scores = student["scores"]
    kept = retained(three_layers)

    def shares(column: str) -> str:
        parts = [100 * scores[column][task] / scores["teacher"][task] for task in ("cranfield", "xquad-en")]
        return f"{parts[0]:.1f}, {parts[1]:.1f}"

    family = (
        f"mpnet → MiniLM (109 to 23 M, as there); {student['texts']:,} texts, {student['passes']} passes, for "
        "6.6 million, 30; Cranfield, XQuAD for BEIR"
    )
    cut = "17 M, three layers of its own teacher, MiniLM; Cranfield"
    return [
        Headline("REDACT", "retrieval, % of the teacher", f"{REDACT_STANDARD}", shares("student"), family),
        Headline("", "the same, asymmetric", f"{REDACT_ASYMMETRIC}", shares("asymmetric"), "as above"),
        Headline("", "retrieval, % of the teacher", f"{REDACT_STANDARD}", f"{kept['student'][RETRIEVAL]:.1f}", cut),
        Headline(
            "",
            "the same, asymmetric",
            f"{REDACT_ASYMMETRIC}",
            f"{kept['asymmetric'][RETRIEVAL]:.1f}",
            "as above",
        ),
    ]


def surgery_rows(rows: Rows, prompt: Sequence[float]) -> list[Headline]:
    """STSb-TR against the teacher: tokens left out alone, a tokenizer of the texts; what a prompt gives a teacher."""

    def gap(name: str) -> str:
        student, teacher = (
            {row["seed"]: row["scores"][column]["stsb_tr"] for row in rows if row["run"] == name}
            for column in ("student", "teacher")
        )
        return difference(student, teacher)

    printed = f"{STSB_TR_STUDENT - STSB_TR_TEACHER:+.2f}"
    what = "STSb-TR, student less teacher"
    trimmed = (
        "e5 (118 M) for embeddinggemma (300 M); without the tokens that 12,000 texts do not use; training added nothing"
    )
    trained = "the same teacher; a Unigram of 16,000 tokens, 714 steps, for 131,072 tokens and 580,000 texts"
    return [
        Headline("surgery", what, printed, gap("trim-12"), trimmed),
        Headline("", what, printed, gap("unigram-12"), trained),
        Headline(
            "",
            "STSb-TR, the paper's teacher with its STS prompt less without",
            "not given",
            "{:+.2f} [{:+.2f}, {:+.2f}]".format(*prompt),
            "embeddinggemma itself, 1,500 validation pairs; the paper's table has it without a prompt",
        ),
    ]


def emo_rows(rows: Rows, all_labels: Rows) -> list[Headline]:
    """What EMO adds to the labels."""
    few = "MiniLM (23 M) for Mistral (7 B), a BERT of four layers for BERT-base; 2,000 labels, equal steps"
    every = "the same models; every label, two seeds"
    apart = "the same models; texts apart"
    banking = f"{PAPER['banking77']['emo'] - PAPER['banking77']['task']:+.1f}"
    stsb = f"{PAPER['stsb-separate']['emo'] - PAPER['stsb-separate']['task']:+.1f}"
    return [
        Headline("EMO", "Banking77, less labels alone", banking, added(rows, "banking77", "emo"), few),
        Headline("", "Banking77, less labels alone", banking, added(all_labels, "banking77", "emo"), every),
        Headline("", "STS-B, less labels alone", stsb, added(rows, "stsb-separate", "emo"), apart),
    ]


def moe_rows(rows: Rows) -> list[Headline]:
    """What DistillMoE adds to the labels: as printed, and its losses at equal weights without experts."""
    printed = {task: figures["distillmoe"] - figures["task"] for task, figures in MOE_PAPER.items()}
    banking, stsb = f"{printed['banking77']:+.1f}", f"{printed['stsb-separate']:+.1f}"
    equal = "its three losses at equal weights, without experts"
    return [
        Headline(
            "DistillMoE", "Banking77, less labels alone", banking, added(rows, "banking77", "distillmoe"), "as EMO's"
        ),
        Headline("", "Banking77, less labels alone", banking, added(rows, "banking77", "manual-equal"), equal),
        Headline("", "STS-B, less labels alone", stsb, added(rows, "stsb-separate", "distillmoe"), "as EMO's"),
    ]


def talas_rows(larger: Any, unseen: Any, own_layers: Any) -> list[Headline]:
    """What TALAS adds to SimCSE, for each comparison that was run."""
    printed = f"{TALAS - SIMCSE:+.2f}"
    what = "average, less SimCSE"
    family = (
        "mpnet (109 M) for Qwen3-Embedding (0.6 B), four layers of MiniLM for MiniLMv2; eleven tasks for nine, three "
        "passes"
    )
    fresh = "MiniLM for Qwen3-Embedding (0.6 B), a BERT of four layers for MiniLMv2; eleven tasks for nine, two passes"
    cut = "MiniLM; three of its own layers"
    rows: list[Headline] = []
    for report, differs in ((larger, family), (unseen, fresh), (own_layers, cut)):
        if report is not None:
            found = by_name(report["rows"])
            gap = difference(by_seed(found["talas"]), by_seed(found["simcse"]))
            rows.append(Headline("" if rows else "TALAS", what, printed, gap, differs))
    return rows


def added(rows: Rows, task: str, method: str) -> str:
    """Return what a method adds to the labels alone, paired by seed."""
    return difference(values(rows, task, method), values(rows, task, "task"))
