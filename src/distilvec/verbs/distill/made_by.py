"""The model or API that made an index, and its prompts, found by embedding some of the index's texts again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from distilvec.config.schema import Role, SourceSection
from distilvec.core.errors import DistilvecError, about, set_by
from distilvec.core.log import log
from distilvec.data.sources import read_source
from distilvec.teachers.agreement import SAME, Agreement, compare_vectors
from distilvec.teachers.api_embedder import ApiEmbedder
from distilvec.teachers.model_embedder import ModelEmbedder
from distilvec.teachers.open import open_maker, open_table
from distilvec.teachers.sources import OPENAI
from distilvec.teachers.table_embedder import SAMPLE, TableEmbedder
from distilvec.verbs.distill.recipe import index_section
from distilvec.verbs.distill.request import Request, has_texts_elsewhere


@dataclass(frozen=True)
class Candidate:
    """A model that may have made the index: how its vectors agree with the stored ones, with the best of its prompts.

    Of a model with more dims than the index the first are compared; one with fewer has no agreement.
    """

    model: str
    agreement: Agreement | None
    prompt: str
    prompts: dict[Role, str]
    dim: int

    @property
    def cosine(self) -> float | None:
        """Mean cosine with the stored vectors."""
        return None if self.agreement is None else self.agreement.cosine

    @property
    def same(self) -> bool:
        """Whether the index's vectors are this model's."""
        return self.cosine is not None and self.cosine >= SAME

    def result(self, index_dim: int) -> str:
        """What the comparison with an index of so many dims has given."""
        if self.cosine is None:
            return f"vectors of {self.dim} dimensions, the stored ones have {index_dim}"
        cosine = f"mean cosine {self.cosine:.3f} with the stored vectors"
        return cosine if self.dim == index_dim else f"{cosine}, of its first {index_dim} of {self.dim} dimensions"

    def check(self, index_dim: int) -> None:
        """Raise DistilvecError if the index's vectors are not this model's: those of queries would not fit."""
        if not self.same:
            raise DistilvecError(
                f"{self.model} has not made the index: {self.result(index_dim)}, expected a mean cosine of {SAME} or "
                "more. Its vectors of the queries would not fit.",
                "Name the model or API that made the index, and the prompts it was given.",
                key="made_by",
            )


def with_maker(request: Request, candidates: Sequence[str], root: Path, refresh: bool) -> Request:
    """Return the request of an index with the model that made it and its prompts, as far as `candidates` tell.

    The model is needed for texts that the index lacks: queries, and TEXTS beside the index's own. `root` is the cache's
    folder of the run, which goes on with the copy that is read or refreshed here. Errors: DistilvecError with the
    argument `made_by` if there are such texts and no candidate has made the index.
    """
    with about("teacher"):
        section = index_section(request)
    refresh = refresh or section.refresh
    if not (refresh or candidates or request.queries is not None):
        return request
    with about("teacher"):
        table = open_table(section, refresh=refresh, root=root)
    if "teacher.refresh" in request.overrides:  # once is enough
        overrides = {key: value for key, value in request.overrides.items() if key != "teacher.refresh"}
        request = replace(request, overrides=overrides)
    if not candidates:
        if request.queries is not None:
            _refuse_unknown_queries(request, table)
        return request

    compared = recognize(table, candidates, request.prompts)
    for candidate in compared:
        log(f"{candidate.model}: {candidate.result(table.dim)}, prompt {candidate.prompt!r}")
    best = compared[0]
    if request.queries is not None:
        best.check(table.dim)
    if not best.same:
        reason = "" if best.agreement is None else best.agreement.text
        log(f"none of these models has made all of the index; it is taken without prompts. {reason}".strip())
        return request

    prompts: dict[str, str] = {"query": best.prompts["query"], "document": best.prompt}
    prompts = {role: prompt for role, prompt in prompts.items() if prompt} | dict(request.prompts)
    request = replace(request, query_prompt=prompts.get("query"), document_prompt=prompts.get("document"))
    has_more_texts = request.texts is not None and not has_texts_elsewhere(request)
    if has_more_texts or request.queries is not None:
        return replace(request, made_by=best.model)
    return request


def recognize(
    index: TableEmbedder, candidates: Sequence[str], prompts: Mapping[str, str] | None = None
) -> list[Candidate]:
    """Embed a sample of stored texts with every candidate and each of its prompts; the most alike first.

    Args:
        prompts: what the index's model is known to have been given; its "document" is the only one that is tried

    A candidate of fewer dims than the index has no cosine, and comes last.
    """
    compared = []
    for name in candidates:
        with about("made_by"), open_maker(name) as model:
            compared.append(compare_maker(index, model, name, prompts))
    return sorted(compared, key=lambda candidate: -2 if candidate.cosine is None else candidate.cosine, reverse=True)


def compare_maker(
    index: TableEmbedder,
    model: ModelEmbedder | ApiEmbedder,
    name: str,
    prompts: Mapping[str, str] | None = None,
) -> Candidate:
    """Embed a sample of stored texts with a model and each of its prompts, or the known "document" of `prompts`.

    The candidate has the prompt that comes nearest to the stored vectors.
    """
    with about("teacher"):
        texts, vectors = index.some_documents(SAMPLE)

    def ids(rows: Sequence[int]) -> list[str]:
        return index.ids([texts[row] for row in rows])

    stated_prompt = (prompts or {}).get("document")
    tried = ["", *model.prompts.values()] if stated_prompt is None else [stated_prompt]
    if isinstance(model, ApiEmbedder) and not name.startswith(OPENAI):
        # With the model's name the address stays that of this model when the server gets another one
        name = f"{name.partition('#')[0]}#{model.section.model}"
    if model.dim < vectors.shape[1]:
        return Candidate(name, None, "", dict(model.prompts), model.dim)
    agreements = {}
    for prompt in dict.fromkeys(tried):
        prompted = [prompt + text for text in texts]
        agreements[prompt] = compare_vectors(model.embed_prompted(prompted), vectors, vectors, ids)
    best = max(agreements, key=lambda prompt: agreements[prompt].cosine)
    return Candidate(name, agreements[best], best, dict(model.prompts), model.dim)


def _refuse_unknown_queries(request: Request, table: TableEmbedder) -> None:
    """Raise DistilvecError for queries that the index has no vectors of."""
    assert request.queries is not None
    lacking = 0
    for source in request.queries:
        with set_by({"corpus.sources.0": "queries"}):
            texts = [text.strip() for text in read_source(SourceSection.model_validate(source), 0)]
        lacking += table.lacking([text for text in texts if text], "query")
    if lacking:
        raise DistilvecError(
            f"{request.teacher} has no vectors of {lacking:,} queries.",
            "Name the model or API that made the index, which embeds them: --made-by MODEL.",
            key="made_by",
        )
