"""What the shootouts have in common: members run one after another, their rows written as they come, resumed by their
marks.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from scipy.stats import spearmanr
from scipy.stats import t as student_t

from distilvec.config import recipe as recipes
from distilvec.config.schema import Recipe
from distilvec.core.errors import DistilvecError
from distilvec.core.files import read_json, write_json
from distilvec.core.method_file import method_code
from distilvec.pipeline.finished_run import FinishedRun
from distilvec.pipeline.run import run as run_recipe
from distilvec.verbs.run.sweep import Member, run_sweep

Rows = list[dict[str, Any]]
Seeds = Mapping[int, float]  # a figure by seed
LISTED = 5  # pairs named in words
PAIRED = "Brackets: 95% confidence interval of the mean difference, paired by seed (Student's t, three seeds or more)."


def last_values(overrides: Sequence[str]) -> list[str]:
    """Return texts key=value with the last one of each key: what is said for one member wins over what all have."""
    values = {text.partition("=")[0]: text for text in overrides}
    return list(values.values())


def run_members(
    members: Sequence[Member],
    out: Path,
    path: Path,
    info: dict[str, Any],
    rows_of: Callable[[Recipe, FinishedRun], Rows],
) -> Any:
    """Run every member that is not done; gives what `path` then holds: `facts` and "rows", each with the mark of its
    member.

    A member whose mark is in `path` is not run again, whether or not its folder is still there. Rows of other
    members stay (those of these members with other settings go), so that several processes may fill one file, each with
    members of its own.
    """
    wanted = {mark_of(member.recipe) for member in members}
    names = {member.name.split(",")[0] for member in members}
    report: dict[str, Any] = {**info, "rows": []}
    path.parent.mkdir(parents=True, exist_ok=True)

    def enqueue() -> None:
        """What stands in the file by now, written by an earlier or by another process."""
        written = read_rows(path) if path.exists() else {"rows": []}
        for name, value in info.items():
            if isinstance(value, dict):
                report[name] = {**written.get(name, {}), **value}
        own = {row["mark"] for row in report["rows"]}
        kept = [row for row in written["rows"] if row["mark"] in wanted or row["run"] not in names]
        report["rows"] += [row for row in kept if row["mark"] not in own]

    enqueue()

    def run(chosen: Recipe, folder: Path) -> None:
        mark = mark_of(chosen)
        if any(row["mark"] == mark for row in report["rows"]):
            return
        result = run_recipe(chosen, folder)
        assert result is not None, "a shootout runs in one process"
        enqueue()
        report["rows"] += [{"run": folder.name.split(",")[0], "mark": mark, **row} for row in rows_of(chosen, result)]
        write_json(path, report)

    run_sweep(members, out, run, lambda name, done, total: print(f"[{done}/{total}] {name}", flush=True))
    return report


def read_rows(path: Path) -> dict[str, Any]:
    """A shootout's file; DistilvecError where it is damaged or something else."""
    fix = "Move it away to run everything again, or put back a copy of it."
    written = read_json(path, fix, sealed=False)
    rows = written.get("rows")
    if not isinstance(rows, list) or not all(isinstance(row, dict) and {"mark", "run"} <= row.keys() for row in rows):
        raise DistilvecError(f"{path} holds no list of rows with run and mark.", fix, key=path.name)
    return written


def mark_of(recipe: Recipe) -> str:
    """Changes with what is trained and scored (a method's file, too), not with the project's folder or new keys that
    keep their default.
    """
    chosen = {"teacher", "more_teachers", "student", "corpus", "task", "method", "train", "stages"}
    parts = recipe.model_dump(mode="json", include=chosen, exclude_defaults=True)
    if (
        recipe.corpus is not None and recipe.corpus.exclude_evaluation == "documents"
    ):  # was the default when figures were taken
        del parts["corpus"]["exclude_evaluation"]
    suite, names = (
        recipe.evaluation.suite,
        [stage.method.name for stage in (recipe, *recipes.stage_recipes(recipe).values())],
    )
    codes = [code for code in map(method_code, names) if code is not None]
    columns = sorted({*recipe.evaluation.columns} - {"projected"})  # of the same training: earlier rows stay valid
    return recipes.fingerprint(_without_folders(parts), suite and suite.name, columns, *codes)


