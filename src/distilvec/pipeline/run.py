"""A run: resolve, prepare, train, evaluate, publish. Each step skips what is already on disk.

cache root (cache.root), shared by all runs; every folder is named by the fingerprint of its content
  corpora/  tasks/  suites/    texts, examples of labeled tasks, evaluation suites
  vocabularies/                tokenizers chosen or trained for a student
  descriptions/                teachers and students, described
  tokens/  alignments/  keys/  tokens of a corpus, pairs of them, cache keys under other prompts
  teachers/                    each teacher's vectors and token signals
  evaluations/                 each teacher's vectors of the texts of suites
run folder
  README.txt  report.html  recipe.yaml  student/ (best)  students/step-N/
  details/                     everything else (core/run_folder.py)
    metrics.jsonl  training.json  start.safetensors  vocabulary/
    checkpoint/  last/         until the run is finished, or with train.keep_checkpoint
    stages/<name>/             metrics.jsonl and checkpoint/ of all stages but the last
    record.json  report.json  samples.npz  figures/
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from distilvec.config.schema import Recipe
from distilvec.core.errors import DistilvecError
from distilvec.core.log import begin_phase, log, phases
from distilvec.core.processes import is_main, join_processes, main_first, wait, world_size
from distilvec.core.run_folder import RunFolder
from distilvec.pipeline.claim import check_run, claim_folder
from distilvec.pipeline.evaluate import evaluate
from distilvec.pipeline.finished_run import FinishedRun
from distilvec.pipeline.job import EVALUATION, TRAINING, run_phases
from distilvec.pipeline.overview import overview
from distilvec.pipeline.prepare import prepare
from distilvec.pipeline.publish import publish
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.train import finished_training, remove_checkpoints, train
from distilvec.train.metrics import Callback, check_callbacks


def run(recipe: Recipe, folder: Path, restart: bool = False, callbacks: Sequence[Callback] = ()) -> FinishedRun | None:
    """Run a recipe in a folder; a step whose inputs have not changed is not run again.

    Each of the `callbacks` is called as callback(step, metrics) for every logged line of training and validation. With
    several processes (core/processes.py) all train, the main one does the rest; the others return None.
    """
    check_callbacks(callbacks)
    join_processes(recipe.train.device)
    if recipe.train.shard and world_size() == 1:
        raise DistilvecError(
            "found one process; expected several.",
            "Start them with --processes, or set train.shard=false.",
            key="train.shard",
        )
    with ExitStack() as stack:
        with main_first():
            check_run(recipe, RunFolder(folder))
            job = resolve(recipe, folder)
            for name, text in overview(job):
                log(f"{name:8} {text}")
            if is_main():
                stack.enter_context(
                    claim_folder(job.files, job.stated_recipe, job.fingerprint, restart, job.start_fingerprint)
                )
                if job.vocabulary is not None:
                    job.vocabulary.keep(job.files)
        training = finished_training(job)
        stack.enter_context(phases(run_phases(job, training is not None)))
        if training is None:
            prepared = prepare(job)
            begin_phase(TRAINING)
            training = train(job, prepared, callbacks)
            del prepared  # of live teachers and the last student
        job.loaded.release_untaken()
        try:
            if not is_main():
                return None
            begin_phase(EVALUATION)
            report = evaluate(job)
            result = publish(job, training, report)
            if not recipe.train.keep_checkpoint:
                remove_checkpoints(job)
            return result
        finally:
            wait()
