"""The report page's sections: each a list of blocks (tables, figures, texts) made from one part of report.json, or nothing."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distilvec.report import expert_figures, page_tables, vocabulary_report
from distilvec.report.model_card import loading_call
from distilvec.report.page_cells import Table, number
from distilvec.report.sharpness_report import note, sharpness_table

Part = Mapping[str, Any]
Figures = Sequence[Part]

LOADING = """{imported}

student = {call}("student")  # the folder beside this page
queries = student.encode_query(["a text to search for"])
documents = student.encode_document(["a text", "another one"])
print(student.similarity(queries, documents))
"""
PREDICTING = """from distilvec import predict

print(predict("student", texts))  # labels or scores; pairs of texts are tuples
"""


@dataclass(frozen=True)
class Block:
    """A piece of a section. `kind` says how the template shows `content`; `title` is a subheading, a summary or a label.

    Kinds: text, list, code, table, figures, facts (term: description), problems, details (blocks behind a summary), heading,
    rankings (lists of found documents side by side).
    """

    kind: str
    content: Any
    title: str = ""


@dataclass(frozen=True)
class Section:
    """A section of the page; `name` is its anchor."""

    name: str
    title: str
    blocks: Sequence[Block]


def report_sections(report: Part, figures: Figures) -> list[Section]:
    """The sections of a run's page in reading order; those without anything to show are left out."""
    record = report.get("record") or {}
    shown = {
        name: [figure for figure in figures if _home(figure["name"]) == name]
        for name in ("scores", *_HOMES.values(), "pictures")
    }
    found = [
        Section("failures", "What failed", _failures(report.get("failures") or ())),
        Section("warnings", "Noticed in training", _warnings(report.get("warnings") or ())),
        Section("task", "The task", tables_of(page_tables.task_table(report.get("supervised") or {}))),
        Section("use", "Use the student", _use(record)),
        Section("scores", "Scores", _scores(report, shown["scores"])),
        Section("domains", "In and out of domain", tables_of(page_tables.domain_table(report.get("averages") or {}))),
        Section("rankings", "Search results side by side", _rankings(report.get("agreement") or {})),
        Section(
            "compression",
            "Fewer dimensions, fewer bits",
            _compression(report.get("compression") or {}, shown["compression"]),
        ),
        Section("margin", "Robustness margin", _margin(report.get("margin") or {}, shown["margin"])),
        Section("speed", "Speed and size", _speed(report.get("speed") or {}, shown["speed"])),
        Section("vocabulary", "Vocabulary", _vocabulary(report.get("vocabulary") or {}, shown["vocabulary"])),
        Section("experts", "Experts", _experts(report, shown["experts"])),
        Section("pictures", "Pictures of what was learnt", pictures(shown["pictures"])),
        Section("training", "Training", _training(report.get("history") or (), record, shown["training"])),
        Section("sharpness", "Sharpness", _sharpness(report.get("sharpness") or {}, shown["sharpness"])),
        Section("recipe", "Recipe", [Block("code", report["recipe"], "recipe")] if report.get("recipe") else []),
        Section("provenance", "Provenance", _provenance(report, record)),
    ]
    return [section for section in found if section.blocks]


def comparison_sections(comparison: Part, figures: Figures) -> list[Section]:
    """The sections of a comparison's page."""
    board = page_tables.leaderboard_table(comparison)
    differences = page_tables.differences_table(comparison.get("differences") or ())
    notes = [Block("list", comparison["notes"])] if comparison.get("notes") else []
    found = [
        Section("runs", "Leaderboard", tables_of(board)),
        Section("figures", "Figures", pictures(figures)),
        Section("differences", "Differences", tables_of(differences)),
        Section("notes", "Notes", notes),
    ]
    return [section for section in found if section.blocks]


def tables_of(*tables: Table | None) -> list[Block]:
    """The tables that have rows."""
    return [Block("table", table) for table in tables if table is not None and table.rows]


def pictures(figures: Figures) -> list[Block]:
    """Figures in one grid."""
    return [Block("figures", figures)] if figures else []


def folded(summary: str, *tables: Table | None) -> list[Block]:
    """Tables behind a summary."""
    return [Block("details", blocks, summary)] if (blocks := tables_of(*tables)) else []


_HOMES = {name: name for name in ("compression", "margin", "speed", "training", "sharpness", "experts", "vocabulary")}


