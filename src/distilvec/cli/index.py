"""The verbs of `distilvec index`: a local query encoder for an index that exists already."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from distilvec.cli.layout import Listed, example
from distilvec.cli.options import (
    JsonFile,
    ModelOrFile,
    Overrides,
    Restart,
    argument,
    check_input,
    check_model,
    check_outputs,
    named_options,
    option,
)
from distilvec.cli.output import write_result
from distilvec.core.errors import DistilvecError

if TYPE_CHECKING:
    from distilvec.config.schema import TeacherSection
    from distilvec.teachers.table_embedder import TableEmbedder

_DISTILL = "table.parquet --student MODEL --layers 3 --out runs/queries"
_CHECK = "runs/queries/student --index postgresql://me@db/shop/products --column text=content"
_KEYS = {
    "teacher.vectors": "index",
    "teacher.texts": "--texts",
    "teacher.columns": "--column",
    "teacher.limit": "--limit",
    "teacher.similarity": "--similarity",
    "evaluation.stored": "--queries",
}
_PARTS = ("text", "embedding", "id", "role")
_ABOUT = (
    "A .parquet, .arrow, .npy, .faiss or .lance path, or a qdrant:// or postgresql:// address (docs/existing_index.md)."
)

Index = Annotated[str, argument(_ABOUT)]
Columns = Annotated[list[str] | None, option("PART=NAME of text, embedding, id, role: text=content. May be repeated.")]
Texts = Annotated[Path | None, option("The texts of .npy or .faiss: one for each row, or with the index's ids.")]
Limit = Annotated[int | None, option("Read n rows of the index, drawn at random.", min=1)]
Queries = Annotated[int, option("Stored texts that are searched for, at most a fifth of the index.", min=1)]
Suite = Annotated[Path | None, option("Your own judged queries: a suite file (docs/guide.md).")]
Similarity = Annotated[
    Literal["cosine", "dot", "euclidean"] | None,
    option("How your search compares vectors, where the index does not state it; cosine by default."),
]
Refresh = Annotated[bool, option("Read the index again instead of using the local copy.", "--refresh")]

index_app = typer.Typer(
    cls=Listed,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="A local query encoder for the index you already have: train and judge it, or judge it before a switch.",
    epilog=example("index", f"distill {_DISTILL}", f"check {_CHECK}"),
)


@index_app.command("distill", epilog=example("index distill", _DISTILL))
def index_distill(
    index: Index,
    student: Annotated[str, option("The model to train: a folder or id.")],
    out: Annotated[Path, option("The run folder; the query encoder is its student/.")],
    overrides: Overrides = None,
    layers: Annotated[int | None, option("Keep n of the model's layers, evenly spread.", min=1)] = None,
    epochs: Annotated[
        int | None, option("Passes over the texts; by default until about 100,000 are seen.", min=1)
    ] = None,
    column: Columns = None,
    texts: Texts = None,
    limit: Limit = None,
    similarity: Similarity = None,
    suite: Suite = None,
    queries: Queries = 500,
    candidate: Annotated[
        list[str] | None, option("A model that may have made the index: finds its prompts. May be repeated.")
    ] = None,
    query_prompt: Annotated[str | None, option("Prepended to queries by the index's model; none by default.")] = None,
    document_prompt: Annotated[str | None, option("Prepended to documents by the index's model.")] = None,
    refresh: Refresh = False,
    restart: Restart = False,
    json_file: JsonFile = None,
) -> None:
    """Train a small query encoder on the index's own texts and vectors, and judge it; run again to resume.

    Ends with the share of the index's top 10 that the encoder finds. Keys of the recipe can be changed as for
    `distilvec run`: train.batch_size=64.
    """
    check_model(student, "--student")
    check_input(texts, "--texts")
    check_input(suite, "suite")
    check_outputs([("--json", json_file)], [suite])

    from distilvec.config import recipe as recipes

    changes = recipes.read_overrides(overrides or [])
    with named_options(_KEYS):
        section = _section(index, column, texts, limit, similarity)

        from distilvec.cli.terminal import show_finished
        from distilvec.pipeline.index import index_recipe, read_check
        from distilvec.pipeline.run import run as run_recipe
        from distilvec.teachers.open import open_table

        table = open_table(section, refresh=refresh)
        stated = {"query": query_prompt, "document": document_prompt}
        prompts = {role: prompt for role, prompt in stated.items() if prompt is not None}
        if not prompts:
            prompts = _inferred(table, candidate or [])
        teacher = section.model_dump(mode="json", exclude_unset=True)
        if prompts:
            teacher["prompts"] = prompts
        model: dict[str, Any] = {"model": student}
        if layers is not None:
            model["layers"] = layers
        suite_name = None if suite is None else str(suite.resolve())
        tree = index_recipe(teacher, model, out.resolve().name, queries, suite_name, epochs)
        recipe = recipes.recipe_from(tree, changes, "distilvec index distill")
        result = run_recipe(recipe, out, restart)
    if result is not None:
        write_result(json_file, read_check(result).to_json())
    show_finished(result)


@index_app.command("check", epilog=example("index check", _CHECK))
def index_check(
    model: ModelOrFile,
    index: Annotated[str, option(_ABOUT)],
    suite: Suite = None,
    queries: Queries = 500,
    column: Columns = None,
    texts: Texts = None,
    limit: Limit = None,
    similarity: Similarity = None,
    refresh: Refresh = False,
    json_file: JsonFile = None,
) -> None:
    """Judge a model as the query encoder of an index before a switch; exit status 1 if it does not fit.

    No document is embedded again: the model embeds stored texts, which are searched for among the stored vectors.
    """
    check_model(model, "model")
    check_input(texts, "--texts")
    check_input(suite, "suite")
    check_outputs([("--json", json_file)], [suite])

    with named_options(_KEYS):
        section = _section(index, column, texts, limit, similarity)

        from distilvec.cli.terminal import print_result, show_problems, show_scores
        from distilvec.pipeline.index import check_index

        check = check_index(model, section, suite, queries, refresh)
    write_result(json_file, check.to_json())
    show_scores(check.scores)
    print_result(f"\n{check.advice}\n{check.line}")
    show_problems(check.problems, "suite")
    if not check.fits:
        raise typer.Exit(1)


def _section(
    index: str, column: list[str] | None, texts: Path | None, limit: int | None, similarity: str | None
) -> TeacherSection:
    """The recipe's teacher section of an index."""
    from distilvec.config.recipe import section_of
    from distilvec.config.schema import TeacherSection
    from distilvec.teachers.indexes.address import read_address

    read_address(index, "index")  # so that a password in it is never repeated by another message
    columns = dict(_part(text) for text in column or [])
    if "://" not in index:
        check_input(Path(index), "index")
    values = {
        "vectors": index if "://" in index else Path(index).resolve(),
        "columns": columns or None,
        "texts": None if texts is None else texts.resolve(),
        "limit": limit,
        "similarity": similarity,
    }
    return section_of(TeacherSection, "teacher", values)


def _part(text: str) -> tuple[str, str]:
    part, equals, name = text.partition("=")
    if not equals or not name or part not in _PARTS:
        raise DistilvecError("--column", f"{text!r} is not PART=NAME. Parts: {', '.join(_PARTS)}; as in text=content.")
    return part, name


def _inferred(table: TableEmbedder, candidates: list[str]) -> dict[str, str]:
    """Prompts of the candidate whose vectors the index has; none without one."""
    if not candidates:
        return {}
    from distilvec.core.log import log
    from distilvec.pipeline.index import recognize

    compared = recognize(table, candidates)
    for model in compared:
        log(f"{model.model}: mean cosine {model.cosine:.3f} with the stored vectors, prompt {model.prompt!r}")
    nearest = compared[0]
    if not nearest.same:
        log("no candidate has made the index; it is taken without prompts")
        return {}
    query_prompt = nearest.prompts["query"]
    if query_prompt != nearest.prompt:
        log("queries have another prompt than documents: the encoder learns from documents alone")
    prompts = {"query": query_prompt, "document": nearest.prompt}
    return {role: prompt for role, prompt in prompts.items() if prompt}
