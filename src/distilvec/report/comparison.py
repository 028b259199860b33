"""A comparison of runs (verbs/compare/compare.py): its values, leaderboard, differences, figures, page, flat table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from distilvec.core.errors import about
from distilvec.core.escape import one_line, visible_tree
from distilvec.core.files import write_file
from distilvec.core.run_folder import RunFolder
from distilvec.evaluation.aggregate import AVERAGE, AVERAGES, RETRIEVAL
from distilvec.report.figures import Guide, LevelLine, LineLook, LinePoint, can_draw, lines_figure, write_figure
from distilvec.report.html import Draw, render
from distilvec.report.json_values import from_json, to_json
from distilvec.report.scores import marked_change
from distilvec.report.section import Block, Figure, make_section
from distilvec.report.tables import (
    Cell,
    Table,
    html_list,
    make_table,
    number,
    number_cell,
    to_frame,
    to_html,
    to_text,
    words,
)
from distilvec.report.values import Verdict
from distilvec.report.verdicts import Lead, leader_sentence

MOST_TASKS = 3  # in the leaderboard of a page
MOST_DIGITS = 4  # of a small cost
PLAIN = (
    "parameters", "megabytes", "milliseconds", "texts_per_second", "minutes", "texts", "steps", "distance",
    "distance_std", "overlap_among", "overlap_alone",
)  # fmt: skip


@dataclass(frozen=True)
class Cost:
    """A column of costs: a field of `Row`, the digits and factor that it is shown with.

    better: 1 where more is better, -1 where less is better, 0 where neither is
    """

    title: str
    key: str
    digits: int
    factor: float
    better: int


@dataclass(frozen=True)
class Axis:
    """The x axis of a figure: a factor and a label for a field of `Row`; `better` as in `Cost`."""

    factor: float
    label: str
    better: int


COSTS = (
    Cost("parameters (M)", "parameters", 1, 1e-6, -1),
    Cost("MB", "megabytes", 1, 1.0, -1),
    Cost("ms a query", "milliseconds", 2, 1.0, -1),
    Cost("texts/s", "texts_per_second", 0, 1.0, 1),
    Cost("minutes", "minutes", 1, 1.0, -1),
    Cost("steps", "steps", 0, 1.0, 0),
    Cost("distance", "distance", 4, 1.0, -1),
)
AXES = {
    "parameters": Axis(1e-6, "parameters, millions", -1),
    "megabytes": Axis(1.0, "MB of fp32 weights", -1),
    "milliseconds": Axis(1.0, "milliseconds, one query on the CPU", -1),
    "texts_per_second": Axis(1.0, "texts per second", 1),
}

Number = int | float | None
OVERLAPS = {"overlap_among": "overlap@10 among the teacher's", "overlap_alone": "overlap@10 alone"}


# -- values ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MeanOverlap:
    """overlap@10 of a row: the mean over seeds, of its interval as well; the deviation is None for a single seed."""

    mean: float
    low: float
    high: float
    std: float | None = None

    @property
    def interval(self) -> str:
        """The interval as text."""
        return f"[{number(self.low)}, {number(self.high)}]"


@dataclass
class Row:
    """A run, or the seeds of one, or a baseline, which has no seeds; None where a number is not known.

    mean, std: points by task and average; the deviation over seeds is None for a single seed
    retention: percent of the run's own teacher, by task and average; `asymmetric`: with the teacher's documents
    milliseconds: of one query of 16 tokens
    minutes, texts, steps: of training one seed
    marks: stars of significant differences from the reference, by task and average
    distance: to the teacher on validation texts
    overlap_among, overlap_alone: of held-out texts, among the teacher's vectors and with the student's own
    """

    run: str
    method: str | None = None
    seeds: int | None = 1
    mean: dict[str, float] = field(default_factory=dict)
    std: dict[str, float | None] = field(default_factory=dict)
    retention: dict[str, float | None] = field(default_factory=dict)
    asymmetric: dict[str, float | None] = field(default_factory=dict)
    parameters: Number = None
    megabytes: Number = None
    milliseconds: Number = None
    texts_per_second: Number = None
    minutes: Number = None
    texts: Number = None
    steps: Number = None
    marks: dict[str, str] = field(default_factory=dict)
    distance: Number = None
    distance_std: Number = None
    overlap_among: MeanOverlap | None = None
    overlap_alone: MeanOverlap | None = None
    folders: list[str] = field(default_factory=list)

    @property
    def overlap(self) -> MeanOverlap | None:
        """The overlap@10 that rows are ranked by: alone, or of a student of an index among its vectors."""
        return self.overlap_alone or self.overlap_among


@dataclass
class Difference:
    """A row less the reference on a task or average, in points; without samples there is no interval and no p-value.

    differing: test rows on which the two differ
    """

    run: Annotated[str, Field(alias="a")]
    reference: Annotated[str, Field(alias="b")]
    task: str
    difference: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    mark: str = ""
    differing: int | None = None


@dataclass
class Comparison:
    """A comparison of runs: rows (best average first), the shared tasks, differences from the reference, leads, notes.

    column: the model that is compared
    leads: by task and average
    baselines: teachers, and students before training, where they were scored on every shared task; nothing is tested
        against them
    """

    rows: list[Row]
    baselines: list[Row] = field(default_factory=list)
    tasks: list[str] = field(default_factory=list)
    reference: str | None = None
    column: str = "student"
    differences: list[Difference] = field(default_factory=list)
    leads: dict[str, Lead] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def averages(self) -> list[str]:
        """The averages that some row has; the plain one always."""
        return [name for name in AVERAGES if name == AVERAGE or any(row.mean.get(name) for row in self.rows)]

    @property
    def has_average(self) -> bool:
        """Whether rows have an average: tasks that are made of an index itself count in none."""
        return any(AVERAGE in row.mean for row in self.rows)

    @property
    def verdict(self) -> str:
        """Which run leads on average, or that none does, and why; without an average by overlap@10."""
        if not self.has_average:
            return _overlap_leader(self.rows)
        return leader_sentence(self.leads.get(AVERAGE), len(self.rows))

    def wins(self, row: Row, task: str) -> bool:
        """Whether a row is better than every other one on a task or average, outside the interval."""
        lead = self.leads.get(task)
        return lead is not None and lead.clear and lead.run == row.run

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as plain data."""
        return to_json(self, defaults=True)

    def to_dataframe(self) -> Any:
        """Return a pandas DataFrame: one row per run; a column for every metric, deviation, significance and cost."""
        header, *rows = flat_rows(self)
        return to_frame(header, rows).astype({"reference": bool})

    def visible(self) -> Comparison:
        """Return the comparison with hidden characters of all texts written out, for pages and pictures."""
        return from_json(Comparison, visible_tree(to_json(self)))

    def __repr__(self) -> str:
        return comparison_text(self)

    def _repr_html_(self) -> str:
        return comparison_html(self)