def _home(name: str) -> str:
    """The section of a figure: `margin` and `margin_stsb` stand in the margin's; pictures is for what has no section."""
    return next((home for start, home in {"scores": "scores", **_HOMES}.items() if name.startswith(start)), "pictures")


def _failures(failures: Sequence[Part]) -> list[Block]:
    return [Block("problems", failures)] if failures else []


def _warnings(warnings: Sequence[Part]) -> list[Block]:
    return [Block("list", [f"{line['warning']} (step {line['step']:,})" for line in warnings])] if warnings else []


def _use(record: Part) -> list[Block]:
    if not record.get("student"):
        return []
    labelled = [Block("code", PREDICTING)] if record.get("supervised") else []
    imported, call = loading_call(record["student"])
    blocks = [*labelled, Block("code", LOADING.format(imported=imported, call=call), "snippet")]
    teacher = (record.get("teacher") or {}).get("name")
    if record.get("teacher_compatible"):
        text = f"Its vectors lie where those of {teacher or 'the teacher'} lie: "
        text += "embed queries with the student and search documents that the teacher embedded."
        blocks.insert(0, Block("text", text))
    steps = [
        "distilvec evaluate student --suite YOUR-SUITE.yaml",
        f"distilvec speed {shlex.quote(teacher or 'TEACHER')} student",
        "distilvec compare THIS-RUN ANOTHER-RUN --out comparison.html",
    ]
    return [*blocks, Block("text", "Next, from the run's folder:"), Block("code", "\n".join(steps) + "\n", "commands")]


def _scores(report: Part, figures: Figures) -> list[Block]:
    scores = {name: column for name, column in (report.get("scores") or {}).items() if column}
    if not scores:
        return []
    intervals = report.get("intervals") or {}
    blocks = tables_of(page_tables.scores_table(scores, intervals))
    if any(intervals.values()):
        text = "Changes are in points against the teacher; below them the 95 % interval of a paired bootstrap over the test rows. "
        blocks.append(
            Block("text", text + "* p < 0.05, ** p < 0.01, *** p < 0.001; without a star the change may be chance.")
        )
    if "asymmetric" in scores:
        blocks.append(Block("text", "Asymmetric: queries embedded by the student, documents by the teacher."))
    warnings = {
        f"{task}, {column}: {warning}": None
        for column, found in page_tables.by_task(scores).items()
        for task, score in found.items()
        for warning in score.get("warnings") or ()
    }
    blocks += (
        [Block("details", [Block("list", list(warnings))], f"Remarks on tasks ({len(warnings)})")] if warnings else []
    )
    return [*blocks, *pictures(figures), *folded("Every metric", page_tables.metrics_table(scores))]


def _rankings(agreement: Part) -> list[Block]:
    blocks = tables_of(page_tables.agreement_table(agreement))
    for task, part in agreement.items():
        if examples := part.get("examples"):
            blocks.append(Block("heading", f"Sample queries of {task}"))
            blocks += [Block("rankings", _ranking(example["columns"]), example["query"]) for example in examples]
    return blocks


def _ranking(columns: Part) -> dict[str, list[dict[str, Any]]]:
    """The lists with, under `place`, where the teacher has the document."""
    places = {entry["id"]: entry["rank"] for entry in columns.get("teacher") or ()}
    found = {}
    for name in [
        *(name for name in page_tables.COLUMNS if name in columns),
        *(name for name in columns if name not in page_tables.COLUMNS),
    ]:
        compared = name != "teacher" and bool(places)
        found[name] = [{**entry, "place": _place(entry, places) if compared else ""} for entry in columns[name]]
    return found


def _place(entry: Part, places: Mapping[str, int]) -> str:
    if entry["id"] not in places:
        return f"not among the teacher's {len(places)}"
    return "as the teacher" if places[entry["id"]] == entry["rank"] else f"teacher: {places[entry['id']]}"


def _compression(compression: Part, figures: Figures) -> list[Block]:
    tables = page_tables.compression_tables(compression) if compression.get("rows") else []
    return [*tables_of(*tables[:1]), *pictures(figures), *folded("Task by task", *tables[1:])]


def _margin(margin: Part, figures: Figures) -> list[Block]:
    fit = (margin.get("fits") or {}).get("average") or {}
    blocks = []
    if fit:
        text = "The margin was not reached: at every distance measured, the mean score can be told from the teacher's."
        if fit.get("margin") is not None:
            text = f"Below a distance of {number(fit['margin'], 3)} the mean score cannot be told from the teacher's."
        blocks.append(Block("text", text))
    tables = {table.name: table for table in page_tables.margin_tables(margin)}
    fits, points = tables.get("margin-table"), tables.get("checkpoint-table")
    return [*blocks, *pictures(figures), *tables_of(fits), *folded("The checkpoints", points)]


