"""docs/results.md: the students, their tasks, and the papers' figures beside those here."""

from __future__ import annotations

from functools import partial

from benchmarks.markdown import markdown_table
from distilvec.evaluation.aggregate import AVERAGE, RETRIEVAL
from experiments.alternatives import alternatives_line, latency_line
from experiments.claims import claims_table
from experiments.pages.parts import ENGLISH, STAR, Parts, main_students, read, rival, surgery_part, tables
from experiments.result_students import kept, rows_of_mpnet, untouched_shares
from experiments.result_students import students_table as result_students_table
from experiments.result_students import tasks_table as result_tasks_table
from experiments.score_table import retained, score_table, summary_table
from experiments.surgery_tables import by_short_name, students_table, tasks_table
from experiments.untouched import SIZE


def parts() -> Parts:
    """The marked parts of docs/results.md."""
    return {
        "docs/results.md": {
            "first": first(),
            "people": tables(("result_students", partial(result_students_table, untouched=rival()))),
            "people_tasks": tables(("result_students", partial(result_tasks_table, names=ENGLISH, untouched=rival()))),
            "summary": f"{summary_table(main_students())}\n\n{STAR}",
            "claims": claims_table(read),
            "results": students_cut_from_their_teacher(),
            "small": surgery_part("students", students_table),
            "tasks": surgery_part("students", tasks_table),
            "alternatives": tables(("alternatives", alternatives_line), ("latency", latency_line)),
        }
    }


def first() -> str:
    """The answer in four rows: two students of mpnet between their rival and a student of that rival."""
    people, xquad, small = read("result_students"), read("xquad_en"), read("surgery")
    if not people or not xquad or not small:
        return ""
    of_mpnet = {row["name"]: row for row in rows_of_mpnet(people)}
    least, most = of_mpnet["english-5m"], of_mpnet["english-23m-480k"]
    narrow, teacher = by_short_name(small["students"])["5m-narrow"], least["scores"]["teacher"]
    average = untouched_shares([least, most], rival())[0].strip("*")
    searches = [100 * rival().scores[task] / teacher[task] for task in ("cranfield", "xquad-en")]
    rows = [["all-MiniLM-L6-v2 untouched", "mpnet", SIZE, *(f"{share:.1f}" for share in searches), average]]
    for title, row in (("a small student", least), ("the largest student", most)):
        student, taught = row["scores"]["student"], row["scores"]["teacher"]
        scores = [100 * student[task] / taught[task] for task in ("cranfield", "xquad-en")]
        cells = [title, "mpnet", f"{row['parameters'] / 1e6:.1f} M", *(f"{share:.1f}" for share in scores)]
        rows.append([*cells, kept(row, "student", AVERAGE)])
    shares, of_xquad = retained(narrow)["student"], xquad["5m-narrow"]
    scores = [shares[RETRIEVAL], 100 * of_xquad["student"] / of_xquad["teacher"], shares[AVERAGE]]
    size = f"{narrow['student']['parameters'] / 1e6:.1f} M"
    rows.append(["a small student (`5m-narrow`)", "all-MiniLM-L6-v2", size, *(f"{share:.1f}" for share in scores)])
    head = ["model", "in % of", "parameters", "Cranfield", "XQuAD", "average"]
    return markdown_table(head, rows, columns="llrrrr")


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