def _without_folders(value: Any) -> Any:
    """The same tree, absolute paths cut to their last two names."""
    if isinstance(value, dict):
        return {key: _without_folders(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_without_folders(part) for part in value]
    return "/".join(Path(value).parts[-2:]) if isinstance(value, str) and value.startswith("/") else value


def spread(values: Sequence[float], bold: bool = False) -> str:
    """A cell: mean and, where there are several values, their deviation (of a sample)."""
    text = f"**{statistics.mean(values):.2f}**" if bold else f"{statistics.mean(values):.2f}"
    return f"{text} ± {deviation(values):.2f}" if len(values) > 1 else text


@dataclass(frozen=True)
class Gap:
    """A mean difference, and its 95% interval if that is known."""

    mean: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        """The difference as a cell of a table."""
        return f"{self.mean:+.2f}" if self.low is None else f"{self.mean:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"


def gap_between_seeds(ours: Seeds, theirs: Seeds) -> Gap | None:
    """Return the mean difference over the seeds that both have, with an interval from three seeds on."""
    gaps = [ours[seed] - theirs[seed] for seed in ours.keys() & theirs.keys()]
    if not gaps:
        return None
    if len(gaps) < 3:
        return Gap(statistics.mean(gaps))
    # By hand: scipy.stats.ttest_1samp warns where all gaps are equal
    half = float(student_t.ppf(0.975, len(gaps) - 1)) * statistics.stdev(gaps) / math.sqrt(len(gaps))
    mean = statistics.mean(gaps)
    return Gap(mean, mean - half, mean + half)


def difference(ours: Seeds, theirs: Seeds) -> str:
    """A cell: the mean difference over the seeds that both have, with its 95% interval from three seeds on."""
    return str(gap_between_seeds(ours, theirs) or "")


def deviation(values: Sequence[float]) -> float:
    """The standard deviation of a sample; 0 for one value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def agreement(theirs: Mapping[str, float], ours: Mapping[str, Sequence[float]]) -> str:
    """In words: the rank correlation with the paper's order, and the pairs in reverse order, the clearest by name."""
    names = [name for name in theirs if name in ours]
    if len(names) < 2:
        return "Too few rows to compare with the paper's order."
    means = {name: statistics.mean(ours[name]) for name in names}
    pairs = list(combinations(sorted(names, key=lambda name: theirs[name], reverse=True), 2))
    turned = [(upper, lower) for upper, lower in pairs if means[upper] <= means[lower]]
    text = f"Pairs of rows in the paper's order: {len(pairs) - len(turned)} of {len(pairs)}"
    if len(names) > 2:
        rho = spearmanr([means[name] for name in names], [theirs[name] for name in names])[0]
        text += f" (Spearman's rho {rho:.2f})"
    if not turned:
        return text + "."
    gaps = {pair: means[pair[1]] - means[pair[0]] for pair in turned}
    clear = sorted(
        (pair for pair in turned if gaps[pair] >= max(map(deviation, (ours[name] for name in pair)))),
        key=lambda pair: gaps[pair],
        reverse=True,
    )
    listed = [
        f"{lower} above {upper} (by {gaps[upper, lower]:.2f}; in the paper {theirs[upper] - theirs[lower]:.2f} below)"
        for upper, lower in clear[:LISTED]
    ]
    rest = [f"{len(clear) - LISTED} more"] if len(clear) > LISTED else []
    within = len(turned) - len(clear)
    text += f"; reversed by less than the standard deviation over seeds: {within}" if within else ""
    return f"{text}. Reversed: {'; '.join(listed + rest)}." if clear else f"{text}."
