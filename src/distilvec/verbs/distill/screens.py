"""What `distilvec distill` prints when the work is done, and the plan of a dry run."""

from __future__ import annotations

import shlex

from distilvec.cli.colour import BOLD
from distilvec.cli.terminal import print_result, show_problems, show_scores, show_table
from distilvec.pipeline.finished_run import FinishedRun
from distilvec.pipeline.job import Job
from distilvec.report.sections.use import check_words
from distilvec.train.start import SLOWER


def show_plan(job: Job) -> None:
    """Print what a run would do and how long it would take, measured on a few texts."""
    from distilvec.verbs.plan.plan import make_plan  # for a dry run alone

    show_table(["", job.recipe.name], make_plan(job))


def show_end(run: FinishedRun) -> None:
    """Print the scores of a test, one sentence, the numbers, the page, and the next command."""
    if run.scores:
        show_scores(dict(run.scores))
        print_result()
    print_result(run.verdict.text, style=BOLD)
    print_result("   ".join(numbers(run)))
    for advice in run.verdict.advice:
        if "distilvec export" not in advice:  # the last line says it
            print_result(advice)
    if run.page is not None:
        print_result(f"report: {run.page}", link=run.page)
    print_result(f"next: {next_command(run)}")
    show_problems(run.problems)


def numbers(run: FinishedRun) -> list[str]:
    """Return the numbers of the last screen: overlap@10, size, speed and the watched metric, as far as known."""
    lines = []
    judgement = run.record.overlap
    if judgement is not None and judgement.share is not None:
        share = judgement.share
        lines.append(f"overlap@10 {share.mean:.2f} [{share.low:.2f}, {share.high:.2f}]")
    verdict = run.verdict
    if verdict.smaller is not None:
        lines.append(f"{verdict.smaller:.1f}x smaller")
    if verdict.speedup is not None:
        lines.append(f"{verdict.speedup:.1f}x faster")
    watched = run.record.watched
    if watched is not None:
        start = run.validation.get(f"untrained_{watched.name}")
        before = "" if start is None else f" ({start:.3f} before training)"
        lines.append(f"{watched.title} {watched.value:.3f}{before}")
    return lines


def next_command(run: FinishedRun) -> str:
    """Return the command that a user wants next: a check with the own index, else a smaller and faster file.

    A static student is small and fast, and has no such file: it can be tried at once. A training that brought nothing
    is tried again with a lower rate.
    """
    training, section = run.record.training, run.recipe.teacher
    if training is not None and training.brought_nothing and training.learning_rate and not run.recipe.stages:
        rate = f"train.learning_rate={SLOWER * training.learning_rate:.1e}"
        again = ["run", run.files.recipe, rate, "--out", run.folder.with_name(f"{run.folder.name}-slower")]
        return shlex.join(["distilvec", *map(str, again)])
    if section.vectors is None:
        if run.record.student is not None and run.record.student.layers == 0:
            return shlex.join(["distilvec", "serve", str(run.student_folder)])
        return shlex.join(["distilvec", "export", str(run.student_folder), "--to", "onnx-int8"])
    words = check_words(run.student_folder, section.model_dump(mode="json"))
    return shlex.join(["distilvec", *map(str, words)])
