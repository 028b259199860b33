"""Teacher processes on Ray: plain actors that hold the model, restarted when they die.

Actors instead of Ray Data: a shard is one call with its texts, so its batches and bytes are those of one process. Ray
Data groups rows into blocks of its own.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from distilvec.config.schema import TeacherSection
from distilvec.core.errors import DistilvecError, about, first_line
from distilvec.core.extras import require_extra
from distilvec.data.corpus import Corpus
from distilvec.teachers.cache.fill import Batches, Planned
from distilvec.teachers.cache.manifest import Manifest
from distilvec.teachers.cache.signals import Array, Rows
from distilvec.teachers.encode import EmbeddedBatch
from distilvec.teachers.model_embedder import ModelEmbedder
from distilvec.teachers.open import load_teacher

LOCAL = "local"  # instead of an address: worker processes on this machine
RETRIES = 16  # times that one shard is computed again after the death of its worker
AHEAD = 2  # shards of each worker: the one that it computes, and the next one or one that is not stored yet


@dataclass(frozen=True)
class RayOptions:
    """`address`: "local", or that of a cluster ("auto", HOST:PORT). GPUs may be a share, such as 0.5."""

    address: str
    workers: int = 1
    gpus_per_worker: float = 0.0


class Worker:
    """Holds a teacher's model in a process of its own, from the first call on."""

    def __init__(self, section: dict[str, Any], device: str, manifest: Manifest) -> None:
        self._section, self._device, self._manifest = section, device, manifest
        self._teacher: ModelEmbedder | None = None

    def signals(self, prompted: list[Any]) -> Mapping[str, Array]:
        """float32 [n, dim] by signal; see ModelEmbedder.signals. DistilvecError for a model of other content."""
        pre_dense = "pre_dense" in self._manifest.signals
        if self._teacher is None:
            torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
            teacher = load_teacher(TeacherSection.model_validate(self._section), self._device)
            manifest = teacher.manifest(self._manifest.store_dtype, pre_dense)
            with about("--ray"):
                manifest.check_equal(self._manifest, "a worker's model")
            self._teacher = teacher
        return self._teacher.signals(prompted, pre_dense)


class RayWorkers:
    """Worker processes of one teacher, for `fill_steps` (`compute` and `ahead`); they end with the `with` block."""

    def __init__(
        self, options: RayOptions, section: TeacherSection, device: str, manifest: Manifest, corpus: Corpus
    ) -> None:
        require_extra("ray", "--ray")
        self._options, self._corpus = options, corpus
        self._about = section.model_dump(mode="json"), device, manifest
        self._results: dict[int, Any] = {}  # by a shard's first row

    def __enter__(self) -> RayWorkers:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_worker_niceness", "0")  # 15 by default: on a busy machine workers would hardly run
        import ray
        from ray.job_config import JobConfig

        options, gpus = self._options, self._options.gpus_per_worker
        # Ray puts the current folder first in its workers' search path: a yaml.py there would be imported instead of
        # the library. Only its own clients are spared.
        job = JobConfig(_client_job=True)
        here = {"num_cpus": options.workers, "num_gpus": math.ceil(options.workers * gpus), "include_dashboard": False}
        settings = here if options.address == LOCAL else {}
        try:
            ray.init(address=options.address, job_config=job, log_to_driver=False, configure_logging=False, **settings)
        except (ConnectionError, OSError, RuntimeError, ValueError) as error:
            raise DistilvecError(
                f"cannot connect to {options.address}: {first_line(error)}.",
                "Start the cluster (ray start --head), or take --ray local. RAY_AUTH_MODE=token if it wants a token.",
                key="--ray",
            ) from error
        kind = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=-1, max_task_retries=RETRIES)(Worker)
        self._workers = [kind.remote(*self._about) for _ in range(options.workers)]
        self._free = deque(self._workers * AHEAD)
        self._busy: dict[Any, tuple[Any, Planned]] = {}
        return self

    def __exit__(self, *error: object) -> None:
        """End the workers; of a local Ray everything."""
        import ray

        self._results.clear()
        for worker in self._workers:
            ray.kill(worker)
        ray.shutdown()

    def ahead(self, shards: Iterator[Planned]) -> Iterator[Planned]:
        """The shards, each once its signals are there; each worker has two, so that none waits for this process."""
        import ray

        while True:
            while self._free and len(self._results) < AHEAD * self._options.workers:
                number, rows = next(shards, (-1, None))
                if rows is None:
                    self._free.clear()
                    break
                worker = self._free.popleft()
                result = worker.signals.remote(self._corpus.prompted(rows))
                self._busy[result] = worker, (number, rows)
                self._results[int(rows[0])] = result
            if not self._busy:
                return
            for result in ray.wait([*self._busy], num_returns=1, fetch_local=False)[0]:
                worker, shard = self._busy.pop(result)
                self._free.append(worker)
                yield shard

    def compute(self, rows: Rows) -> Batches:
        """The signals of a shard that `ahead` has passed on. DistilvecError of a worker, or if workers keep dying."""
        import ray

        try:
            signals: dict[str, Any] = ray.get(self._results.pop(int(rows[0])))
        except ray.exceptions.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, Exception) else error) from None
        except ray.exceptions.RayError as error:
            raise DistilvecError(
                f"a worker died {RETRIES + 1} times at one shard, of texts from row {int(rows[0]):,} on: "
                f"{first_line(error)}.",
                "Lower teacher.batch_tokens, or give workers more memory. Shards before are kept.",
                key="--ray",
            ) from error
        yield EmbeddedBatch(np.arange(len(rows)), signals, 1.0)
