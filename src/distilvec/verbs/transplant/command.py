"""The command `distilvec transplant`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from distilvec.cli.options import (
    Model,
    TextColumns,
    TextLimit,
    TrustRemoteCode,
    check_model_path,
    check_positive,
    option,
    source_names,
)
from distilvec.core.errors import about, set_by


def transplant(
    teacher: Model,
    out: Annotated[Path, option("The new model's folder.")],
    texts: Annotated[list[str] | None, option("A file or folder of texts, or LANGUAGE=FILE; may be repeated.")] = None,
    max_length: Annotated[
        int | None, option("Tokens that the model reads of a text; unchanged by default.", min=1)
    ] = None,
    column: TextColumns = None,
    limit: TextLimit = None,
    rank: Annotated[int | None, option("Numbers per token: a factorized table (ELECTRA's layout).", min=2)] = None,
    budget: Annotated[str | None, option("All parameters together, such as 5M; sets rank and tokens.")] = None,
    budget_mb: Annotated[float | None, option("The same in megabytes of weights, 4 bytes a parameter.")] = None,
    overwrite: Annotated[
        bool, option("Replace an earlier model of distilvec; other files stay.", "--overwrite")
    ] = False,
    trust_remote_code: TrustRemoteCode = False,
    kind: Annotated[
        Literal["trim", "hybrid", "bpe", "unigram", "wordpiece"],
        option("trim: tokens that the texts use; hybrid: also new tokens of the target; others: trained on the texts."),
    ] = "trim",
    vocab_size: Annotated[
        int | None,
        option("The number of tokens, or as close as the texts allow; trim keeps all used tokens by default."),
    ] = None,
    tokenizer: Annotated[
        str | None, option("An existing tokenizer instead: a folder, hub id, tokenizer.json or .model file.")
    ] = None,
    target: Annotated[str | None, option("With hybrid: the language that gets its own tokens.")] = None,
    share: Annotated[
        int | None, option("With hybrid: how many tokens that language gets, as far as its texts allow.")
    ] = None,
    letters: Annotated[
        Literal["all", "seen"] | None,
        option(
            "Keep all letters of the old alphabet, or only letters of the texts; by default all, up to half the size."
        ),
    ] = None,
    compose: Annotated[
        Literal["mean", "weighted", "first", "last"], option("How new embeddings are composed of the old pieces.")
    ] = "mean",
    keep_norm: Annotated[
        bool, option("Scale composed embeddings to the mean norm of their pieces.", "--keep-norm")
    ] = False,
) -> None:
    """Give a model another vocabulary.

    New embeddings are composed of old embeddings; every other weight stays.
    """
    from distilvec.config.recipe import section_of
    from distilvec.config.student import VocabularySection

    check_model_path(teacher, "teacher")
    values = {
        "kind": kind,
        "size": vocab_size,
        "tokenizer": tokenizer,
        "target": target,
        "share": share,
        "letters": letters,
        "compose": compose,
        "keep_norm": keep_norm,
    }
    names = {f"student.vocabulary.{field}": field for field in values} | {"student.vocabulary.size": "vocab_size"}
    names |= {"student.vocabulary": "texts", "student.model": "teacher", "student.embedding": "rank"}
    with set_by(names | source_names(len(texts or []))):
        section = section_of(VocabularySection, "student.vocabulary", values)

        from distilvec.cli.terminal import show_tokenizers
        from distilvec.core.errors import DistilvecError
        from distilvec.core.extras import require_extra
        from distilvec.report.json_values import from_json
        from distilvec.report.values import VocabularyChange
        from distilvec.students.design import parse_size
        from distilvec.verbs.transplant.transplant import (
            distance_line,
            readers_by_language,
            rows_line,
            stated_languages,
            transplant_folder,
        )

        if sum(setting is not None for setting in (rank, budget, budget_mb)) > 1:
            raise DistilvecError("found several of --rank, --budget and --budget-mb.", "Give one.", key="--budget")
        if budget_mb is not None:
            check_positive(budget_mb, "--budget-mb")
        parameters = None if budget_mb is None else int(budget_mb * 1e6 / 4)
        if budget is not None:
            with about("--budget"):
                parameters = parse_size(budget).parameters
            if parameters is None:
                raise DistilvecError(f"found '{budget}'; expected a number of parameters.", "Give it.", key="--budget")
        if section.tokenizer is not None and section.tokenizer.endswith(".model"):
            require_extra("sentencepiece", "--tokenizer")
        sources = readers_by_language(texts or [], column, limit)
        record = transplant_folder(
            teacher, section, sources, out, max_length, overwrite=overwrite, trust_remote_code=trust_remote_code,
            rank=rank, budget=parameters, languages=stated_languages(texts or []),
        )  # fmt: skip
    show_tokenizers(from_json(VocabularyChange, record["compared"]))
    print(f"{out}: {rows_line(record)}")
    if line := distance_line(record, teacher, out):
        print(line)