def _speed(speed: Part, figures: Figures) -> list[Block]:
    blocks = []
    ratio = {role: value for role, value in (speed.get("ratio") or {}).items() if value is not None}
    if ratio:
        shares = " and ".join(f"{number(value, 1)} times as fast on a {role}" for role, value in ratio.items())
        blocks.append(Block("text", f"The student is {shares} as the teacher."))
    if speed.get("models"):
        blocks += tables_of(page_tables.models_table(speed["models"]))
    timings = page_tables.timings_table(speed)
    machine = info({"machine": speed.get("machine")}) if speed.get("machine") else []
    machine += [Block("list", speed["notes"])] if speed.get("notes") else []
    return [*blocks, *pictures(figures), *folded(f"Every timing ({len(timings.rows)})", timings), *machine]


def _vocabulary(vocabulary: Part, figures: Figures) -> list[Block]:
    if not vocabulary.get("languages"):
        return []
    found = vocabulary_report.tables(vocabulary)
    shown = tables_of(found.get("lengths"), found.get("parameters"))
    rest = folded("The vocabularies, and tokens that are not known", found.get("vocabulary"), found.get("shares"))
    return [Block("text", vocabulary_report.note(vocabulary)), *pictures(figures), *shown, *rest]


def _experts(report: Part, figures: Figures) -> list[Block]:
    experts, names = report.get("experts") or {}, expert_figures.expert_names(report)
    tables = [expert_figures.gates_table(experts, names)] if experts.get("groups") else []
    return [*pictures(figures), *folded("Gates, group by group", *tables)]


def _training(history: Sequence[Part], record: Part, figures: Figures) -> list[Block]:
    training = dict(record.get("training") or {})
    stages = tables_of(page_tables.stages_table(training.pop("stages", ())))
    settings = info({**training, **(record.get("metrics") or {})})
    kept = [Block("text", text)] if (text := expert_figures.describe_kept_tokens(history)) else []
    return [
        *pictures(figures),
        *kept,
        *stages,
        *settings,
        *folded("Every evaluation", page_tables.history_table(history)),
    ]


def _sharpness(sharpness: Part, figures: Figures) -> list[Block]:
    if not sharpness.get("points"):
        return []
    return [Block("text", note(sharpness)), *pictures(figures), *tables_of(sharpness_table(sharpness))]


def _provenance(report: Part, record: Part) -> list[Block]:
    teacher, student, method, data = (record.get(part) or {} for part in ("teacher", "student", "method", "data"))
    skipped = ("citation", "sources")
    further = {f"Teacher {number}": part for number, part in enumerate(record.get("more_teachers") or (), 2)}
    groups = {
        "Teacher": teacher,
        **further,
        "Student": student,
        "Method": method,
        "Data": data,
        "Versions": record.get("versions") or {},
    }
    blocks = []
    for title, part in groups.items():
        if found := info({key: value for key, value in part.items() if key not in skipped}):
            blocks += [Block("heading", title), *found]
        if title == "Data":
            blocks += tables_of(page_tables.sources_table(data.get("sources") or ()))
        if title == "Method" and method.get("citation"):
            blocks.append(Block("code", method["citation"], "citation"))
    about = info(
        {"fingerprint": report.get("fingerprint"), "created": report.get("created"), "format": report.get("format")}
    )
    return [*blocks, *([Block("heading", "This report"), *about] if about else [])]


def info(part: Part) -> list[Block]:
    """Names and values as they are; empty ones are left out."""
    shown = {key.replace("_", " "): _plain(value) for key, value in part.items() if value not in (None, "", {}, [])}
    return [Block("facts", shown)] if shown else []


def _plain(value: Any) -> str:
    """A value in words: 25,600, 0.0001, yes, a: 1, b: 2."""
    match value:
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:.6g}"
        case Mapping():
            return ", ".join(
                f"{key.replace('_', ' ')}: {_plain(inner)}"
                for key, inner in value.items()
                if inner not in (None, "", {}, [])
            )
        case list() | tuple():
            return ", ".join(_plain(inner) for inner in value)
        case str():
            return value
    return json.dumps(value)
