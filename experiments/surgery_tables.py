"""The tables of docs/results.md and docs/papers/surgery.md from results/surgery.json and surgery_speed.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.markdown import markdown_table
from distilvec.evaluation.aggregate import AVERAGE, RETRIEVAL
from experiments.score_table import retained

KINDS = {"bpe": "byte-level BPE", "unigram": "Unigram", "wordpiece": "WordPiece"}


def students_table(found: Mapping[str, Any]) -> str:
    """What each trained student is, how near it comes to the teacher, and what it costs."""
    head = (
        *(
            "student",
            "layers",
            "tokens",
            "parameters",
            "times fewer",
            "texts",
            "minutes",
            "distance",
            "% of the teacher",
        ),
        *("asymmetric, %", "retrieval, %", "retrieval, asymmetric, %", "MB", "texts/s", "times faster"),
    )
    lines = []
    for name, record in by_short_name(found).items():
        student, training, speed = record["student"], record["training"], record["inference"]
        distance, kept = record["metrics"], retained(record)
        cells = (
            *(name, str(student["layers"]), f"{record['tokens']:,}", f"{student['parameters'] / 1e6:.1f} M"),
            f"{record['teacher']['parameters'] / student['parameters']:.1f}",
            *(f"{training['texts']:,}", f"{training['minutes']:.0f}"),
            f"{distance['untrained_distance']:.3f} → {distance['distance']:.3f}",
            *(
                f"{kept['untrained'][AVERAGE]:.1f} → **{kept['student'][AVERAGE]:.1f}**",
                f"{kept['asymmetric'][AVERAGE]:.1f}",
                *(f"{kept[mode][RETRIEVAL]:.1f}" for mode in ("student", "asymmetric")),
                f"{record['megabytes']:.0f}",
            ),
            f"{speed['student_texts_per_second']:,.0f}",
            f"{speed['student_texts_per_second'] / speed['teacher_texts_per_second']:.2f}",
        )
        lines.append(cells)
    teacher = next(iter(found.values()))["teacher"]
    by_machine: dict[str, list[str]] = {}
    for name, record in by_short_name(found).items():
        by_machine.setdefault(record["machine"], []).append(name)
    machines = "; ".join(f"{', '.join(names)}: {machine}" for machine, names in by_machine.items())
    return (
        markdown_table(head, lines)
        + f"\n\n{teacher['name']} ({teacher['parameters'] / 1e6:.1f} M) is the teacher. Distance (mean L2 on validation texts) and share of "  # noqa: E501
        "its average over the tasks: before → after training; asymmetric: queries by the student, documents by the "
        "teacher in retrieval, the student's own scores on the other tasks; retrieval: Cranfield alone. Texts a "
        f"second: validation texts in turn with the teacher, medians ({machines}). Commands: `distilvec run "
        "recipes/small_english.yaml --variant NAME`, `python -m experiments.surgery students RUN... --json FILE`."
    )


def tasks_table(students: Mapping[str, Any]) -> str:
    """Every student's scores, task by task, beside the teacher's."""
    records = by_short_name(students)
    scores: dict[str, dict[str, dict[str, float]]] = {}
    for name, record in records.items():
        scores[name] = {}
        for column, rows in record["scores"].items():
            scores[name][column] = {row["task"]: row["value"] for row in rows}

    lines = []
    for row in next(iter(records.values()))["scores"]["teacher"]:
        by_student = []
        for columns in scores.values():
            by_student.append({column: values[row["task"]] for column, values in columns.items()})
        lines.append(task_line(row["task"], row["metric"], by_student))

    shares = []
    for record in records.values():
        shares.append({column: kept[AVERAGE] for column, kept in retained(record).items()})
    lines.append(task_line("**% of the teacher**", "", shares))

    table = markdown_table(["task", "metric", "teacher", *records], lines, columns="ll" + "r" * (len(records) + 1))
    return (
        f"{table}\n\nBefore → after training; in brackets asymmetric, where that differs: with the teacher's documents "
        "in retrieval. The teacher's column is that of the first student's run."
    )


def task_line(name: str, metric: str, by_student: Sequence[Mapping[str, float]]) -> list[str]:
    """The cells of a task: the teacher's score, then those of each student by column."""
    cells = [name, metric, f"{by_student[0]['teacher']:.1f}"]
    for scores in by_student:
        cell = f"{scores['untrained']:.1f} → **{scores['student']:.1f}**"
        if scores["asymmetric"] != scores["student"]:
            cell += f" ({scores['asymmetric']:.1f})"
        cells.append(cell)
    return cells


def by_short_name(found: Mapping[str, Any]) -> dict[str, Any]:
    """The records by variant; factorized ones after the others."""
    names = {name.removeprefix("small_english-"): record for name, record in found.items()}
    return dict(sorted(names.items(), key=lambda item: "-rank" in item[0]))


def sizes_summary(found: Mapping[str, Any]) -> str:
    """What the same three layers keep with each size of the vocabulary, the smallest first."""
    head = ["tokens", "parameters", "distance", "average, %", "retrieval, %", "retrieval, asymmetric, %"]
    lines = []
    for record in sorted(found.values(), key=lambda record: record["tokens"]):
        kept = retained(record)
        shares = (kept["student"][AVERAGE], kept["student"][RETRIEVAL], kept["asymmetric"][RETRIEVAL])
        cells = [f"{record['tokens']:,}", f"{record['student']['parameters'] / 1e6:.1f} M"]
        cells += [f"{record['metrics']['distance']:.3f}", *(f"{share:.1f}" for share in shares)]
        lines.append(cells)
    return markdown_table(head, lines, columns="r" * len(head))


