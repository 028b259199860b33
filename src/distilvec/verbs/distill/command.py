"""The commands `distilvec distill` and `distilvec quickstart`."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated, Literal

from distilvec.cli.options import (
    JsonFile,
    Overrides,
    Restart,
    argument,
    changed_files,
    check_dry_run,
    check_input,
    check_model_path,
    check_outputs,
    names_by_key,
    option,
    read_columns,
    read_where,
    source_names,
)
from distilvec.cli.output import write_result
from distilvec.core.errors import DistilvecError, about, set_by
from distilvec.core.files import check_output_folder

OUT = Path("runs/quickstart")
SETTINGS = ("description", "train", "evaluation")  # sections of the recipe that `distill` would choose otherwise


def distill(
    teacher: Annotated[
        str,
        argument(
            "A model (folder or hub id), a table or index of vectors (docs/index_formats.md), or an API: openai:MODEL "
            "or http://HOST/v1.",
            key="teacher.model",
            metavar="TEACHER",
        ),
    ],
    texts: Annotated[
        list[str] | None,
        argument(
            "Files, folders, globs, a hub data set, or - for standard input; also recipe keys as KEY=VALUE. Optional "
            "with an index.",
            metavar="[TEXTS]... [KEY=VALUE]...",
        ),
    ] = None,
    student: Annotated[
        str | None,
        option(
            "The model to train instead of the teacher's own layers; an earlier student continues.", key="student.model"
        ),
    ] = None,
    size: Annotated[
        str | None,
        option("Parameters of the student: 5M, 20M, 25%. A quarter of the teacher's by default.", key="student.size"),
    ] = None,
    layers: Annotated[
        int | None, option("Keep n layers instead of a size; 0 is a static student.", key="student.layers", min=0)
    ] = None,
    dims: Annotated[
        str | None,
        option("Dims to which you can cut the vectors, trained together: 384,256,128,64.", key="student.dims"),
    ] = None,
    language: Annotated[
        str | None, option("The language of the texts, such as tr: the student keeps only the tokens of the texts.")
    ] = None,
    minutes: Annotated[
        float | None, option("Train for about n minutes on this machine.", key="train.minutes", min=0.1)
    ] = None,
    epochs: Annotated[
        int | None,
        option("Passes over the texts; by default it depends on their number. 0: fit only.", key="train.epochs", min=0),
    ] = None,
    test: Annotated[
        Path | None,
        option(
            "A labelled file, a folder or a suite to test on, in addition to overlap@10 of held-out texts.",
            key="evaluation.suite",
        ),
    ] = None,
    queries: Annotated[
        list[str] | None, option("Also train on these query texts: a file or folder. May be repeated.")
    ] = None,
    pairs: Annotated[
        Path | None,
        option(
            "Clicks on an index, for a second stage: a file with query and id, or labelled rows.",
            key="pairs.path",
        ),
    ] = None,
    method: Annotated[
        str | None, option("A method (distilvec recipes), or a .py file; redact by default.", key="method.name")
    ] = None,
    out: Annotated[Path | None, option("The run folder; runs/TEACHER-SIZE by default.")] = None,
    dry_run: Annotated[bool, option("Show what would be done and how long it takes, then stop.", "--dry-run")] = False,
    restart: Restart = False,
    api_model: Annotated[str | None, option("The model, if the API offers several.")] = None,
    columns: Annotated[
        list[str] | None,
        option(
            "text=NAME, origin=NAME: the columns of texts and of their documents; for an index also embedding=, id=, "
            "role=",
            "--column",
            key="teacher.columns",
        ),
    ] = None,
    where: Annotated[
        list[str] | None,
        option(
            "NAME=VALUE: read only index rows with this value, or null. Another name narrows, the same name widens.",
            key="teacher.where",
        ),
    ] = None,
    limit: Annotated[
        int | None, option("Read n rows of an index, drawn at random.", key="teacher.limit", min=1)
    ] = None,
    similarity: Annotated[
        Literal["cosine", "dot", "euclidean"] | None,
        option("How the index compares vectors, if it does not say.", key="teacher.similarity"),
    ] = None,
    repeats: Annotated[
        Literal["first", "drop"] | None,
        option(
            "Index rows with the same text and different vectors: take the first, or drop them.", key="teacher.repeats"
        ),
    ] = None,
    made_by: Annotated[
        list[str] | None,
        option(
            "A model or API that may have made the index: finds its prompts, embeds --queries. May be repeated.",
            key="teacher.made_by",
        ),
    ] = None,
    query_prompt: Annotated[
        str | None,
        option("The prompt that the model of an index or API puts before queries.", key="teacher.prompts.query"),
    ] = None,
    document_prompt: Annotated[
        str | None, option("The prompt before documents.", key="teacher.prompts.document")
    ] = None,
    built_in_prompt: Annotated[
        str | None,
        option(
            "Build a prompt into the student: its name (query, document, STS), or its words.",
            key="student.built_in_prompt",
            metavar="NAME|TEXT",
        ),
    ] = None,
    refresh: Annotated[
        bool, option("Read an index again instead of using the local copy.", "--refresh", key="teacher.refresh")
    ] = False,
    json_file: JsonFile = None,
) -> None:
    """Distil a teacher into a small student on your texts.

    It ends with overlap@10, the share of the teacher's ten nearest texts that the student finds, and with a page. The
    same command resumes.
    """
    from distilvec.core.method_file import check_method_name
    from distilvec.students.design import parse_size
    from distilvec.teachers.sources import check_index, source_kind
    from distilvec.verbs.distill.words import (
        TextName,
        check_content,
        check_first_rows,
        check_has_texts,
        check_teacher,
        check_texts,
        is_change,
        read_dims,
        text_paths,
    )

    check_dry_run(dry_run, json_file)
    words = texts or []
    changes = [word for word in words if is_change(word)]
    names = [TextName(word) for word in words if not is_change(word)]
    query_names = [TextName(word) for word in queries or []]
    if student is not None:
        check_model_path(student, "--student")
    check_input(test, "--test")
    check_input(pairs, "--pairs")
    if out is not None:
        with about("--out", out):
            check_output_folder(out)
    check_teacher(teacher, names)
    column_names = read_columns(columns or [])
    with about("texts"):
        check_texts(names)
    with about("queries"):
        check_texts(query_names)
    if size is not None:
        with about("--size"):
            parse_size(size)
    if method is not None:
        with set_by({"method.name": "--method"}):
            check_method_name(method)

    from distilvec.config.recipe import read_overrides

    overrides = read_overrides(changes)
    if source_kind(teacher) in ("model", "api"):
        check_has_texts(teacher, names or None)
        with set_by(source_names(len(names), column="--column")):
            check_content(names, column_names.get("text"))
        if "text" not in column_names:
            with set_by(source_names(len(query_names), "queries", "--column")):
                check_first_rows(query_names)
    models = [teacher, student, *(made_by or []), pairs]
    files = changed_files(overrides if method is None else {"method.name": method, **overrides})
    tested: list[Path] = []
    if test is not None:
        from distilvec.verbs.distill.evaluation_data import check_test, tested_paths

        tested = tested_paths(test)
        check_test(test)
    check_outputs([("--json", json_file)], [*models, *text_paths([*names, *query_names]), *tested, *files])
    conditions = read_where(where) if where else None
    if source_kind(teacher) == "table" and not any(key.startswith("teacher.") for key in overrides):
        with set_by(names_by_key(distill) | {"teacher.vectors": "teacher"}):
            check_index(teacher, column_names, conditions)

    from distilvec.verbs.distill.request import Request, argument_names, check_request

    request = Request(
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
        query_texts=query_names or None,
        pairs=pairs,
        method=method,
        api_model=api_model,
        columns=column_names or None,
        where=conditions,
        limit=limit,
        similarity=similarity,
        repeats=repeats,
        query_prompt=query_prompt,
        document_prompt=document_prompt,
        built_in_prompt=built_in_prompt,
        out=out,
        overrides=overrides,
    )
    with set_by(argument_names(request)):
        check_request(request)

    from distilvec.cli.terminal import show_end, show_table
    from distilvec.verbs.distill.distill import distillation_of

    work = distillation_of(request, made_by or (), refresh, restart)
    if dry_run:
        show_table(["", work.recipe.name], work.plan().lines)
        return
    run = work.run()
    if run is not None:
        write_result(json_file, run.to_json())
        show_end(run)


def quickstart(
    overrides: Overrides = None,
    out: Annotated[Path, option("The run folder.")] = OUT,
    restart: Restart = False,
    open_page: Annotated[bool, option("Open the page in a browser at the end.", "--open")] = False,
    json_file: JsonFile = None,
) -> None:
    """Distil a first student on built-in texts, offline.

    all-MiniLM-L6-v2 (22.7M parameters) becomes a 5M student in minutes, on the docstrings of Python's library. The same
    as `distilvec distill all-MiniLM-L6-v2 python-docstrings --size 5M`, with a short training and a test.
    """
    from distilvec.config.builtin import recipe_file
    from distilvec.config.recipe import override, read_overrides, read_tree, stated_sizes
    from distilvec.verbs.distill.words import BUILT_IN

    recipe = read_tree(recipe_file("quickstart"))
    user_changes = read_overrides(overrides or [])
    changes = {name: recipe[name] for name in SETTINGS}
    override(changes, {key: value for key, value in user_changes.items() if key.split(".")[0] in SETTINGS})
    changes["corpus.exclude_evaluation"] = recipe["corpus"]["exclude_evaluation"]
    changes["student.max_length"] = recipe["student"]["max_length"]
    changes |= user_changes
    check_outputs([("--json", json_file)], [recipe_file("quickstart"), *changed_files(changes)])
    # The user, on the size or on what it would decide
    decides_itself = "student.size" in changes or bool(stated_sizes(changes))

    from distilvec.cli.terminal import show_end
    from distilvec.verbs.distill.distill import distillation

    work = distillation(
        recipe["teacher"]["model"],
        BUILT_IN,
        size=None if decides_itself else recipe["student"]["size"],
        language="en",
        out=out,
        overrides=changes,
        restart=restart,
    )
    run = work.run()
    if run is None:
        return
    write_result(json_file, run.to_json())
    show_end(run)
    if open_page and (run.page is None or not webbrowser.open(run.page.resolve().as_uri())):
        raise DistilvecError("no page or no browser was found.", f"Look into {run.folder}.", key="--open")
