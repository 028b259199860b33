"""Costs of a teacher behind an API, as `distilvec plan` shows them; nothing is sent."""

from __future__ import annotations

from distilvec.config.schema import TEACHER_COLUMNS
from distilvec.evaluation.tasks import embedded_texts
from distilvec.pipeline.job import Job, Teacher
from distilvec.teachers.api_embedder import ApiEmbedder


def cost_lines(job: Job, teacher: Teacher, loaded: ApiEmbedder, missing: int) -> list[list[str]]:
    """Describe tokens, cost, time and cap: of the `missing` texts of the corpus, and of those of the evaluation."""
    api, prompts = loaded.api, teacher.info.prompts
    texts = {(role, text) for task in job.tasks for role, part in embedded_texts(task) for text in part}
    scored = TEACHER_COLUMNS & {*job.recipe.evaluation.columns} and teacher is job.teacher
    found = [("tokens to pay for", missing, loaded.estimate(teacher.corpus, missing))]
    if scored and texts:
        tokens = sum(loaded.count([prompts.get(role, "") + text for role, text in texts]))
        found.append(("  for evaluation", len(texts), tokens))
    rule = "4 bytes a token" if api.tokenizer is None else f"tokenizer {api.tokenizer}"
    lines = [[name, f"about {tokens:,} of {n:,} texts ({rule}){api.cost_note(tokens)}"] for name, n, tokens in found]
    total, spent = sum(tokens for *_, tokens in found), loaded.meter.counts["tokens"]
    requests = sum(max(-(-n // api.batch_texts), -(-tokens // loaded.section.batch_tokens)) for _, n, tokens in found)
    rates = [(requests, api.requests_per_minute), (total, api.tokens_per_minute)]
    minutes = max((amount / rate for amount, rate in rates if rate), default=None)
    key = f"with the key in {api.key_variable}" if api.key_variable else "without a key"
    lines.append(["server", f"{api.base_url}, {key}"])
    lines.append(["requests", f"about {requests:,}" + (f", at least {minutes:,.1f} minutes" if minutes else "")])
    if api.cap is not None:
        below = " The cap ends it before." if api.exceeded(spent + total) else ""
        lines.append(["cap", f"{api.cap}; {spent:,} tokens spent until now.{below}"])
    elif spent:
        lines.append(["spent until now", loaded.meter.note])
    return lines
