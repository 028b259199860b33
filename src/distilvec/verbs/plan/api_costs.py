"""Costs of a teacher behind an API, as `distilvec plan` shows them; nothing is sent."""

from __future__ import annotations

import math
from dataclasses import dataclass

from distilvec.config.schema import Role
from distilvec.config.score_columns import columns_with
from distilvec.evaluation.tasks import embedded_texts
from distilvec.pipeline.job import Job, Teacher
from distilvec.teachers.api_embedder import ApiEmbedder
from distilvec.teachers.encode import BATCH_TOKENS


@dataclass(frozen=True)
class _Amount:
    """Texts to send, and about how many tokens they have."""

    title: str
    texts: int
    tokens: int


def cost_lines(job: Job, teacher: Teacher, model: ApiEmbedder, missing: int) -> list[list[str]]:
    """Describe tokens, cost, time and cap: of the `missing` texts of the corpus, and of those of the evaluation."""
    amounts = [_Amount("tokens to pay for", missing, model.estimate(teacher.corpus, missing))]
    evaluation_texts = _evaluation_texts(job, teacher)
    if evaluation_texts:
        tokens = int(sum(model.count(evaluation_texts)))
        amounts.append(_Amount("  for evaluation", len(evaluation_texts), tokens))

    api = model.api
    rule = "4 bytes a token" if api.tokenizer is None else f"tokenizer {api.tokenizer}"
    lines = []
    requests = 0
    total = 0
    for amount in amounts:
        cost = api.cost_note(amount.tokens)
        lines.append([amount.title, f"about {amount.tokens:,} of {amount.texts:,} texts ({rule}){cost}"])
        by_texts = math.ceil(amount.texts / api.batch_texts)
        by_tokens = math.ceil(amount.tokens / (model.section.batch_tokens or BATCH_TOKENS))
        requests += max(by_texts, by_tokens)
        total += amount.tokens

    minutes = 0.0
    if api.requests_per_minute:
        minutes = max(minutes, requests / api.requests_per_minute)
    if api.tokens_per_minute:
        minutes = max(minutes, total / api.tokens_per_minute)
    time = f", at least {minutes:,.1f} minutes" if minutes else ""
    key = f"with the key in {api.key_variable}" if api.key_variable else "without a key"
    lines.append(["server", f"{api.base_url}, {key}"])
    lines.append(["requests", f"about {requests:,}{time}"])

    spent = model.meter.counts["tokens"]
    if api.cap is not None:
        warning = " The cap ends it before." if api.exceeded(spent + total) else ""
        lines.append(["cap", f"{api.cap}; {spent:,} tokens spent until now.{warning}"])
    elif spent:
        lines.append(["spent until now", model.meter.note])
    return lines


def _evaluation_texts(job: Job, teacher: Teacher) -> list[str]:
    """Distinct texts with prompts that the evaluation sends; none if it does not score this teacher."""
    if teacher is not job.teacher or not columns_with("teacher") & {*job.recipe.evaluation.columns}:
        return []
    texts: dict[tuple[Role, str], None] = {}
    for task in job.tasks:
        for role, texts_of_role in embedded_texts(task):
            texts.update(dict.fromkeys((role, text) for text in texts_of_role))
    prompts = teacher.info.prompts
    return [prompts.get(role, "") + text for role, text in texts]
