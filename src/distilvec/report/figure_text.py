"""The figures in words and numbers, for those who cannot see them: captions and labels made from the same data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from distilvec.report import vocabulary_report
from distilvec.report.figure_data import (
    PRECISION_NAMES,
    batch_series,
    comparable,
    compression_curves,
    history_series,
    length_series,
    retained,
    task_order,
)

Part = Mapping[str, Any]
Rows = Sequence[Mapping[str, Any]]


def describe_scores(scores: Mapping[str, Rows], intervals: Part | None = None) -> str:
    """Each column's average and its lowest and highest task, with the average's interval where there is one."""
    rows = retained(scores, intervals or {})
    kept = {(row["column"], row["task"]): row for row in rows}
    whole, unit = ("of the teacher's score", " %") if "teacher" in scores else ("as its score", "")
    sentences = []
    for column in dict.fromkeys(row["column"] for row in rows):
        tasks = [row for row in rows if row["column"] == column and row["task"] != "average"]
        mean = kept.get((column, "average"), tasks[0])
        low, high = min(tasks, key=lambda row: row["value"]), max(tasks, key=lambda row: row["value"])
        interval = "" if mean["low"] is None else f" (95 % interval {mean['low']:.1f} to {mean['high']:.1f})"
        sentence = f"The {column} column reaches {mean['value']:.1f}{unit} {whole}{interval}"
        if len(tasks) > 1:
            sentence += f" on average, from {low['value']:.1f}{unit} on {low['task']} to {high['value']:.1f}{unit} on {high['task']}"
        sentences.append(sentence + ".")
    return f"{_count(len(set(task_order(rows)) - {'average'}), 'task')}. " + " ".join(sentences)


def describe_compression(compression: Part, task: str = "average") -> str:
    """Each column's score at full width in the first precision and at the smallest width in each precision."""
    sentences = []
    for column, lines in compression_curves(compression, task).items():
        (first, line), *_ = lines.items()
        full, small = max(line), min(line)
        ends = [
            f"{found[min(found)]:.1f} in {_precision(name)}" for name, found in lines.items() if min(found) == small
        ]
        whole = [f"{found[full]:.1f} in {_precision(name)}" for name, found in list(lines.items())[1:] if full in found]
        sentence = f"{column.capitalize()}: {line[full]:.1f} at {full} dimensions in {_precision(first)}"
        sentence += f" ({', '.join(whole)})" if whole else ""
        sentences.append(sentence + (f"; at {small} dimensions {_listed(ends)}." if small < full else "."))
    what = "Mean score" if task == "average" else f"Score on {task}"
    return f"{what} by number of dimensions and precision. " + " ".join(sentences)


def describe_margin(margin: Part, name: str = "average") -> str:
    """How score follows distance over the checkpoints, and the margin."""
    points = [point for point in margin["points"] if name in point["scores"]]
    distances, values = [point["distance"] for point in points], [point["scores"][name] for point in points]
    fit = (margin.get("fits") or {}).get(name) or {}
    what = "mean score" if name == "average" else f"score on {name}"
    text = f"{_count(len(points), 'checkpoint')} at distances {min(distances):.3f} to {max(distances):.3f} from the teacher, "
    text += f"{what} {min(values):.1f} to {max(values):.1f}."
    if fit.get("slope") is not None:
        text += f" The linear fit {'loses' if fit['slope'] < 0 else 'gains'} {abs(fit['slope']) / 10:.2f} points for each 0.1 of distance"
        text += f" (R² {fit['r2']:.2f})." if fit.get("r2") is not None else "."
    if fit.get("teacher") is not None:
        text += f" The teacher scores {fit['teacher']:.1f}."
    if not fit:
        return text
    if fit.get("margin") is None:
        return text + " No distance was reached at which the score could not be told from the teacher's."
    return (
        text
        + f" Below a distance of {fit['margin']:.3f}, the robustness margin, the score cannot be told from the teacher's."
    )


def describe_speed(speed: Part) -> str:
    """Latency at the smallest and the largest batch, at the shortest and the longest text, by model and backend; ratios."""
    sentences = [
        _ends(rows, "batch_size", f"{role.capitalize()} of {tokens} tokens", "texts a batch")
        for role, tokens, rows in batch_series(speed)
    ]
    if found := length_series(speed):
        sentences.append(_ends(found[1], "tokens", f"By length, {_count(found[0], 'text')} a batch", "tokens"))
    ratio = {role: value for role, value in (speed.get("ratio") or {}).items() if value is not None}
    if ratio:
        sentences.append(
            f"The student is {_listed([f'{value:.1f} times as fast on a {role}' for role, value in ratio.items()])}."
        )
    for model, info in (speed.get("models") or {}).items():
        if largest := info.get("largest_batch_under_100_ms"):
            parts = [
                f"{size} for a {role}" if size is not None else f"none for a {role}" for role, size in largest.items()
            ]
            sentences.append(f"Largest batch under 100 ms, {model}: {_listed(parts)}.")
    return " ".join(sentences)