def _overlap_leader(rows: Sequence[Row]) -> str:
    """Say which row finds most; no winner where its interval meets the next row's."""
    ranked = [(row.run, row.overlap) for row in rows if row.overlap is not None]
    ranked.sort(key=lambda pair: -pair[1].mean)
    if len(ranked) < 2:
        return ""
    (first, best), (second, next_best) = ranked[:2]
    where = "alone" if any(row.overlap_alone is not None for row in rows) else "among the index's vectors"
    numbers = (
        f"{first} {number(best.mean)} {best.interval}, {second} {number(next_best.mean)} {next_best.interval} "
        f"(overlap@10 {where})"
    )
    if best.low <= next_best.high:
        return f"No winner yet: the intervals meet. {numbers}."
    return f"{first} finds most of its teacher's ten nearest: {numbers}."


# -- tables ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BoardColumn:
    """A column of the leaderboard, the cells of the baselines in `foot`; a task may have the title of another column.

    kind: "name", "seeds", "task", "average", "overlap", or "cost"
    """

    kind: str
    title: str
    cells: list[Cell]
    foot: list[Cell]


def leaderboard(comparison: Comparison) -> Table:
    """Return one row per run: mean, stars against the reference, ± standard deviation over seeds; baselines below.

    A score is bold if its lead over every other run is outside the interval, a cost if it is the best.
    """
    return _leaderboard_table("leaderboard", _board_caption(comparison), _board_columns(comparison))


