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
    named_options,
    option,
)
from distilvec.cli.output import write_result

_KEYS = {
    "teacher.vectors": "index",
    "teacher.texts": "--texts",
    "teacher.columns": "--column",
    "teacher.limit": "--limit",
    "teacher.similarity": "--similarity",
    "teacher.repeats": "--repeats",
    "evaluation.stored": "--sample",
    "test": "--test",
}


def check(
    model: ModelOrFile,
    index: Annotated[
        str, argument("A .parquet, .arrow, .npy, .faiss or .lance path, or a qdrant:// or postgresql:// address.")
    ],
    test: Annotated[
        Path | None, option("Your own judged queries: rows of query and document, a folder or a suite.")
    ] = None,
    sample: Annotated[
        int, option("Search for n stored texts, drawn at random; at most a fifth of the index.", min=1)
    ] = 500,
    column: Annotated[
        list[str] | None, option("PART=NAME of text, embedding, id, role, origin: text=content. May be repeated.")
    ] = None,
    texts: Annotated[
        Path | None, option("The texts of .npy or .faiss: one for each row, or with the index's ids.")
    ] = None,
    limit: Annotated[int | None, option("Read n rows of the index, drawn at random.", min=1)] = None,
    similarity: Annotated[
        Literal["cosine", "dot", "euclidean"] | None,
        option("How your search compares vectors, where the index does not state it; cosine by default."),
    ] = None,
    repeats: Annotated[
        Literal["first", "drop"] | None,
        option("Rows of one text with different vectors: take the first, or drop them. Refused by default."),
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

    from distilvec.verbs.check.section import index_keys, read_columns
    from distilvec.verbs.distill.evaluation_data import tested_paths

    check_outputs([("--json", json_file)], [model, index, texts, *tested_paths(test)])

    columns = read_columns(column or [])
    index_keys(index, "index")  # refuses a wrong address before models are loaded

    from distilvec.cli.terminal import print_result, show_problems, show_scores
    from distilvec.verbs.check.check import check as check_model_with_index

    with named_options(_KEYS):
        found = check_model_with_index(
            model,
            index,
            test=test,
            sample=sample,
            columns=columns,
            texts=texts,
            limit=limit,
            similarity=similarity,
            repeats=repeats,
            refresh=refresh,
            trust_remote_code=trust_remote_code,
        )
    write_result(json_file, found.to_json())
    show_scores(found.scores)
    print_result(f"\n{found.advice}\n{found.line}")
    show_problems(found.problems, "--test")
    if not found.fits:
        raise typer.Exit(1)