def describe_training(history: Rows) -> str:
    """First and last value of every line."""
    sentences = []
    for label, lines in history_series(history).items():
        for name, points in lines.items():
            (start, first), (stop, last) = points[0], points[-1]
            highest = max(value for _, value in points)
            if label == "learning rate":
                sentences.append(f"The learning rate peaks at {highest:.2g} and ends at {last:.2g}.")
                continue
            term = f"loss term {name}" if label == "loss" and name != "loss" else name
            way = "falls" if last < first else "rises" if last > first else "stays"
            sentences.append(f"The {term} {way} from {first:.3g} at step {start:,} to {last:.3g} at step {stop:,}.")
    return " ".join(sentences)


def describe_sentences(sentences: Part) -> str:
    """How many texts, and how far each column is from the teacher."""
    columns = [name for name in ("student", "untrained") if sentences.get(name)]
    groups = dict.fromkeys(sentences.get("groups") or ())
    text = _count(len(sentences["teacher"]), "text") + (f" of {_listed(list(groups))}" if groups else "")
    text += " in the plane of the teacher's two first principal components."
    raw, aligned, turned = (sentences.get(key) or {} for key in ("disparity", "disparity_aligned", "aligned"))
    for column in columns:
        if raw.get(column) is not None:
            text += f" Disparity of the {column} from the teacher {raw[column]:.3f} (0 means equal vectors)"
            text += f", {aligned[column]:.3f} after alignment" if aligned.get(column) is not None else ""
            text += ("; drawn aligned." if turned[column] else "; drawn as it is.") if column in turned else "."
    return text


def describe_tokens(tokens: Rows) -> str:
    """The sentences, and the token that lies furthest from the teacher's, where tokens can be compared."""
    sentences = []
    for row in tokens:
        text = f"“{row['text']}”: {_count(len(row['tokens']), 'token')}"
        if "student_tokens" in row:
            sentences.append(f"{text} of the teacher, {len(row['student_tokens'])} of the student, on a common centre.")
            continue
        gaps = [
            sum((a - b) ** 2 for a, b in zip(*pair, strict=True)) ** 0.5
            for pair in zip(row["teacher"], row["student"], strict=True)
        ]
        worst = max(range(len(gaps)), key=gaps.__getitem__)
        sentences.append(
            f"{text}, on average {sum(gaps) / len(gaps):.2f} apart; furthest “{row['tokens'][worst]}” ({gaps[worst]:.2f})."
        )
    return "Tokens of teacher and student in one plane. " + " ".join(sentences)


def describe_leaderboard(runs: Rows, against: str = "parameters") -> str:
    """Every run with its numbers, best first."""
    rows = sorted(comparable(runs, against), key=lambda row: -row["retention"])
    scale, unit = (1e6, "M parameters") if against == "parameters" else (1, against.replace("_", " "))
    parts = [
        f"{row['name']} keeps {row['retention']:.1f} % with {row[against] / scale:,.{0 if row[against] / scale >= 100 else 1}f} {unit}"
        for row in rows
    ]
    return f"{_count(len(rows), 'run')}: {'; '.join(parts)}."


def drawable(name: str, part: Any) -> bool:
    """Is there enough in a part of the report for its figure?"""
    checks: dict[str, Callable[[Any], Any]] = {
        "scores": lambda scores: retained(scores, {}),
        "compression": lambda compression: compression.get("rows") and compression_curves(compression),
        "margin": lambda margin: (
            len([point for point in margin.get("points") or () if "average" in point["scores"]]) > 1
        ),
        "speed": lambda speed: speed.get("rows") and (batch_series(speed) or length_series(speed)),
        "training": lambda history: any(history_series(history).values()),
        "vocabulary": vocabulary_report.drawable,
        "sharpness": lambda sharpness: sharpness.get("points"),
        "sentences": lambda sentences: (
            sentences.get("teacher") and (sentences.get("student") or sentences.get("untrained"))
        ),
        "tokens": lambda tokens: all(row.get("teacher") and row.get("student") for row in tokens),
        "experts_training": lambda history: any("train/gate_1" in line for line in history),
        "experts_gates": lambda experts: experts.get("groups"),
        "experts": lambda plane: plane.get("teacher"),
        "token_planes": lambda rows: all(row.get("teacher") and row.get("student") for row in rows),
    }
    return bool(checks[name](part))


def _ends(rows: Rows, key: str, subject: str, unit: str) -> str:
    """ "Query of 16 tokens: 3.1 ms at 1 and 50.0 ms at 32 texts a batch for teacher with pytorch, ..." """
    parts = []
    for model, backend in dict.fromkeys((row["model"], row["backend"]) for row in rows):
        line = sorted(
            (row for row in rows if (row["model"], row["backend"]) == (model, backend)), key=lambda row: row[key]
        )
        first, last = line[0], line[-1]
        parts.append(
            f"{model} with {backend} {first['mean_ms']:.1f} ms at {first[key]} and {last['mean_ms']:.1f} ms at {last[key]} {unit}"
        )
    return f"{subject}: {'; '.join(parts)}."


def _precision(name: str) -> str:
    return PRECISION_NAMES.get(name, name).replace(",", "")


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