def comparison_tables(comparison: Comparison) -> list[Table]:
    """Return the leaderboard in tables that fit a page: scores, the scores by task if there are many, and costs."""
    columns = _board_columns(comparison)
    many = len(comparison.tasks) > MOST_TASKS
    runs = [column for column in columns if column.title == "Run" and column.kind == "name"]
    tasks = [column for column in columns if column.kind == "task"]
    costs = [column for column in columns if column.kind == "cost"]
    scores = [column for column in columns if column.kind != "cost" and not (many and column.kind == "task")]
    tables = [_leaderboard_table("leaderboard", _board_caption(comparison), scores)]
    if many:
        tables.append(_leaderboard_table("task-table", "Scores by task", [*runs, *tasks]))
    if costs:
        tables.append(_leaderboard_table("cost-table", "Size, speed and training", [*runs, *costs]))
    return tables


def _board_caption(comparison: Comparison) -> str:
    return f"Runs, best {'average' if comparison.has_average else 'overlap@10'} first"


def _leaderboard_table(name: str, caption: str, columns: Sequence[BoardColumn]) -> Table:
    """Return a table of columns, those of names first."""
    header = [column.title for column in columns]
    body = list(zip(*(column.cells for column in columns), strict=True))
    foot = list(zip(*(column.foot for column in columns), strict=True))
    names = sum(column.kind == "name" for column in columns)
    return Table(name, caption, header, body, foot, words=names)


def _board_columns(comparison: Comparison) -> list[BoardColumn]:
    """Return the columns of the leaderboard: what a row is, and every number that some run has."""
    body = _cells(comparison, comparison.rows, is_ranked=True)
    if all(row.method == row.run for row in comparison.rows):
        del body["name", "Method"]
    foot = _cells(comparison, comparison.baselines, is_ranked=False)
    columns = []
    for (kind, title), cells in body.items():
        if kind in ("name", "seeds") or any(cell.value is not None for cell in cells):
            columns.append(BoardColumn(kind, title, cells, foot[kind, title]))
    return columns


def _cells(comparison: Comparison, rows: Sequence[Row], is_ranked: bool) -> dict[tuple[str, str], list[Cell]]:
    """Return the cells of all columns by kind and title."""
    titles = []
    for row in rows:
        is_reference = len(comparison.rows) > 1 and row.run == comparison.reference
        titles.append(f"{row.run} (reference)" if is_reference else row.run)
    columns: dict[tuple[str, str], list[Cell]] = {
        ("name", "Run"): words(*titles),
        ("name", "Method"): words(*(row.method for row in rows)),
        ("seeds", "Seeds"): [number_cell(row.seeds, 0) for row in rows],
    }
    names = [*(("task", task) for task in comparison.tasks), *(("average", name) for name in comparison.averages)]
    for kind, name in names:
        cells = []
        for row in rows:
            cell = _mean_cell(row.mean.get(name), row.std.get(name), 2, comparison.wins(row, name))
            stars = row.marks.get(name, "")
            cells.append(Cell(cell.text + stars, cell.value, cell.note, cell.kind))
        columns[kind, name] = cells
    for average, title in ((AVERAGE, "% of teacher"), (RETRIEVAL, "retrieval, %")):
        columns["average", title] = [
            _mean_cell(row.retention.get(average), None, 1, comparison.wins(row, average)) for row in rows
        ]
    for average, title in ((AVERAGE, "% of teacher"), (RETRIEVAL, "retrieval, %")):
        columns["average", f"{title}, asymmetric"] = [_mean_cell(row.asymmetric.get(average), None, 1) for row in rows]
    for key, title in OVERLAPS.items():
        columns["overlap", title] = [_overlap_cell(getattr(row, key)) for row in rows]
    for cost in COSTS:
        columns["cost", cost.title] = _cost_cells(rows, cost, is_ranked)
    return columns


