"""kill -9 at random moments: does the work end as if nothing had happened?

    python -m benchmarks.kills --json FILE [--parts caching,training] [--long 50] [--short 20] [--teacher FOLDER]

| part | what is killed | what must equal an uninterrupted twin |
|---|---|---|
| caching | `cache fill` | every file of the cache |
| training | `run` on the CPU in fp32 | weights of last/ and student/; metrics.jsonl but for the throughput |
| evaluation | `run`, its training finished | report.json but for times, the samples in samples.npz |
| saving | `run` that keeps a student after every step | weights of every student; after each kill every student loads |
| transplant | `transplant` | every file of the model's folder |
| export | `export --to onnx` | the file |
| finetune | `finetune` with adapters | weights of the model and its head; metrics.jsonl but for the throughput |
| pushing | `cache fill` with `cache.remote` | every file at the address |
| table | `cache fill` of a table that changes after every kill, and back at the end | every file of the cache |

`--long` kills are shared by caching and training, `--short` ones by the other parts. A killed command is started again
until it ends; work that ends before it was killed often enough is begun again in another folder. Only kills that hit a
running process count. Exits with 1 if anything differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file

from benchmarks.texts import sample_texts
from distilvec.config import recipe as recipes
from distilvec.config.schema import Recipe
from distilvec.core.files import SEAL, write_json
from distilvec.core.run_folder import RunFolder

THROUGHPUT = ("train/texts_per_second", "train/tokens_per_second", "train/wait")
TIMES = ("created", "seconds", SEAL)  # the seal covers the others
LONG = ("caching", "training")
SHORT = ("evaluation", "saving", "transplant", "export", "finetune", "pushing", "table")


@dataclass(frozen=True)
class Work:
    """A command by its output (a folder of its own), what of the output must be the same, what is made before the
    command starts.

    `resumes` is False where a killed command begins again. `whole` looks at an output after a kill. `disturb` changes
    what the command reads: it gets the number of the kill, and 0 before the last start, which must bring back all.
    """

    line: Callable[[Path], list[str]]
    found: Callable[[Path], dict[str, str]]
    cache: Callable[[Path], Path]
    prepare: Callable[[Path], object] = lambda out: None
    resumes: bool = True
    whole: Callable[[Path], bool] = lambda out: True
    disturb: Callable[[Path, int], object] = lambda out, kill: None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--parts", default=",".join(LONG + SHORT), help="separated by commas; all by default")
    parser.add_argument("--long", type=int, default=50, help=f"kills shared by {' and '.join(LONG)}")
    parser.add_argument("--short", type=int, default=20, help=f"kills shared by {', '.join(SHORT)}")
    parser.add_argument("--teacher", default="all-MiniLM-L6-v2", help="a SentenceTransformer folder or id")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    chosen, result = arguments.parts.split(","), {}
    if unknown := set(chosen) - {*LONG, *SHORT}:
        parser.error(f"--parts: unknown {', '.join(sorted(unknown))}; known are {', '.join(LONG + SHORT)}")
    with tempfile.TemporaryDirectory() as folder:
        for part in chosen:
            group, kills = (LONG, arguments.long) if part in LONG else (SHORT, arguments.short)
            share = max(1, kills // sum(name in group for name in chosen))
            began = time.monotonic()
            result[part] = kill(
                PARTS[part](Path(folder), arguments.teacher), Path(folder) / part, share, arguments.seed
            )
            result[part]["seconds"] = round(time.monotonic() - began)
            print(f"{part}: {json.dumps(result[part])}", flush=True)
    write_json(arguments.json, result)
    sys.exit(0 if all(part["same"] and part["kills"] for part in result.values()) else 1)


def kill(work: Work, folder: Path, kills: int, seed: int) -> dict[str, Any]:
    """Do the work in peace once and then under fire, until it was killed `kills` times; compare all that came of it."""
    calm = folder / "calm"
    calm.mkdir(parents=True)
    work.prepare(calm)
    seconds = run_to_end(work.line(calm), work.cache(calm))
    expected = work.found(calm)
    startup = run_to_end(work.line(calm), work.cache(calm)) if work.resumes else 0.4 * seconds
    share = max(0.1, (seconds - startup) / (kills if work.resumes else 2))
    times, hits, rounds, same = (startup, share, 0.9 * seconds), 0, 0, bool(expected) and work.found(calm) == expected
    while hits < kills and rounds < 4 * kills:
        shot = folder / f"shot-{rounds}"
        shot.mkdir()
        work.prepare(shot)
        count, whole = under_fire(work, shot, kills - hits, seed + rounds, times)
        hits, rounds, same = hits + count, rounds + 1, same and whole and work.found(shot) == expected
        shutil.rmtree(shot)
        if not count:  # the machine is faster by now
            times = (0.8 * times[0], 0.8 * times[1], 0.8 * times[2])
    return {"kills": hits, "rounds": rounds, "files": len(expected), "same": same}


def under_fire(work: Work, out: Path, kills: int, seed: int, times: tuple[float, float, float]) -> tuple[int, bool]:
    """Start the command and kill it, at most `kills` times, at random moments of its work; then run it to the end.

    `times` are startup, share and longest: a kill comes after about `startup` seconds (what the command takes when
    nothing is left to do) and up to twice `share` seconds of work, but not after `longest`, when it might miss. Gives
    how many hit a running process, fewer than `kills` if the work ended first, and whether what was there after each of
    them was whole.
    """
    generator, hits, whole = random.Random(seed), 0, True
    startup, share, longest = times
    for _ in range(kills):
        process = start(work.line(out), work.cache(out))
        delay = generator.uniform(0.6, 1.1) * startup + generator.uniform(0, 2) * share
        deadline = time.monotonic() + min(delay, longest)
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        if process.wait() != -signal.SIGKILL:
            break
        hits, whole = hits + 1, whole and work.whole(out)
        work.disturb(out, hits)
    work.disturb(out, 0)
    run_to_end(work.line(out), work.cache(out))
    return hits, whole


# -- the parts ---------------------------------------------------------------------------------------------------------


def caching(folder: Path, teacher: str, texts: int = 3000) -> Work:
    file = write(folder, make_recipe(write_texts(folder, texts), teacher), "caching")
    return Work(lambda out: ["cache", "fill", file], lambda out: hashes(out / "teachers"), lambda out: out)


def training(folder: Path, teacher: str, texts: int = 1500) -> Work:
    file = write(folder, make_recipe(write_texts(folder, texts), teacher), "training")
    run_to_end(["cache", "fill", file], folder / "training-cache")
    return Work(run_line(file), trained, lambda out: folder / "training-cache")


def evaluation(folder: Path, teacher: str) -> Work:
    """The run is trained with little to score; with more, the same training counts as finished."""
    lines = sample_texts(300, Path("absent"))[0]
    rows = [
        {"sentence1": lines[i], "sentence2": lines[i - 1 - i % 3], "score": i % 5, "label": i % 2} for i in range(300)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    tasks = ", ".join(f"{{name: {kind}, type: {kind}, path: rows.jsonl}}" for kind in ("sts", "pair"))
    (folder / "suite.yaml").write_text(f"[{tasks}]\n", encoding="utf-8")
    recipe, suite = make_recipe(write_texts(folder, 200), teacher, max_steps=2), folder / "suite.yaml"
    little = {"suite": suite, "parts": [], "columns": ["student"]}
    much = {"suite": suite, "parts": ["agreement", "compression", "margin"]}
    file, scored_file = (
        write(folder, recipe.model_copy(update={"evaluation": recipe.evaluation.model_copy(update=keys)}), name)
        for name, keys in {"evaluated": little, "evaluation": much}.items()
    )
    run_to_end(["run", file, "--out", str(folder / "evaluated")], folder / "evaluation-cache")

    def prepare(out: Path) -> None:
        shutil.copytree(folder / "evaluated", out, dirs_exist_ok=True)

    return Work(run_line(scored_file), evaluated, lambda out: folder / "evaluation-cache", prepare)


def saving(folder: Path, teacher: str) -> Work:
    file = write(folder, make_recipe(write_texts(folder, 200), teacher, max_steps=6, keep_students=6), "saving")
    run_to_end(["cache", "fill", file], folder / "saving-cache")
    return Work(run_line(file), trained, lambda out: folder / "saving-cache", whole=students_load)


def transplant(folder: Path, teacher: str) -> Work:
    texts = write_texts(folder, 2000)
    line = [
        "transplant",
        teacher,
        "--texts",
        str(texts),
        "--kind",
        "trim",
        "--overwrite",
        "--out",
    ]  # trained tokenizers differ between runs
    return Work(lambda out: [*line, str(out / "model")], hashes, lambda out: folder / "cache", resumes=False)


def export(folder: Path, teacher: str) -> Work:
    return Work(
        lambda out: ["export", teacher, "--out", str(out / "model.onnx")],
        hashes,
        lambda out: folder / "cache",
        resumes=False,
    )


def finetune(folder: Path, teacher: str) -> Work:
    lines, classes = sample_texts(240, Path("absent"))[0], ("one", "two", "three")
    rows = [
        {"text": f"{classes[i % 3]} {lines[i]}"[:60], "label": classes[i % 3], "split": "test" if i > 200 else "train"}
        for i in range(240)
    ]
    (folder / "task.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    line = [
        "finetune",
        teacher,
        "--task",
        str(folder / "task.jsonl"),
        "--type",
        "classification",
        "--r",
        "4",
        "--epochs",
        "2",
    ]
    line += [
        "--batch-size",
        "8",
        "train.device=cpu",
        "train.checkpoint_steps=5",
        "train.logging_steps=4",
        "evaluation.parts=[]",
    ]
    return Work(lambda out: [*line, "--out", str(out)], trained, lambda out: folder / "finetune-cache")


def pushing(folder: Path, teacher: str, texts: int = 2000) -> Work:
    file = write(folder, make_recipe(write_texts(folder, texts), teacher), "pushing")
    return Work(
        lambda out: ["cache", "fill", file, f"cache.remote=file://{out / 'remote'}"],
        lambda out: hashes(out / "remote"),
        lambda out: out / "cache",
    )


def table(folder: Path, teacher: str, rows: int = 20_000) -> Work:
    """The vectors of the other table belong to the same texts: rows of both would not be told apart by their text."""
    texts = write_texts(folder, rows)
    count = len(texts.read_text(encoding="utf-8").split("\n"))
    recipe = make_recipe(texts, teacher)

    def put(out: Path, kill: int) -> None:
        vectors = np.random.default_rng(kill % 2).normal(size=(count, 64)).astype(np.float32)
        np.save(out / "vectors.npy", vectors)

    def line(out: Path) -> list[str]:
        section = recipe.teacher.model_copy(update={"model": None, "vectors": out / "vectors.npy", "texts": texts})
        student = recipe.student.model_copy(update={"model": teacher})
        return [
            "cache",
            "fill",
            write(out, recipe.model_copy(update={"teacher": section, "student": student}), "table"),
        ]

    return Work(line, lambda out: hashes(out / "teachers"), lambda out: out, lambda out: put(out, 0), disturb=put)


PARTS: dict[str, Callable[[Path, str], Work]] = {
    "caching": caching,
    "training": training,
    "evaluation": evaluation,
    "saving": saving,
    "transplant": transplant,
    "export": export,
    "finetune": finetune,
    "pushing": pushing,
    "table": table,
}


def make_recipe(texts: Path, teacher: str, **train: Any) -> Recipe:
    settings = {
        "epochs": 2,
        "batch_size": 16,
        "precision": "fp32",
        "device": "cpu",
        "checkpoint_steps": 10,
        "logging_steps": 7,
        "keep_checkpoint": True,  # details/last/ is compared, too
    }
    return recipes.validate(
        {
            "name": "kills",
            "teacher": {"model": teacher},
            "student": {"model": "teacher", "layers": 2},
            "corpus": {"sources": [{"path": str(texts)}]},
            "cache": {"shard_rows": 100},
            "method": {"name": "redact"},
            "train": {**settings, **train},
        }
    )


def run_line(file: str) -> Callable[[Path], list[str]]:
    return lambda out: ["run", file, "--out", str(out)]


def write_texts(folder: Path, count: int) -> Path:
    path = folder / f"texts-{count}.txt"
    path.write_text("\n".join(sample_texts(count, Path("absent"))[0]), encoding="utf-8")
    return path


def write(folder: Path, recipe: Recipe, name: str) -> str:
    path = folder / f"{name}.yaml"
    path.write_text(recipes.dump(recipe), encoding="utf-8")
    return str(path)


# -- what must be the same ---------------------------------------------------------------------------------------------


def hashes(folder: Path) -> dict[str, str]:
    """Checksum of every file below `folder` but locks, by name."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.endswith("lock"))
    return {str(path.relative_to(folder)): hashlib.blake2b(path.read_bytes()).hexdigest() for path in files}


