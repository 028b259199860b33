"""The command `distilvec check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from distilvec.cli.options import (
    JsonFile,
    ModelOrFile,
    TrustRemoteCode,
    argument,
    check_input,
    check_model_path,
    check_outputs,
    option,
    read_columns,
)
from distilvec.cli.output import write_result


def check(
    model: ModelOrFile,
    index: Annotated[
        str,
        argument("A table or index of vectors, by its path or address (docs/index_formats.md).", key="teacher.vectors"),
    ],
    test: Annotated[
        Path | None, option("Your own judged queries: rows of query and document, a folder or a suite.")
    ] = None,
    sample: Annotated[
        int,
        option(
            "Search for n stored texts, drawn at random; at most a fifth of the index.", key="evaluation.stored", min=1
        ),
    ] = 500,
    columns: Annotated[
        list[str] | None,
        option(
            "PART=NAME of text, embedding, id, role, origin: text=content. May be repeated.",
            "--column",
            key="teacher.columns",
        ),
    ] = None,
    texts: Annotated[
        Path | None,
        option("The texts, for an index of vectors alone: one for each row, or its ids.", key="teacher.texts"),
    ] = None,
    limit: Annotated[
        int | None, option("Read n rows of the index, drawn at random.", key="teacher.limit", min=1)
    ] = None,
    similarity: Annotated[
        Literal["cosine", "dot", "euclidean"] | None,
        option(
            "How your search compares vectors, where the index does not state it; cosine by default.",
            key="teacher.similarity",
        ),
    ] = None,
    repeats: Annotated[
        Literal["first", "drop"] | None,
        option(
            "Rows of one text with different vectors: take the first, or drop them. Refused by default.",
            key="teacher.repeats",
        ),
    ] = None,
    refresh: Annotated[bool, option("Read the index again instead of using the local copy.", "--refresh")] = False,
    trust_remote_code: TrustRemoteCode = False,
    json_file: JsonFile = None,
) -> None:
    """Judge a model as the query encoder of an index.

    Before a switch; with exit status 1 if it does not fit. No document is embedded again: the model embeds stored
    texts, which are searched for among the stored vectors.
    """
    check_model_path(model, "model")
    check_input(texts, "--texts")
    check_input(test, "--test")

    from distilvec.verbs.check.section import index_keys
    from distilvec.verbs.distill.evaluation_data import tested_paths

    check_outputs([("--json", json_file)], [model, index, texts, *tested_paths(test)])

    column_names = read_columns(columns or [])
    index_keys(index, "index")  # refuses a wrong address before models are loaded

    from distilvec.cli.terminal import print_result, show_problems, show_scores
    from distilvec.verbs.check.check import check as check_model_with_index

    result = check_model_with_index(
        model,
        index,
        test=test,
        sample=sample,
        columns=column_names,
        texts=texts,
        limit=limit,
        similarity=similarity,
        repeats=repeats,
        refresh=refresh,
        trust_remote_code=trust_remote_code,
    )
    write_result(json_file, result.to_json())
    show_scores(result.scores)
    print_result(f"\n{result.advice}\n{result.line}")
    show_problems(result.problems, "--test")
    if not result.fits:
        raise typer.Exit(1)