def _mean_cell(value: Number, deviation: Number, digits: int, is_best: bool = False) -> Cell:
    """Return a mean over seeds with its deviation."""
    cell = number_cell(value, digits)
    note = "" if deviation is None else f"± {number(deviation, digits)}"
    return Cell(cell.text, cell.value, note, "best" if is_best else "")


def _overlap_cell(overlap: MeanOverlap | None) -> Cell:
    """Return overlap@10 with its interval, and the deviation over seeds if there are several."""
    if overlap is None:
        return number_cell(None)
    deviation = "" if overlap.std is None else f"± {number(overlap.std, 3)} "
    return Cell(number(overlap.mean), overlap.mean, f"{deviation}{overlap.interval}")


def _cost_cells(rows: Sequence[Row], cost: Cost, is_ranked: bool) -> list[Cell]:
    """Return a column of costs.

    The best of rows that are ranked is bold unless all are the same, or nothing makes a cost better.
    """
    values = [getattr(row, cost.key) for row in rows]
    known_values = [value for value in values if value is not None]
    best = None
    if cost.better and len(set(known_values)) > 1 and is_ranked:
        best = max(known_values) if cost.better > 0 else min(known_values)
    digits = _digits([cost.factor * value for value in known_values], cost.digits)
    cells = []
    for row, value in zip(rows, values, strict=True):
        deviation = row.distance_std if cost.key == "distance" else None
        scaled = None if value is None else cost.factor * value
        cells.append(_mean_cell(scaled, deviation, digits, best is not None and value == best))
    return cells


def _digits(values: Sequence[float], digits: int) -> int:
    """Return how many digits to show: enough that a value above 0 does not look like 0."""
    smallest = min((value for value in values if value), default=None)
    while smallest is not None and digits < MOST_DIGITS and round(smallest, digits) == 0:
        digits += 1
    return digits


def differences_table(comparison: Comparison) -> Table:
    """Return the differences from the reference in points, with intervals and p-values."""
    rows = []
    for difference in comparison.differences:
        bounds = None
        if difference.low is not None and difference.high is not None:
            bounds = (difference.low, difference.high)
        change = marked_change(difference.difference, bounds, difference.mark)
        names = words(difference.run, difference.reference, difference.task)
        rows.append([*names, change, _p_cell(difference.p)])
    caption = "Differences, in points, with 95% intervals and two-sided p-values"
    return Table("difference-table", caption, ["Run", "against", "Task", "difference", "p (Holm)"], rows, words=3)


def _p_cell(p: float | None) -> Cell:
    """Return a p-value; no test gives 0."""
    return number_cell(p, 3) if p is None or p >= 0.001 else Cell("<0.001", p)


# -- pages and texts -------------------------------------------------------------------------------------------------


def draw_sweep(run: RunFolder, comparison: Comparison) -> Path | None:
    """Write the comparison of a sweep's runs into its folder: comparison.html, and its figures."""
    if not can_draw(run.comparison_page.name):
        return None
    return draw_comparison(run.comparison_page, comparison, run.figures)


def draw_comparison(path: Path, comparison: Comparison, figures: Path | None = None) -> Path:
    """Write a comparison as a page at `path`, its figures in `figures`, else in `<path without ending>-figures/`."""
    draw = partial(write_figure, folder=figures or path.with_name(f"{path.stem}-figures"))
    page = render_comparison(comparison.visible(), draw)
    with about("--out", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, page)
    return path


def render_comparison(comparison: Comparison, draw: Draw) -> str:
    """Return the page of a comparison of runs."""
    rows = comparison.rows
    size = "megabytes" if all(row.megabytes for row in rows) else "parameters"
    axes = (size, "milliseconds")
    sections = {
        "runs": make_section("Leaderboard", *comparison_tables(comparison)),
        "figures": make_section("Figures", *(retention_figure(comparison, key) for key in axes)),
        "differences": make_section("Differences", differences_table(comparison)),
        "notes": make_section("Notes", Block("list", comparison.notes)),
    }
    origin = []
    if comparison.tasks:
        origin.append(f"tasks: {len(comparison.tasks)}")
    if comparison.reference and len(rows) > 1:
        origin.append(f"reference: {comparison.reference}")
    verdict = Verdict(comparison.verdict)
    return render(f"Comparison of {len(rows)} runs", origin, verdict, sections, draw)


