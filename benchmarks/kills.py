"""kill -9 at random moments: does the work end as if nothing had happened?

    python -m benchmarks.kills --json FILE [--caching 20] [--training 10]

Caching: `distilvec cache fill` on generated texts with all-MiniLM-L6-v2, killed and started again until it ends; every file
of the cache must have the bytes of an uninterrupted one. Training: `distilvec run` on the CPU in fp32; the student's weights
must be equal to the bit. Work that ends before it was killed often enough is begun anew, in another folder. Only kills that
hit a running process count. Exits with 1 if anything differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.texts import sample_texts
from distilvec import recipe as recipes
from distilvec.schema import Recipe


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--caching", type=int, default=20, help="kills while caching")
    parser.add_argument("--training", type=int, default=10, help="kills while training")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        texts = Path(folder) / "texts.txt"
        texts.write_text("\n".join(sample_texts(3000, Path("absent"))[0]), encoding="utf-8")
        recipe = make_recipe(texts)
        result = {
            "caching": kill_caching(recipe, Path(folder), arguments.caching, arguments.seed),
            "training": kill_training(recipe, Path(folder), arguments.training, arguments.seed),
        }
    arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))
    sys.exit(0 if all(part["same"] and part["kills"] for part in result.values()) else 1)


def make_recipe(texts: Path, teacher: str = "all-MiniLM-L6-v2") -> Recipe:
    return recipes.validate(
        {
            "name": "kills",
            "teacher": {"model": teacher},
            "student": {"model": "teacher", "layers": 2},
            "corpus": {"sources": [{"path": str(texts)}], "holdout_batches": 2},
            "cache": {"shard_rows": 100},
            "method": {"name": "redact"},
            "train": {"epochs": 2, "batch_size": 16, "precision": "fp32", "device": "cpu", "checkpoint_steps": 10, "logging_steps": 5},
        }
    )


def kill_caching(recipe: Recipe, folder: Path, kills: int, seed: int) -> dict[str, object]:
    """Fill caches under fire and one in peace; compare all their files but the lock."""
    line = ["cache", "fill", write(recipe, folder, "caching")]
    calm = folder / "calm-cache"
    whole, nothing = (run_to_end(line, calm) for _ in range(2))
    expected = hashes(calm / "teachers")
    hits, rounds, same = 0, 0, True
    while hits < kills and rounds < 4 * kills:
        shot = folder / f"shot-cache-{rounds}"
        hits += under_fire(line, shot, kills - hits, seed + rounds, nothing, max(0.1, (whole - nothing) / kills))
        rounds, same = rounds + 1, same and hashes(shot / "teachers") == expected
    return {"kills": hits, "rounds": rounds, "files": len(expected), "same": same}


def kill_training(recipe: Recipe, folder: Path, kills: int, seed: int) -> dict[str, object]:
    """Train under fire and in peace from one cache; compare the students' weights."""
    file, cache = write(recipe, folder, "training"), folder / "training-cache"
    run_to_end(["cache", "fill", file], cache)
    whole, nothing = (run_to_end(["run", file, "--out", str(folder / "calm")], cache) for _ in range(2))
    expected = hashes(folder / "calm" / "last")["model.safetensors"]
    hits, rounds, same = 0, 0, True
    while hits < kills and rounds < 4 * kills:
        line = ["run", file, "--out", str(folder / f"shot-{rounds}")]
        hits += under_fire(line, cache, kills - hits, seed + rounds, nothing, max(0.1, (whole - nothing) / kills))
        same = same and hashes(folder / f"shot-{rounds}" / "last")["model.safetensors"] == expected
        rounds += 1
    return {"kills": hits, "rounds": rounds, "same": same}


def write(recipe: Recipe, folder: Path, name: str) -> str:
    path = folder / f"{name}.yaml"
    path.write_text(recipes.dump(recipe), encoding="utf-8")
    return str(path)


def command(arguments: list[str], cache: Path) -> tuple[list[str], dict[str, str]]:
    return [sys.executable, "-m", "distilvec", *arguments], {**os.environ, "DISTILVEC_CACHE": str(cache)}


def run_to_end(arguments: list[str], cache: Path) -> float:
    """Run a distilvec command in peace; seconds."""
    line, environment = command(arguments, cache)
    began = time.monotonic()
    subprocess.run(line, env=environment, check=True, capture_output=True)
    return time.monotonic() - began


def under_fire(arguments: list[str], cache: Path, kills: int, seed: int, startup: float, share: float) -> int:
    """Start the command and kill it, at most `kills` times, at random moments of its work; then run it to the end.

    A kill comes after about `startup` seconds (what the command takes when nothing is left to do) and up to twice `share`
    seconds of work. Gives how many hit a running process; fewer than `kills` if the work ended first.
    """
    line, environment = command(arguments, cache)
    generator, hits = random.Random(seed), 0
    for _ in range(kills):
        process = subprocess.Popen(line, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + generator.uniform(0.6, 1.1) * startup + generator.uniform(0, 2) * share
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        hits += 1
    run_to_end(arguments, cache)
    return hits


def hashes(folder: Path) -> dict[str, str]:
    """Checksum of every file below `folder` but locks, by name."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.endswith("lock"))
    return {path.name: hashlib.blake2b(path.read_bytes()).hexdigest() for path in files}


if __name__ == "__main__":
    main()
