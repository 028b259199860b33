"""The command `distilvec distill`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from distilvec.cli.options import (
    JsonFile,
    Restart,
    argument,
    changed_files,
    check_dry_run,
    check_input,
    check_model_path,
    check_outputs,
    option,
)
from distilvec.cli.output import write_result
from distilvec.core.errors import DistilvecError
from distilvec.verbs.distill.arguments import arguments_named, options_named


def distill(
    teacher: Annotated[
        str,
        argument(
            "A model (folder or hub id), a table or index of vectors (docs/index_formats.md), or an API: openai:MODEL "
            "or http://HOST/v1."
        ),
    ],
    texts: Annotated[
        list[str] | None,
        argument(
            "Files, folders, globs, a hub data set, or - for standard input; and keys of the recipe as KEY=VALUE. May "
            "be left out with an index.",
            metavar="[TEXTS]... [KEY=VALUE]...",
        ),
    ] = None,
    student: Annotated[
        str | None, option("The model to train, instead of the teacher's own layers; an earlier student goes on.")
    ] = None,
    size: Annotated[
        str | None, option("Parameters of the student: 5M, 20M, 25%. A quarter of the teacher's by default.")
    ] = None,
    layers: Annotated[int | None, option("Keep n layers instead of a size; 0 is a static student.", min=0)] = None,
    dims: Annotated[
        str | None, option("First dims that the vectors can be cut to, trained together: 384,256,128,64.")
    ] = None,
    language: Annotated[
        str | None, option("The language of the texts, such as tr: the student keeps its tokens alone.")
    ] = None,
    minutes: Annotated[float | None, option("Train for about n minutes on this machine.", min=0.1)] = None,
    epochs: Annotated[int | None, option("Passes over the texts; by default by their number.", min=1)] = None,
    test: Annotated[
        Path | None, option("A labelled file, a folder or a suite to test on, besides overlap@10 of held-out texts.")
    ] = None,
    queries: Annotated[
        list[str] | None, option("Query texts to train on as well: a file or folder. May be repeated.")
    ] = None,
    method: Annotated[str | None, option("A method (distilvec recipes), or a .py file; redact by default.")] = None,
    out: Annotated[Path | None, option("The run folder; runs/TEACHER-SIZE by default.")] = None,
    dry_run: Annotated[bool, option("Show what would be done and how long it takes, then stop.", "--dry-run")] = False,
    restart: Restart = False,
    api_model: Annotated[str | None, option("The model of an API that offers several.")] = None,
    column: Annotated[
        list[str] | None,
        option("text=NAME, origin=NAME: columns of texts, of their documents. Of an index also embedding=, id=, role="),
    ] = None,
    limit: Annotated[int | None, option("Read n rows of an index, drawn at random.", min=1)] = None,
    similarity: Annotated[
        Literal["cosine", "dot", "euclidean"] | None, option("How an index compares vectors, where it does not say.")
    ] = None,
    repeats: Annotated[
        Literal["first", "drop"] | None,
        option("Rows of an index with one text and different vectors: take the first, or drop them."),
    ] = None,
    made_by: Annotated[
        list[str] | None,
        option("A model or API that may have made the index: finds its prompts, embeds --queries. May be repeated."),
    ] = None,
    query_prompt: Annotated[str | None, option("The prompt of an index's or API's model before queries.")] = None,
    document_prompt: Annotated[str | None, option("The same before documents.")] = None,
    refresh: Annotated[bool, option("Read an index again instead of using the local copy.", "--refresh")] = False,
    json_file: JsonFile = None,
) -> None:
    """Distil a teacher into a small student on your texts.

    The same command again resumes. It ends with overlap@10, the share of the teacher's ten nearest texts that the
    student finds, and with a page.
    """
    from distilvec.core.method_file import check_method_name
    from distilvec.students.design import parse_size
    from distilvec.verbs.distill.evaluation_data import tested_paths
    from distilvec.verbs.distill.names import TextName, check_texts, text_paths

    check_dry_run(dry_run, json_file)
    words = texts or []
    changes = [word for word in words if _is_change(word)]
    names = [TextName(word) for word in words if not _is_change(word)]
    query_names = [TextName(word) for word in queries or []]
    if student is not None:
        check_model_path(student, "--student")
    check_input(test, "--test")
    with options_named(), arguments_named():
        check_teacher(teacher)
        check_texts(names)
        check_texts(query_names, key="queries")
        if size is not None:
            parse_size(size, "size")
        if method is not None:
            check_method_name(method)

    from distilvec.config.recipe import read_overrides

    stated = read_overrides(changes)
    models = [teacher, student, *(made_by or [])]
    files = changed_files(stated if method is None else {"method.name": method, **stated})
    check_outputs([("--json", json_file)], [*models, *text_paths([*names, *query_names]), *tested_paths(test), *files])

    from distilvec.verbs.check.section import read_columns
    from distilvec.verbs.distill.distill import distill as distil
    from distilvec.verbs.distill.screens import show_end

    with options_named():
        run = distil(
            teacher,
            names or None,
            student=student,
            size=size,
            layers=layers,
            dims=None if dims is None else read_dims(dims),
            language=language,
            minutes=minutes,
            epochs=epochs,
            test=test,
            queries=query_names or None,
            method=method,
            out=out,
            api_model=api_model,
            columns=read_columns(column or []),
            limit=limit,
            similarity=similarity,
            repeats=repeats,
            made_by=made_by or (),
            query_prompt=query_prompt,
            document_prompt=document_prompt,
            refresh=refresh,
            overrides=stated,
            restart=restart,
            dry_run=dry_run,
        )
    if run is not None:
        write_result(json_file, run.to_json())
        show_end(run)


def read_dims(text: str) -> list[int]:
    """Read numbers with commas."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise DistilvecError(
            f"found {text!r}; expected numbers with commas.", "Give for example 384,128.", key="--dims"
        )
    return [int(part) for part in parts]


def check_teacher(name: str) -> None:
    """Refuse a model or an index that is a path and does not exist, and an address of no known kind."""
    from distilvec.teachers.sources import check_kind, source_kind

    check_kind(name, "teacher")
    if source_kind(name) == "table":
        from distilvec.verbs.check.section import index_keys

        index_keys(name, "teacher")
    else:
        check_model_path(name, "teacher")


def _is_change(word: str) -> bool:
    """Return whether a word is KEY=VALUE, not a file: keys are dotted names, and a file that exists is a file."""
    key, equals, _ = word.partition("=")
    return bool(equals) and key.replace(".", "").replace("_", "").isalnum() and not Path(word).exists()
