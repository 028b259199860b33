"""Every fault of the table, and flipped bits: what comes of each?

    python -m benchmarks.faults --json FILE [--flips 100]

The table is that of tests/faults (its harness says what right, traceback, unclear, silent and lost mean). A flip
changes one random bit in a shard of the teacher cache, the corpus, the tokens or the checkpoint of a stopped run, and
starts the run again. It is noticed where the run refuses to go on, or logs the damage, builds the file again and ends
with the weights of a run without a flip. Exits with 1 unless every case is right and every flip is noticed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
os.environ["HF_HUB_OFFLINE"] = "1"  # as in the tests

from faults import harness  # type: ignore[import-not-found]

from distilvec.core.files import write_json
from distilvec.core.run_folder import RunFolder

KINDS = {
    "shards": "cache/teachers/*/*.npy",
    "corpora": "cache/corpora/*/*.*",
    "tokens": "cache/tokens/*/*.*",
    "checkpoints": "run/details/checkpoint/state.safetensors",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--flips", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    table = try_all()
    flips = flip_bits(arguments.flips, arguments.seed)
    write_json(arguments.json, {"table": table, "flips": flips})
    print(json.dumps({"table": {**table, "cases": len(table["cases"])}, "flips": flips}, indent=1))
    sys.exit(0 if not table["other"] and flips["noticed"] == flips["flips"] else 1)


def try_all() -> dict[str, Any]:
    """Counts of the verdicts over the table, and every case that is not right with its reason."""
    verdicts, other = {}, {}
    cases = harness.all_cases()
    for number, (name, chosen) in enumerate(cases.items(), 1):
        with tempfile.TemporaryDirectory() as folder:
            verdict, reason, _ = harness.try_case(chosen, Path(folder))
        verdicts[name] = verdict
        if verdict != "right":
            other[name] = f"{verdict}: {reason}"
        print(f"{number}/{len(cases)} {name}: {verdict}", file=sys.stderr)
    counts = Counter(verdicts.values())
    return {"counts": {verdict: counts[verdict] for verdict in harness.VERDICTS}, "other": other, "cases": verdicts}


def flip_bits(flips: int, seed: int) -> dict[str, Any]:
    """Flip bits of a stopped run's data one at a time and start the run again; how many were noticed, by kind of file."""  # noqa: E501
    generator, missed = random.Random(seed), list[str]()
    noticed, tried = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        place, kept = Path(folder) / "world", Path(folder) / "kept"
        expected = prepare(place)
        place.rename(kept)
        assert go_on(kept, place, None, expected) == ("done", ""), "the run must go on where nothing was flipped"
        for number in range(flips):
            kind = list(KINDS)[number % len(KINDS)]
            path = generator.choice(sorted(path for path in kept.glob(KINDS[kind]) if path.stat().st_size))
            bit = generator.randrange(8 * path.stat().st_size)
            outcome, reason = go_on(kept, place, (path.relative_to(kept), bit), expected)
            tried[kind] += 1
            noticed[kind] += outcome in ("refused", "repaired")
            if outcome not in ("refused", "repaired"):
                missed.append(f"{path.relative_to(kept)}, bit {bit}: {outcome}: {reason}")
            print(f"flip {number + 1}/{flips} {path.name}: {outcome}", file=sys.stderr)
    by_kind = {kind: [noticed[kind], tried[kind]] for kind in KINDS}
    return {"flips": flips, "noticed": sum(noticed.values()), "by_kind": by_kind, "missed": missed}


def go_on(kept: Path, place: Path, flipped: tuple[Path, int] | None, expected: bytes) -> tuple[str, str]:
    """Copy the stopped run to `place`, flip a bit there and start the run again: refused, repaired, done, changed, and
    the log's end.
    """
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(kept, place)
    if flipped is not None:
        path, bit = place / flipped[0], flipped[1]
        content = bytearray(path.read_bytes())
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
    found = harness.execute(harness.World(place), ["run", "tiny.yaml", "--out", "run"])
    weights = RunFolder(place / "run").last / "model.safetensors"
    if found.status:
        refused = found.status == 2 and not weights.exists() and "damaged" in found.err
        return "refused" if refused else "failed", found.err[-300:]
    if weights.read_bytes() != expected:
        return "changed", found.err[-300:]
    return ("repaired", "") if "damaged" in found.err else ("done", "")


def prepare(place: Path) -> bytes:
    """Make a run that stopped halfway in `place`; the weights that it would end with."""
    place.mkdir()
    world = harness.World(place)
    recipe = world.recipe(train__checkpoint_steps=2, train__keep_checkpoint=True, train__epochs=4)
    world.run("run", recipe, "--out", "whole")
    expected = (RunFolder(place / "whole").last / "model.safetensors").read_bytes()
    from distilvec.train.trainer import Trainer

    step = Trainer._step

    def stepped(loop: Trainer, batches: Any, index: int) -> None:
        if loop.state.step == 6:
            raise KeyboardInterrupt
        step(loop, batches, index)

    Trainer._step = stepped  # type: ignore[method-assign,assignment]
    try:
        assert world.execute("run", recipe, "--out", "run").status == 130
    finally:
        Trainer._step = step  # type: ignore[method-assign]
    shutil.rmtree(place / "whole")
    return expected


if __name__ == "__main__":
    main()
