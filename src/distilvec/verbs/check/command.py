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
    names_by_key,
    option,
    read_columns,
    read_where,
)
from distilvec.cli.output import write_result
from distilvec.core.errors import about, set_by


def check(
    model: ModelOrFile,
    index: Annotated[
        str,
        argument("A table or index of vectors, by its path or address (docs/index_formats.md).", key="teacher.vectors"),
    ],
    queries: Annotated[
        list[str] | None,
        option("Real queries, such as a search log: a file or folder. They decide the verdict. May be repeated."),
    ] = None,
    made_by: Annotated[
        str | None, option("The model or API that made the index; it embeds up to 1,000 of the --queries.")
    ] = None,
    at_least: Annotated[
        float | None,
        option("Exit with status 1 if overlap@10 is lower; by default if the model does not fit.", min=0, max=1),
    ] = None,
    test: Annotated[
        Path | None, option("Your own judged queries: rows of query and document, a folder or a suite.")
    ] = None,
    sample: Annotated[
        int,
        option(
            "Without --queries: the number of stored texts to search for, at most a fifth of the index.",
            key="evaluation.stored",
            min=1,
        ),
    ] = 500,
    columns: Annotated[
        list[str] | None,
        option(
            "PART=NAME for text, embedding, id, role or origin: text=content. May be repeated.",
            "--column",
            key="teacher.columns",
        ),
    ] = None,
    texts: Annotated[
        Path | None,
        option("The texts of an index without texts: one for each row, or with ids.", key="teacher.texts"),
    ] = None,
    where: Annotated[
        list[str] | None,
        option(
            "NAME=VALUE: read only index rows with this value, or null. Another name narrows, the same name widens.",
            key="teacher.where",
        ),
    ] = None,
    limit: Annotated[
        int | None, option("Read n rows of the index, drawn at random.", key="teacher.limit", min=1)
    ] = None,
    similarity: Annotated[
        Literal["cosine", "dot", "euclidean"] | None,
        option(
            "How your search compares vectors, if the index does not say; cosine by default.",
            key="teacher.similarity",
        ),
    ] = None,
    repeats: Annotated[
        Literal["first", "drop"] | None,
        option(
            "Rows with the same text and different vectors: take the first, or drop them. Refused by default.",
            key="teacher.repeats",
        ),
    ] = None,
    refresh: Annotated[
        bool, option("Read the index again instead of using the local copy.", "--refresh", key="teacher.refresh")
    ] = False,
    trust_remote_code: TrustRemoteCode = False,
    json_file: JsonFile = None,
) -> None:
    """Judge a model as the query encoder of an index.

    The model embeds real queries, or stored texts, and searches the stored vectors. No document is embedded again. The
    exit status is 1 if the model does not fit.
    """
    check_model_path(model, "model")
    if made_by is not None:
        check_model_path(made_by, "--made-by")
    check_input(texts, "--texts")
    check_input(test, "--test")

    from distilvec.teachers.sources import check_index
    from distilvec.verbs.distill.words import TextName, check_texts, text_paths

    query_names = [TextName(word) for word in queries or []]
    with about("queries"):
        check_texts(query_names)
    inputs = [model, index, texts, made_by, *text_paths(query_names)]
    if test is not None:
        from distilvec.verbs.distill.evaluation_data import tested_paths

        inputs += tested_paths(test)
    check_outputs([("--json", json_file)], inputs)

    column_names = read_columns(columns or [])
    conditions = read_where(where) if where else None
    with set_by(names_by_key(check)), about("index"):
        check_index(index, column_names, conditions)

    from distilvec.cli.terminal import print_result, show_log, show_problems, show_scores
    from distilvec.verbs.check.check import check as check_model_with_index

    result = check_model_with_index(
        model,
        index,
        queries=query_names or None,
        made_by=made_by,
        at_least=at_least,
        test=test,
        sample=sample,
        columns=column_names,
        texts=texts,
        where=conditions,
        limit=limit,
        similarity=similarity,
        repeats=repeats,
        refresh=refresh,
        trust_remote_code=trust_remote_code,
    )
    write_result(json_file, result.to_json())
    if test is not None:  # the line has what stored texts say
        show_scores(result.scores)
    if result.judgement.log is not None:
        show_log(result.judgement.log)
    print_result(f"\n{result.advice}\n{result.line}")
    share = result.judgement.share
    if at_least is not None and share is not None and not result.passes:
        print_result(f"overlap@10 is {share.mean:.4f}, lower than --at-least {at_least:g}.")
    show_problems(result.problems, "--test")
    if not result.passes:
        raise typer.Exit(1)
