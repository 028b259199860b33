"""Where the minutes of a run go: caching, training, scores, speed and other parts, for one seed and for a second one.

    python -m benchmarks.phases --json FILE [--source FOLDER] [--teacher MODEL] [--texts 2000] [--suite FILE]
        [KEY=VALUE...]
    python -m benchmarks.phases --json FILE --against FOLDER --rounds 3 evaluation.suite=null    two versions in turns

Runs `distilvec run` in a process of its own and watches its folder, so that any version can be measured: `--source` is
the `src` folder of another checkout, KEY=VALUE a change of the recipe that it needs. For each phase: seconds, seconds
of processor time (with those of processes that it starts, such as the measurement of memory) and the peak of the
process's own memory (RssAnon, MB). On a busy machine compare processor time. A second run with another seed shows what
is shared. With `--against`, the `src` of an earlier version, both versions run in turns, each round with a cache of its
own, and the figures are the medians of the rounds and the ratio of `--source` to it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import yaml

from benchmarks.stopwatch import machine
from benchmarks.texts import sample_texts

ROOT = Path(__file__).parents[1]
INTERVAL = 0.1  # seconds between two looks
AFTER_PARTS = "page"
Phases = dict[str, dict[str, float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--source", type=Path, default=ROOT / "src", help="of the version to measure")
    parser.add_argument("--against", type=Path, help="src of an earlier version, which runs in turns with --source")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--teacher", default="all-MiniLM-L6-v2")
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--suite", type=Path, default=ROOT / "recipes" / "suites" / "cranfield.yaml")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="changes of the recipe")
    arguments = parser.parse_args()
    if arguments.against:
        compare_versions(arguments)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        recipe = write_recipe(path, arguments.teacher, arguments.texts, arguments.suite, arguments.epochs)
        runs = [
            measure(arguments.source.resolve(), recipe, path / f"seed-{seed}", seed, arguments.changes)
            for seed in range(arguments.seeds)
        ]
    report = {"texts": arguments.texts, "teacher": arguments.teacher, "machine": machine(), "seeds": runs}
    arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    for seed, phases in enumerate(runs):
        for name, figures in phases.items():
            print(f"seed {seed}  {name:<16} {figures}")
        print(f"seed {seed}  {'all':<16} {total(phases)}", flush=True)


def compare_versions(arguments: argparse.Namespace) -> None:
    """Run both versions in turns, and write and print medians and ratios by phase."""
    sources = {"before": arguments.against.resolve(), "after": arguments.source.resolve()}
    rounds: dict[str, list[Phases]] = {name: [] for name in sources}
    for number in range(arguments.rounds):
        order = list(sources) if number % 2 == 0 else list(reversed(sources))
        for name in order:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder)
                recipe = write_recipe(path, arguments.teacher, arguments.texts, arguments.suite, arguments.epochs)
                rounds[name].append(measure(sources[name], recipe, path / "run", 0, arguments.changes))
    for phases in (*rounds["before"], *rounds["after"]):
        phases["whole run"] = total(phases)
    table: dict[str, dict[str, dict[str, float]]] = {}
    for phase in rounds["before"][0]:  # an earlier version may lack a phase, whose time is then in the next one
        if any(phase not in phases for phases in (*rounds["before"], *rounds["after"])):
            continue
        table[phase] = {}
        for figure in ("seconds", "processor_seconds", "peak_mb"):
            before = statistics.median(phases[phase][figure] for phases in rounds["before"])
            after = statistics.median(phases[phase][figure] for phases in rounds["after"])
            ratio = round(after / before, 3) if before else 0.0
            table[phase][figure] = {"before": before, "after": after, "ratio": ratio}
        print(f"{phase:<16} {table[phase]}", flush=True)
    report = {"texts": arguments.texts, "teacher": arguments.teacher, "machine": machine(), "rounds": arguments.rounds}
    arguments.json.write_text(json.dumps({**report, "phases": table}, indent=1) + "\n", encoding="utf-8")


def write_recipe(folder: Path, teacher: str, count: int, suite: Path, epochs: int) -> Path:
    """A recipe with defaults for everything but the sizes: the first three layers of the teacher as the student."""
    texts, _ = sample_texts(count)
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    recipe = {
        "name": "phases",
        "teacher": {"model": teacher},
        "student": {"model": "teacher", "layers": 3},
        "cache": {"root": str(folder / "cache")},
        "corpus": {"sources": [{"path": str(folder / "texts.jsonl")}]},
        "method": {"name": "redact"},
        "train": {"epochs": epochs, "learning_rate": 3e-4},
        "evaluation": {"suite": str(suite.resolve())},
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return path


def measure(source: Path, recipe: Path, run: Path, seed: int, changes: list[str]) -> Phases:
    """Run the recipe and return its phases, in order."""
    command = [sys.executable, "-m", "distilvec", "run", str(recipe), f"train.seed={seed}", *changes, "--out", str(run)]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    with (run.parent / "log.txt").open("ab") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        watch = Watch(psutil.Process(process.pid))
        while process.poll() is None:
            time.sleep(INTERVAL)
            watch.look(finished_phases(run))
    if process.returncode:
        raise SystemExit((run.parent / "log.txt").read_text(encoding="utf-8", errors="replace")[-3000:])
    watch.end(AFTER_PARTS)
    return watch.phases


def finished_phases(run: Path) -> list[str]:
    """Phases that have left their file or their key in the run's folder, in order."""
    finished = []
    if path_in(run, "metrics.jsonl").exists():
        finished.append("caching")
    if path_in(run, "training.json").exists():
        finished.append("training")
    try:
        report = json.loads(path_in(run, "report.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return finished
    return finished + report.get("measured", [])


def path_in(run: Path, name: str) -> Path:
    """Return the path of a file of a run folder, whose place depends on the version."""
    return run / "details" / name if (run / "details").is_dir() else run / name


class Watch:
    """Ends a phase when it is seen to be finished."""

    def __init__(self, process: psutil.Process) -> None:
        self.process, self.phases = process, Phases()
        self.began = self.seen = time.perf_counter()
        self.processor = self.processor_seen = 0.0
        self.peak = 0.0

    def look(self, finished: list[str]) -> None:
        """Note memory and processor time; end the phases that are finished."""
        try:
            times = self.process.cpu_times()
            status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        except (psutil.Error, OSError):
            return
        self.processor = sum(times[:4])  # user and system, of the process and of those that it has waited for
        lines = [line for line in status.splitlines() if line.startswith("RssAnon")]
        if lines:
            self.peak = max(self.peak, int(lines[0].split()[1]) / 1024)
        for name in finished:
            if name not in self.phases:
                self.end(name)

    def end(self, name: str) -> None:
        """End a phase now."""
        now = time.perf_counter()
        self.phases[name] = {
            "seconds": round(now - self.seen, 1),
            "processor_seconds": round(self.processor - self.processor_seen, 1),
            "peak_mb": round(self.peak),
        }
        self.seen, self.processor_seen, self.peak = now, self.processor, 0.0


def total(phases: Phases) -> dict[str, Any]:
    """Sums over phases, and the highest peak."""
    return {
        "seconds": round(sum(figures["seconds"] for figures in phases.values()), 1),
        "processor_seconds": round(sum(figures["processor_seconds"] for figures in phases.values()), 1),
        "peak_mb": max(figures["peak_mb"] for figures in phases.values()),
    }


if __name__ == "__main__":
    main()
