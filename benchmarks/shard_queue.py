"""Simulation of `distilvec cache fill --ray` at a size that no test can run: failures, stragglers, one writer.

    python -m benchmarks.shard_queue --json FILE [--texts 1000000000] [--workers 8 64 256]

The queue is that of distilvec/teachers/ray_workers.py: a worker has at most two shards that are not stored yet, one of
which it computes; one process stores them, in the order in which they are done. Assumptions, each an option:

    texts_per_second   of a worker without failures, the same for every shard but for 5 % of random variation
    slow_share, slow   share of the workers that are slower all the time, and by which factor (stragglers)
    hours_to_failure   of a worker, on average, exponential; the shard begun is lost and computed again
    restart_seconds    from a death to the next shard: detection, a new process, loading the model
    dims, write_rate   bytes that the writer stores a second; a shard is sent in float32 and stored in float16

The network, the death of the writer (who loses the shards that are not stored, at most `shards_at_risk`) and failures
of the cluster as a whole are left out. `efficiency` is the time of ideal workers (none slow, none failing, no writer)
over the simulated time; `repeated` is the work that is lost with failing workers, in shares of all work; `writer_hours`
is the time of the one writer alone.
"""

from __future__ import annotations

import argparse
import heapq
import json
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from distilvec.core.files import write_json
from distilvec.teachers.cache.store import SHARD_ROWS
from distilvec.teachers.ray_workers import AHEAD


@dataclass(frozen=True)
class Cluster:
    """The assumptions; see the module."""

    workers: int
    texts: int = 10**9
    texts_per_second: float = 2000.0
    slow_share: float = 0.05
    slow: float = 3.0
    hours_to_failure: float = 24.0
    restart_seconds: float = 120.0
    dims: int = 384
    write_rate: float = 200e6
    seed: int = 0


def simulate(cluster: Cluster) -> dict[str, Any]:
    """Hours, efficiency, repeated work and stalls of one run."""
    random, shards = np.random.default_rng(cluster.seed), -(-cluster.texts // SHARD_ROWS)
    work = SHARD_ROWS / cluster.texts_per_second
    speeds = np.where(random.random(cluster.workers) < cluster.slow_share, cluster.slow, 1.0)
    store = SHARD_ROWS * cluster.dims * 2 / cluster.write_rate
    now, begun, failures, lost = 0.0, 0, 0, 0.0
    free, running = deque([*range(cluster.workers)] * AHEAD), list[tuple[float, int]]()
    ends = [0.0] * cluster.workers
    while begun < shards or running:
        while free and begun < shards:
            worker = free.popleft()
            needed, end = work * speeds[worker] * random.uniform(0.95, 1.05), max(now, ends[worker])
            while (alive := random.exponential(cluster.hours_to_failure * 3600)) < needed:
                failures, lost, end = failures + 1, lost + alive, end + alive + cluster.restart_seconds
            ends[worker] = end + needed
            heapq.heappush(running, (ends[worker], worker))
            begun += 1
        end, worker = heapq.heappop(running)
        now = max(now, end) + store
        free.append(worker)
    ideal = shards * work / cluster.workers
    return {
        "workers": cluster.workers,
        "shards": shards,
        "hours": round(float(now) / 3600, 2),
        "efficiency": round(float(ideal / now), 3),
        "writer_hours": round(shards * store / 3600, 2),
        "failures": failures,
        "repeated": round(lost / (shards * work), 5),
        "shards_at_risk": AHEAD * cluster.workers,
        "most_memory_gb": round(AHEAD * cluster.workers * SHARD_ROWS * cluster.dims * 4 / 1e9, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--workers", type=int, nargs="+", default=[8, 64, 256])
    fields = {name: kind for name, kind in Cluster.__annotations__.items() if name != "workers"}
    for name, kind in fields.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type={"int": int, "float": float}[kind])
    given = vars(parser.parse_args())
    path, workers = given.pop("json"), given.pop("workers")
    changed = {name: value for name, value in given.items() if value is not None}
    runs = [simulate(Cluster(count, **changed)) for count in workers]
    write_json(path, {"assumptions": vars(Cluster(0, **changed)), "runs": runs})
    for run in runs:
        print(json.dumps(run))


if __name__ == "__main__":
    main()