def comparison_text(comparison: Comparison) -> str:
    """Return leaderboard, differences, verdict and notes for a terminal."""
    lines = ["\n\n".join(to_text(table) for table in comparison_tables(comparison))]
    differences = differences_table(comparison)
    if differences.rows:
        lines += ["", differences.caption, to_text(differences)]
    verdict = comparison.verdict
    if verdict:
        lines += ["", one_line(verdict)]
    lines += [f"note: {one_line(note)}" for note in comparison.notes]
    return "\n".join(lines)


def comparison_html(comparison: Comparison) -> str:
    """Return the parts of `comparison_text` as HTML."""
    tables = [*comparison_tables(comparison), differences_table(comparison)]
    verdict = comparison.verdict
    sentences = [verdict, *comparison.notes] if verdict else comparison.notes
    return "\n".join([*(to_html(table) for table in tables if table.rows), html_list(sentences)])


def flat_rows(comparison: Comparison) -> list[list[Any]]:
    """Return one row per run, header first: every number at full precision in its own column; None where unknown.

    A task whose columns would have the name of another one is called "task NAME" there.
    """
    tasks = [*comparison.tasks, *comparison.averages] if comparison.tasks else []
    header = ["run", "method", "seeds", "reference"]
    for task in tasks:
        titles = [task, f"{task} std", f"{task} mark", f"{task} % of teacher", f"{task} % of teacher, asymmetric"]
        while not {*header, *PLAIN}.isdisjoint(titles):
            titles = [f"task {title}" for title in titles]
        header += titles
    lines: list[list[Any]] = [[*header, *PLAIN]]
    for row in comparison.rows:
        line: list[Any] = [row.run, row.method, row.seeds, int(row.run == comparison.reference)]
        for task in tasks:
            line += [row.mean.get(task), row.std.get(task), row.marks.get(task)]
            line += [row.retention.get(task), row.asymmetric.get(task)]
        for key in PLAIN:
            value = getattr(row, key)
            line.append(value.mean if isinstance(value, MeanOverlap) else value)
        lines.append(line)
    return lines


# -- figures ---------------------------------------------------------------------------------------------------------


def retention_figure(comparison: Comparison, against: str) -> Figure:
    """Return the retention of each run against its size or speed, one of AXES (REDACT, figure 1)."""
    axis = AXES[against]
    points = []
    for row in comparison.rows:
        cost, retention = getattr(row, against), row.retention.get(AVERAGE)
        if cost and cost > 0 and retention is not None:
            points.append(LinePoint("", row.run, axis.factor * cost, retention))
    if len({point.x for point in points}) == 1 < len(points):
        points = []  # runs of equal cost would stand in one vertical line
    front = pareto([(point.x, point.y) for point in points], axis.better)
    records = [
        {
            "run": point.line,
            "x": point.x,
            "kept": point.y,
            "front": "yes" if (point.x, point.y) in front else "no",
        }
        for point in points
    ]
    columns = {"Run": "run", "On the Pareto front": "front", "% of teacher": ("kept", 2), axis.label: ("x", 2)}
    data = make_table(f"data-{against}", f"% of the teacher's average and {axis.label}", records, columns)
    look = LineLook(
        y="% of the teacher's average",
        log="x",
        dots=[point.line for point in points],
        guide=Guide("Pareto front", front),
        level=LevelLine("teacher", 100.0),
    )
    return lines_figure(against, f"Retention against {axis.label}", points, axis.label, data, look)


def pareto(points: Sequence[tuple[float, float]], better: int) -> list[tuple[float, float]]:
    """Return the points (x, y) that no other one beats in both; y is better upwards, x in the direction of `better`."""
    front: list[tuple[float, float]] = []
    for x, y in sorted(set(points), key=lambda point: (-better * point[0], -point[1])):
        if not front or y > front[-1][1]:
            front.append((x, y))
    return sorted(front)
