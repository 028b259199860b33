"""The tasks' scores of one or more students beside the teacher's, as a Markdown table."""

from __future__ import annotations

from typing import Any

from distilvec.evaluation.aggregate import average, retention

COLUMNS = ("untrained", "student", "asymmetric")


def score_table(records: list[tuple[str, Any]]) -> str:
    """Rows are tasks, columns the teacher and each student's three figures; last the average and what is kept of the
    teacher.
    """
    teacher = {row["task"]: row for row in records[0][1]["scores"]["teacher"]}
    columns = [
        (prefix + name, {r["task"]: r["value"] for r in record["scores"][name]})
        for prefix, record in records
        for name in COLUMNS
    ]
    lines = [
        "| task | metric | teacher | " + " | ".join(name for name, _ in columns) + " |",
        "|---|---|" + "---:|" * (1 + len(columns)),
    ]
    for task, row in teacher.items():
        lines.append(
            f"| {task} | {row['metric']} | {row['value']:.2f} | "
            + " | ".join(f"{c[task]:.2f}" for _, c in columns)
            + " |"
        )
    whole = {task: row["value"] for task, row in teacher.items()}
    lines.append(
        f"| **average** | | {average(whole):.2f} | " + " | ".join(f"{average(c):.2f}" for _, c in columns) + " |"
    )
    kept = [f"{retention(c, whole)['average']:.1f}" for _, c in columns]
    lines.append("| **% of the teacher** | | 100.0 | " + " | ".join(kept) + " |")
    return "\n".join(lines)
