"""`distilvec.distill` and `distilvec.plan`: a teacher and texts become a small student."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from distilvec.config.schema import Recipe
from distilvec.core.errors import DistilvecError, set_by
from distilvec.core.log import quiet_libraries
from distilvec.pipeline.finished_run import FinishedRun
from distilvec.pipeline.inputs import Model, Texts
from distilvec.pipeline.resolve import cache_root, resolve
from distilvec.pipeline.run import run as run_recipe
from distilvec.train.metrics import Callback
from distilvec.verbs.distill.recipe import check_texts_of, make_recipe, stated_root
from distilvec.verbs.distill.request import Request, argument_names
from distilvec.verbs.distill.texts import text_sources
from distilvec.verbs.opened_run import Run, with_the_arguments_of

if TYPE_CHECKING:
    from distilvec.verbs.plan.plan import Plan


@dataclass(frozen=True)
class Distillation:
    """What `distill` is asked for: a recipe, its run folder, and the names of the arguments that set its keys."""

    recipe: Recipe
    folder: Path
    argument_names: Mapping[str, str]
    restart: bool = False
    callbacks: Sequence[Callback] = ()

    @quiet_libraries()
    def run(self) -> FinishedRun | None:
        """Return the finished run; None in all processes but the main one."""
        with set_by(self.argument_names):
            return run_recipe(self.recipe, self.folder, self.restart, self.callbacks)

    def finish(self) -> Run:
        """Return the finished run, which the other processes open."""
        finished = self.run()
        return Run.open(self.folder) if finished is None else Run.of(finished)

    @quiet_libraries()
    def plan(self) -> Plan:
        """Return what the run would do, measured on a few texts."""
        from distilvec.verbs.plan.plan import make_plan  # a run does not load it

        with set_by(self.argument_names):
            return make_plan(resolve(self.recipe, self.folder), run=self.finish)


def distillation(
    teacher: Model | np.ndarray[Any, Any],
    texts: Texts | Sequence[Path] | None = None,
    *,
    student: Model | None = None,
    size: str | int | None = None,
    layers: int | list[int] | None = None,
    dims: Sequence[int] | None = None,
    language: str | None = None,
    minutes: float | None = None,
    epochs: int | None = None,
    test: str | Path | None = None,
    queries: Texts | Sequence[Path] | None = None,
    pairs: str | Path | None = None,
    method: str | None = None,
    out: str | Path | None = None,
    api_model: str | None = None,
    columns: Mapping[str, str] | None = None,
    where: Mapping[str, str | int | list[str | int | None] | None] | None = None,
    limit: int | None = None,
    similarity: Literal["cosine", "dot", "euclidean"] | None = None,
    repeats: Literal["first", "drop"] | None = None,
    made_by: Sequence[str] = (),
    query_prompt: str | None = None,
    document_prompt: str | None = None,
    built_in_prompt: str | None = None,
    refresh: bool = False,
    overrides: Mapping[str, Any] | None = None,
    restart: bool = False,
    callbacks: Sequence[Callback] = (),
) -> Distillation:
    """Distil `teacher` into a small student on `texts`. The same call again resumes, or opens the finished run.

    The run ends with a judgement that needs no labels: how many of the teacher's ten nearest neighbours of held-out
    texts the student finds. Its page is `out`/report.html.

    Example:
        >>> run = distilvec.distill("all-MiniLM-L6-v2", "documents.txt", size="5M")
        >>> run.student.encode(["a text"])
        >>> run.verdict, run.scores

    Args:
        teacher: A model (hub id, folder, SentenceTransformer), a table or index of vectors by its path or address
            (docs/index_formats.md), an API ("openai:MODEL", "http://HOST/v1"), or an array of vectors [texts, dim].
        texts: A file, a folder, a glob, an address (s3://...), the id of a data set on the hub, a list of Path of
            these, a list of texts, or a `datasets.Dataset`. None takes the texts of an index.
        student: The model to train. None: the teacher's own layers; for an index or an API a small model, and for a
            size below 15M of a wide English teacher as well. The student of an earlier run is trained on.
        size: Parameters of the student: "5M", "25%" of the teacher's. None: a quarter, unless `layers` or `student`
            says what to train.
        layers: The layers to keep instead of a size: a number, evenly spread, or their numbers from 0. 0 is a static
            student, a table of token vectors.
        dims: First dims that the vectors of student and teacher can be cut to: [384, 256, 128, 64], the whole width
            first; they are trained together.
        language: The language of the texts, such as "tr"; the student keeps its tokens alone.
        minutes: Train for about so many minutes on this machine.
        epochs: Passes over the texts. None: by the number of texts. 0: the student as it is fitted before the first
            step, from which the same call with epochs or minutes goes on.
        test: A labelled file, a folder or a suite to test on as well.
        queries: Texts of queries, in the forms of `texts`. With an index, `made_by` embeds those that it lacks.
        pairs: Clicks on an index, or other queries with stored documents that answer them: a file with query and id,
            query and document, or anchor, positive and negative; a folder with queries and qrels. A second stage
            learns from them, and is kept only if it helps queries that it has not seen (docs/methods/clicks.md).
        method: A method's name (`distilvec recipes`), or a path to a .py file. None: redact.
        out: The run folder. None: runs/TEACHER-SIZE.
        api_model: The model of an API that offers several.
        columns: An index's names of its columns, by text, embedding, id, role and origin (the document of a row); with
            another teacher "text" is the column of the texts, "origin" that of their documents.
        where: Read only rows of an index whose columns have these values, one of those in a list; None: rows without
            a value.
        limit: Read so many rows of an index, drawn at random.
        similarity: How an index compares vectors, where it does not say.
        repeats: Take the "first" of an index's rows of one text with different vectors, or "drop" them.
        made_by: Models or APIs that may have made an index: some of its texts are embedded again, which finds the
            prompts. The right one embeds the queries and texts that the index lacks.
        query_prompt: What the model of an index or behind an API is given before queries.
        document_prompt: What it is given before documents.
        built_in_prompt: A prompt of the teacher, by its name ("query", "document", "STS") or its words. The student
            gives the teacher's vectors with this prompt for texts without one, and has no prompts. Of an index it is
            the query side, which needs `queries` and `made_by`.
        refresh: Read an index again instead of using the local copy.
        overrides: Further keys of the recipe: {"train.batch_size": 64}.
        restart: Move an earlier run in the folder aside and start over.
        callbacks: Called as `callback(step, metrics)` for every logged line.

    Returns:
        The finished run. `distilvec.plan` takes the same arguments and returns the plan: minutes, bytes, cost.

    Errors: DistilvecError with the name of the argument, or the key of `overrides`, that is wrong.
    """
    request = Request(
        teacher=teacher,
        texts=texts,
        student=student,
        size=None if size is None else str(size),
        layers=layers,
        dims=None if dims is None else list(dims),
        language=language,
        minutes=minutes,
        epochs=epochs,
        test=None if test is None else Path(test),
        method=method,
        query_texts=queries,
        pairs=None if pairs is None else Path(pairs),
        api_model=api_model,
        columns=columns or None,
        where=where,
        limit=limit,
        similarity=similarity,
        repeats=repeats,
        query_prompt=query_prompt,
        document_prompt=document_prompt,
        built_in_prompt=built_in_prompt,
        out=None if out is None else Path(out),
        overrides=dict(overrides or {}),
    )
    return distillation_of(request, made_by, refresh, restart, callbacks)


@quiet_libraries()
def distillation_of(
    request: Request,
    made_by: Sequence[str] = (),
    refresh: bool = False,
    restart: bool = False,
    callbacks: Sequence[Callback] = (),
) -> Distillation:
    """Make the recipe of a request: its files are looked at, and with `made_by` or for an index its vectors."""
    root = stated_root(request.overrides) or cache_root()
    if request.query_texts is not None:
        queries = text_sources(request.query_texts, root, role="query", language=request.language)
        request = replace(request, queries=queries)
    with set_by(argument_names(request)):
        if request.kind == "table":
            from distilvec.verbs.distill.made_by import with_maker

            request = with_maker(request, made_by, root, refresh)
        elif made_by or refresh:
            raise DistilvecError("is for an index.", "Leave it out.", key="made_by" if made_by else "refresh")
        recipe = make_recipe(request, root)
    names = argument_names(request, recipe)
    with set_by(names):
        check_texts_of(request, recipe)
    return Distillation(recipe, request.folder, names, restart, callbacks)


distill = with_the_arguments_of(distillation, "distill", Distillation.finish)
plan = with_the_arguments_of(distillation, "plan", Distillation.plan)
plan.__doc__ = """Plan a distillation: what it would do, its minutes, bytes and cost, measured on a few texts.

The arguments are those of `distilvec.distill`. Nothing is trained; `plan(...).run()` trains.
"""
