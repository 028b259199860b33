"""Processor time and memory of caching, training, evaluation and serving, by the source of two checkouts.

    git clone -q . /tmp/before && git -C /tmp/before checkout -q COMMIT
    python -m benchmarks.before_after /tmp/before . --json FILE       about ten minutes on one quiet core

The commands are those that a user types, each in a process of its own; all-MiniLM-L6-v2, 3 of its layers as the
student. The checkouts take turns, in each round the other one first. A row has the medians over rounds: seconds of the
processor (all threads and child processes) and the largest memory of the process. `ratio` is after over before.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.markdown import markdown_table
from benchmarks.serve import Sender, connected
from benchmarks.stopwatch import busy_note, machine
from benchmarks.texts import sample_texts
from distilvec.core.files import write_json

TEXTS, PAIRS, REQUESTS, STEPS = 3_000, 1_500, 1_500, 200
MODEL = "all-MiniLM-L6-v2"
RECIPE = {
    "name": "before-after",
    "teacher": {"model": MODEL},
    "student": {"model": "teacher", "layers": 3},
    "corpus": {"sources": [{"path": "texts.txt"}]},
    "method": {"name": "redact"},
    "train": {"max_steps": STEPS, "batch_size": 32, "precision": "fp32", "device": "cpu"},
    "evaluation": {"parts": []},
}


@dataclass(frozen=True)
class Cost:
    """What a command took: seconds of the processor, and the most memory of one process, in MB."""

    processor_seconds: float
    megabytes: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    sides = {"before": arguments.before.resolve(), "after": arguments.after.resolve()}
    costs: dict[str, dict[str, list[Cost]]] = defaultdict(lambda: defaultdict(list))
    for number in range(arguments.rounds):
        for side in sorted(sides, reverse=number % 2 == 0):
            for work, cost in measured(sides[side]).items():
                costs[work][side].append(cost)
                print(f"round {number + 1}, {side}, {work}: {cost}", file=sys.stderr, flush=True)
    rows = {work: row(of_side) for work, of_side in costs.items()}
    commits = {side: commit(checkout) for side, checkout in sides.items()}
    write_json(arguments.json, {"rows": rows, "rounds": arguments.rounds, "machine": machine(), **commits})
    head = ["", "processor, before", "after", "ratio", "memory, before", "after", "ratio"]
    print(markdown_table(head, [[work, *map(str, figures.values())] for work, figures in rows.items()]))
    print(busy_note(load))


def row(costs: dict[str, list[Cost]]) -> dict[str, float]:
    """Return the medians of both sides, and after over before."""
    figures = {}
    for name, digits in (("processor_seconds", 2), ("megabytes", 0)):
        medians = [statistics.median(getattr(cost, name) for cost in costs[side]) for side in ("before", "after")]
        figures[f"{name}_before"] = round(medians[0], digits)
        figures[f"{name}_after"] = round(medians[1], digits)
        figures[f"{name}_ratio"] = round(medians[1] / medians[0], 3)
    return figures


def measured(checkout: Path) -> dict[str, Cost]:
    """Run the four commands by the source of a checkout, in a new folder with an empty cache."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts, _ = sample_texts(TEXTS)
        (folder / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
        pairs = [f"{json.dumps(one)},{json.dumps(other)},{row % 5}" for row, (one, other) in enumerate(pairs_of(texts))]
        (folder / "pairs.csv").write_text("sentence1,sentence2,score\n" + "\n".join(pairs), encoding="utf-8")
        (folder / "suite.yaml").write_text("- {name: pairs, type: sts, path: pairs.csv}\n", encoding="utf-8")
        (folder / "recipe.yaml").write_text(json.dumps(RECIPE), encoding="utf-8")
        environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "DISTILVEC_CACHE": str(folder / "cache")}
        command = Command(folder, environment)
        return {
            "caching": command.cost("cache", "recipe.yaml"),
            "training": command.cost("run", "recipe.yaml", "--out", "run"),
            "evaluation": command.cost("evaluate", MODEL, "--suite", "suite.yaml"),
            "serving": command.cost_of_serving(texts[:REQUESTS]),
        }


def pairs_of(texts: list[str]) -> list[tuple[str, str]]:
    """Return neighbors in the list, without quotes, which CSV writes in another way than JSON."""
    plain = [text.replace('"', "").replace("\\", "") for text in texts]
    return list(itertools.pairwise(plain[: PAIRS + 1]))


@dataclass(frozen=True)
class Command:
    """The command line of a checkout, in a folder."""

    folder: Path
    environment: dict[str, str]

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a command; its errors are read by whoever waits."""
        line = [sys.executable, "-m", "distilvec", *words]
        return subprocess.Popen(
            line, cwd=self.folder, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )

    def cost(self, *words: str) -> Cost:
        """Run a command to its end."""
        process = self.start(*words)
        assert process.stderr is not None
        errors = process.stderr.read()
        status, cost = ended(process)
        assert status == 0, errors
        return cost

    def cost_of_serving(self, texts: list[str]) -> Cost:
        """Start the server, send each text as a request, eight at a time, and stop it."""
        process = self.start("serve", MODEL, "--port", "0", "--truncate")
        assert process.stderr is not None
        address = re.search(r"http://\S+?:\d+", process.stderr.readline())
        assert address is not None, "the server printed no address"
        asyncio.run(sent(address[0], texts))
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
        return ended(process)[1]


async def sent(address: str, texts: list[str]) -> None:
    """Send every text to the server and wait for all vectors."""
    async with connected(address, 8) as client:
        sender = Sender(client, 8)
        await asyncio.gather(*(sender.one(text) for text in texts))


def ended(process: subprocess.Popen[str]) -> tuple[int, Cost]:
    """Wait for a process; its exit status, and what it and its own children took."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, cost_of(usage)


def cost_of(usage: resource.struct_rusage) -> Cost:
    """Return what the system counted; it counts memory in KiB, on macOS in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss * unit / 1e6)


def commit(checkout: Path) -> Any:
    """Return the commit of a checkout, in short."""
    line = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    return subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
