"""The verbs that only measure: evaluate, compare, speed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from distilvec.cli.options import (
    JsonFile,
    argument,
    check_input,
    check_model,
    check_outputs,
    check_positive,
    named_options,
    option,
)
from distilvec.cli.output import write_result
from distilvec.core.errors import DistilvecError
from distilvec.core.extras import require_extra
from distilvec.core.files import check_output_folder, write_file


def evaluate(
    model: Annotated[str, argument("A folder or id, a file of `distilvec export`, or an API: openai:MODEL, a URL.")],
    suite: Annotated[Path | None, option("A suite file (YAML list of local tasks).")] = None,
    mteb: Annotated[str | None, option("Tasks of MTEB, separated by commas.")] = None,
    benchmark: Annotated[
        str | None, option("A benchmark of MTEB, such as 'MTEB(eng, v2)', BEIR-14, or TR-MTEB.")
    ] = None,
    data: Annotated[Path | None, option("Folder with <MTEB task>/ folders, read instead of the hub.")] = None,
    teacher: Annotated[
        str | None, option("Compare with this model, API or index, also with its vectors of documents.")
    ] = None,
    protocol: Annotated[str, option("Main metrics to show: mteb-like, talas, distillmoe, emo, surgery.")] = "mteb-like",
    mixed: Annotated[bool, option("A column with both models in pairs, STS and classification too.")] = False,
    json_file: JsonFile = None,
) -> None:
    """Score a model on local tasks or on MTEB: STS, classification, pairs, retrieval."""
    check_model(model, "model")
    check_input(suite, "suite")
    check_input(data, "--data")
    if teacher is not None:
        check_model(teacher, "--teacher")
    check_outputs([("--json", json_file)], [suite])

    from dataclasses import asdict

    from distilvec.pipeline.scores import check_arguments, score_models

    with named_options({name: f"--{name}" for name in ("suite", "teacher", "mteb", "benchmark", "data", "protocol")}):
        check_arguments(model, suite, teacher, mteb, benchmark, data, protocol)
    with named_options({"teacher": "--teacher"}):
        scores = score_models(model, suite, teacher, mteb, benchmark, data, protocol, mixed)

    from distilvec.cli.terminal import show_problems, show_scores

    if scores.columns:
        write_result(json_file, {**asdict(scores)["columns"], "averages": scores.averages()})
    if any(scores.columns.values()):
        show_scores(scores.columns, scores.also)
    show_problems(scores.problems, "suite" if suite is not None else "--mteb")


def compare(
    runs: Annotated[list[Path], argument("Run folders, or folders of sweeps.")],
    reference: Annotated[str | None, option("The run that others are compared with; the first by default.")] = None,
    column: Annotated[str, option("student, asymmetric, projected, mixed, untrained or teacher.")] = "student",
    out: Annotated[Path | None, option("Write a page here, and its figures in a folder next to it.")] = None,
    csv: Annotated[Path | None, option("Write the leaderboard as CSV.")] = None,
    markdown: Annotated[Path | None, option("Write the leaderboard as Markdown.")] = None,
    latex: Annotated[Path | None, option("Write the leaderboard as LaTeX (booktabs).")] = None,
    json_file: JsonFile = None,
) -> None:
    """Compare runs: means and deviations over seeds, differences with confidence intervals, costs."""
    check_outputs([("--out", out), ("--csv", csv), ("--markdown", markdown), ("--latex", latex), ("--json", json_file)])
    for run in runs:
        check_input(run, "run folder")
    if out is not None:
        check_output_folder(out.with_name(f"{out.stem}-figures"), "--out")
        require_extra("report", "--out")

    from distilvec.cli.terminal import print_result, show_comparison
    from distilvec.pipeline.compare import compare_runs
    from distilvec.report.comparison import comparison_csv, leaderboard
    from distilvec.report.tables import to_latex, to_markdown
    from distilvec.report.write import draw_comparison

    comparison = compare_runs(runs, reference, column)
    board, notes = leaderboard(comparison), comparison["notes"]
    forms = (
        ("--csv", csv, comparison_csv(comparison)),
        ("--markdown", markdown, to_markdown(board, notes)),
        ("--latex", latex, to_latex(board, notes)),
    )
    for key, path, text in forms:
        if path is not None:
            write_file(path, text, key)
    write_result(json_file, comparison)
    show_comparison(comparison)
    if out is not None:
        print_result(str(draw_comparison(out, comparison)), link=out)


def speed(
    models: Annotated[list[str], argument("SentenceTransformer folders or ids; others are compared with the first.")],
    full: Annotated[bool, option("The papers' 20 warm-ups and 200 repeats of every setting.")] = False,
    seconds: Annotated[float, option("Time for each setting otherwise.")] = 2.0,
    json_file: JsonFile = None,
) -> None:
    """Latency and throughput by batch size and length, PyTorch and ONNX Runtime, size and memory."""
    check_outputs([("--json", json_file)])
    check_positive(seconds, "--seconds")
    for name in models:
        check_model(name, "models")
    if twice := next((name for name in models if models.count(name) > 1), None):
        raise DistilvecError("models", f"{twice} is named twice.", "Name each model once.")

    from distilvec.cli.terminal import print_result
    from distilvec.core.log import progress
    from distilvec.evaluation.speed import Timing, measure_speed
    from distilvec.report.sections.speed import speed_text
    from distilvec.teachers.open import open_model

    timing = Timing(20, 200, None if full else seconds)
    loaded = {name: open_model(name, key="models", device="cpu").model for name in models}
    with progress("speed", 100, "%") as advance:

        def note(what: str, done: int, total: int) -> None:
            advance(100 * done // max(1, total), what)

        report = measure_speed(loaded, timing=timing, progress=note)
    write_result(json_file, report)
    print_result(speed_text(report))