def sizes_table(found: Mapping[str, Any]) -> str:
    """The same recipe at several sizes of the vocabulary, the smallest first."""
    head = [
        "tokens", "parameters", "distance", "STS-B", "Cranfield", "average", "% of the teacher", "asymmetric, %",
        "retrieval, %", "retrieval, asymmetric, %",
    ]  # fmt: skip
    lines = []
    records = sorted(found.values(), key=lambda record: record["tokens"])
    for record in records:
        scores, kept = {row["task"]: row["value"] for row in record["scores"]["student"]}, retained(record)
        average = sum(scores.values()) / len(scores)
        cells = [
            f"{record['tokens']:,}",
            f"{record['student']['parameters'] / 1e6:.1f} M",
            f"{record['metrics']['distance']:.3f}",
            f"{scores['stsb']:.2f}",
            f"{scores['cranfield']:.2f}",
            f"{average:.2f}",
        ]
        for key in (AVERAGE, RETRIEVAL):
            cells += [f"{kept[mode][key]:.1f}" for mode in ("student", "asymmetric")]
        lines.append(cells)
    texts = records[0]["training"]["texts"]
    return (
        markdown_table(head, lines, columns="r" * len(head))
        + f"\n\nThree layers, {texts:,} texts each, one seed (`distilvec run recipes/sweeps/vocabulary_size.yaml`, then "  # noqa: E501
        "`python -m experiments.surgery sizes RUN... --json FILE`)."
    )


def inference_table(found: Mapping[str, Any]) -> str:
    """Turkish text through the same layers behind either tokenizer."""
    head = ["Turkish", "texts/s, before", "after", "tokens/s, before", "after", "times faster"]
    lines = []
    for name, part in found["on"].items():
        texts, tokens = (
            [part[side][f"{unit}_per_second"] for side in ("before", "after")] for unit in ("texts", "tokens")
        )
        cells = [f"{value:,.0f}" for value in (*texts, *tokens)]
        lines.append([name, *cells, f"{part['times_faster']:.2f}"])
    return (
        markdown_table(head, lines)
        + f"\n\nall-MiniLM-L6-v2 before, with a Unigram vocabulary of {found['size']:,} after; texts of up to 256 tokens, the two in turn, "  # noqa: E501
        f"medians ({found['machine']}; `python -m experiments.surgery inference --json FILE`)."
    )


def trim_table(found: Mapping[str, Any]) -> str:
    """Size, distance and STS-B of trimmed vocabularies."""
    head = ["tokens", "parameters", "distance to the teacher", "STS-B"]
    lines = []
    for row in found["rows"]:
        parameters = f"{row['parameters'] / 1e6:.1f} M"
        lines.append([f"{row['tokens']:,}", parameters, f"{row['distance']:.3f}", f"{row['stsb']:.2f}"])
    return (
        markdown_table(head, lines, columns="rrrr")
        + "\n\nThe first row is all-MiniLM-L6-v2. Tokens were chosen on the training texts of recipes/small_english.yaml; the distance is "  # noqa: E501
        f"the mean L2 over {found['held_out']:,} validation texts (`python -m experiments.surgery trim --json FILE`). "
        f"No weight was trained."
    )


def turkish_table(found: Mapping[str, Any]) -> str:
    """Fertility and length of Turkish text before and after."""
    head = [
        "tokenizer", "texts", "tokens a word", "characters a token", "unknown, %", "shorter by, %",
        "attention saved, %", "whole words, %",
    ]  # fmt: skip
    lines = []
    for kind, part in found["kinds"].items():
        for texts, language in part["languages"].items():
            before, after, saved = language["before"], language["after"], language["saved"]
            whole = part["after"]["vocabulary"]["whole_words"]
            cells = [
                KINDS[kind],
                texts,
                f"{before['fertility']:.2f} → {after['fertility']:.2f}",
                f"{before['characters_per_token']:.2f} → {after['characters_per_token']:.2f}",
                f"{100 * before['unknown']:.2f} → {100 * after['unknown']:.2f}",
                f"{saved['length']:.1f}",
                f"{saved['attention']:.1f}",
                f"{100 * whole:.0f}",
            ]
            lines.append(cells)
    return (
        markdown_table(head, lines, columns="ll" + "r" * 6)
        + f"\n\nFrom all-MiniLM-L6-v2's 30,522 tokens to {found['size']:,} trained on Turkish sentences and questions (lengths are of "  # noqa: E501
        "whole texts; `python -m experiments.surgery turkish --json FILE`). The teacher knows no Turkish, so no score "
        "is claimed."
    )


def speed_line(found: Mapping[str, Any]) -> str:
    """How fast counting and the transplant are."""
    counting, made, wanted = found["counting"], found["transplant"], found["marks"]
    rates = counting["megabytes_per_second"]
    old, new = made["rows"]
    return (
        f"Counting tokens: {rates['words']:.1f} MB of text a second by distinct words (target: "
        f"{wanted['megabytes_per_second']:g}), "
        f"{rates['whole']:.1f} on whole texts with the same counts ({counting['texts']}, {counting['megabytes']:.0f} "
        f"MB). "
        f"From {old:,} to {new:,} rows of {made['width']}, from folder to folder: {made['seconds']:.0f} s (target: "
        f"{wanted['seconds']:g}), "
        f"with {made['memory_of_tables']:.2f} times the memory of both tables (target: {wanted['memory_of_tables']:g}) "
        f"({found['machine']}; `benchmarks/surgery_speed.py` of commit 0e823248)."
    )