def trained(out: Path) -> dict[str, str]:
    """Every student's weights and the lines of metrics.jsonl without what depends on the clock."""
    run = RunFolder(out)
    weights = {
        name: found
        for name, found in hashes(out).items()
        if name.endswith(".safetensors") and name != str(run.checkpoint.relative_to(out))
    }
    lines = [json.loads(line) for line in run.metrics.read_text(encoding="utf-8").splitlines()]
    plain = [{key: value for key, value in line.items() if key not in THROUGHPUT} for line in lines]
    return {**weights, "metrics.jsonl": json.dumps(plain)}


def evaluated(out: Path) -> dict[str, str]:
    """The report without times and the folder's name, and what it was computed from."""
    run = RunFolder(out)
    report = json.loads(run.report.read_text(encoding="utf-8"))
    with np.load(run.samples) as samples:
        arrays = {name: hashlib.blake2b(samples[name].tobytes()).hexdigest() for name in samples.files}
    text = json.dumps(without_times(report), sort_keys=True).replace(str(out), "RUN")  # commands that it advises
    return {"report.json": text, **arrays}


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_times(part) for key, part in value.items() if key not in TIMES}
    return [without_times(part) for part in value] if isinstance(value, list) else value


def students_load(out: Path) -> bool:
    """Whether every student that has its name is whole."""
    run = RunFolder(out)
    for folder in (run.student, run.last, *run.saved_students.values()):
        if not folder.is_dir():
            continue
        if not (folder / "modules.json").exists():
            return False
        load_file(folder / "model.safetensors")
    return True


# -- commands ----------------------------------------------------------------------------------------------------------


def start(arguments: list[str], cache: Path) -> subprocess.Popen[str]:
    """Start a distilvec command."""
    line, environment = [sys.executable, "-m", "distilvec", *arguments], {**os.environ, "DISTILVEC_CACHE": str(cache)}
    return subprocess.Popen(line, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def run_to_end(arguments: list[str], cache: Path) -> float:
    """Run a distilvec command in peace; seconds. Its own message is shown where it fails."""
    began = time.monotonic()
    process = start(arguments, cache)
    _, message = process.communicate()
    if process.returncode:
        raise SystemExit(f"distilvec {' '.join(arguments)} ended with {process.returncode}:\n{message[-3000:]}")
    return time.monotonic() - began


if __name__ == "__main__":
    main()
