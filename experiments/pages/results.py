"""docs/results.md: the students, their tasks, and the papers' figures beside those here."""

from __future__ import annotations

from functools import partial

from benchmarks.markdown import markdown_table
from experiments.alternatives import alternatives_line, latency_line
from experiments.headlines import headlines_table
from experiments.pages.parts import ENGLISH, STAR, Parts, main_students, read, rival, surgery_part, tables
from experiments.result_students import students_table as result_students_table
from experiments.result_students import tasks_table as result_tasks_table
from experiments.score_table import score_table, summary_table
from experiments.surgery_tables import students_table, tasks_table


def parts() -> Parts:
    """The marked parts of docs/results.md."""
    return {
        "docs/results.md": {
            "people": tables(("result_students", partial(result_students_table, untouched=rival()))),
            "people_tasks": tables(("result_students", partial(result_tasks_table, names=ENGLISH, untouched=rival()))),
            "summary": f"{summary_table(main_students())}\n\n{STAR}",
            "headlines": headlines(),
            "results": students_cut_from_their_teacher(),
            "small": surgery_part("students", students_table),
            "tasks": surgery_part("students", tasks_table),
            "alternatives": tables(("alternatives", alternatives_line), ("latency", latency_line)),
        }
    }


def headlines() -> str:
    """The papers' figures beside those here."""
    three_layers = read("english-three-layers")
    return headlines_table(read, three_layers) if three_layers else ""


def students_cut_from_their_teacher() -> str:
    """One table for both students."""
    files = [(name, read(f"english-{name}-layers")) for name in ("three", "two")]
    records = [(f"{name} layers: ", record) for name, record in files if record]
    if not records:
        return ""
    rows = []
    for name, record in records:
        cells = [
            f"{name}layers {record['student']['kept_layers']}",
            f"{record['student']['parameters'] / 1e6:.1f} M",
            f"{record['training']['texts']:,}",
            f"{record['training']['minutes']:.0f}",
            f"{record['metrics']['untrained_distance']:.3f}",
            f"{record['metrics']['distance']:.3f}",
        ]
        rows.append(cells)
    head = ["student", "parameters", "texts", "minutes", "distance before", "distance after"]
    return markdown_table(head, rows) + "\n\n" + score_table(records)
