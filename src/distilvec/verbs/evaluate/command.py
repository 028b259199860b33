"""The command `distilvec evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from distilvec.cli.options import (
    JsonFile,
    TrustRemoteCode,
    argument,
    check_input,
    check_model_path,
    check_outputs,
    option,
)
from distilvec.cli.output import write_result


def evaluate(
    model: Annotated[str, argument("A folder or id, a file of `distilvec export`, or an API: openai:MODEL, a URL.")],
    suite: Annotated[Path | None, option("A suite file (YAML list of local tasks).")] = None,
    mteb: Annotated[str | None, option("Tasks of MTEB, separated by commas.")] = None,
    benchmark: Annotated[
        str | None, option("A benchmark of MTEB, such as 'MTEB(eng, v2)', BEIR-14, or TR-MTEB.")
    ] = None,
    data: Annotated[Path | None, option("Folder with <MTEB task>/ folders, read instead of the hub.")] = None,
    teacher: Annotated[
        str | None, option("Compare with this model, API or index, and search its document vectors.")
    ] = None,
    protocol: Annotated[str, option("Main metrics to show: mteb-like, talas, distillmoe, emo, surgery.")] = "mteb-like",
    mixed: Annotated[
        bool, option("Add a column that mixes both models, also in pairs, STS and classification.")
    ] = False,
    trust_remote_code: TrustRemoteCode = False,
    json_file: JsonFile = None,
) -> None:
    """Score a model on local tasks or on MTEB.

    Tasks are STS, classification, pairs and retrieval.
    """
    check_model_path(model, "model")
    check_input(suite, "suite")
    check_input(data, "--data")
    if teacher is not None:
        check_model_path(teacher, "--teacher")

    from dataclasses import asdict

    from distilvec.evaluation.suite import suite_paths
    from distilvec.verbs.evaluate.scores import check_evaluation, score_models

    tasks = [] if suite is None else suite_paths(suite)
    check_outputs([("--json", json_file)], [model, teacher, data, *tasks])
    check_evaluation(model, suite, teacher, mteb, benchmark, data, protocol, mixed)
    scores = score_models(model, suite, teacher, mteb, benchmark, data, protocol, mixed, trust_remote_code)

    from distilvec.cli.terminal import show_problems, show_scores

    if scores.columns:
        write_result(json_file, {**asdict(scores)["columns"], "averages": scores.averages()})
    if any(scores.columns.values()):
        show_scores(scores.columns, scores.also)
    show_problems(scores.problems, "suite" if suite is not None else "--mteb")
