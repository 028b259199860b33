"""Greedy answers of a language model to the prompts of a file, and their ROUGE-L."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from distilvec.core.errors import DistilvecError
from distilvec.core.extras import require_extra
from distilvec.core.log import progress
from distilvec.experimental.causal.data import prompt_ids
from distilvec.experimental.causal.schema import GenerationSection


@torch.no_grad()
def answer(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str], section: GenerationSection
) -> list[str]:
    """The model's answers, in order: the likeliest token at every place, until it ends the text or has said enough."""
    model.eval()
    encoded = prompt_ids(prompts, tokenizer)
    end = int(tokenizer.eos_token_id)
    settings = GenerationConfig(
        max_new_tokens=section.max_new_tokens, do_sample=False, num_beams=1, pad_token_id=end, eos_token_id=end
    )
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    longest = max(map(len, encoded)) + section.max_new_tokens
    if positions is not None and longest > positions:
        raise DistilvecError(
            f"[generation.max_new_tokens] the longest prompt and {section.max_new_tokens} new tokens make {longest}; the model has "
            f"{positions} positions. Lower generation.max_new_tokens or data.max_prompt."
        )
    answers = [""] * len(prompts)
    order = np.argsort([len(ids) for ids in encoded], kind="stable").tolist()
    with progress("answering", len(prompts), "prompts") as advance:
        for first in range(0, len(order), section.batch_size):
            rows = order[first : first + section.batch_size]
            width = len(encoded[rows[-1]])
            ids = torch.tensor(
                [[end] * (width - len(encoded[row])) + encoded[row] for row in rows], device=model.device
            )
            mask = torch.tensor(
                [[0] * (width - len(encoded[row])) + [1] * len(encoded[row]) for row in rows], device=model.device
            )
            said = model.generate(input_ids=ids, attention_mask=mask, generation_config=settings)[:, width:]  # type: ignore[operator]
            for row, text in zip(rows, tokenizer.batch_decode(said, skip_special_tokens=True), strict=True):
                answers[row] = text
            advance(first + len(rows), "")
    return answers


def rouge_l(answers: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    """ROUGE-L (F-measure of the longest common subsequence of stemmed words) x 100 of each answer, with the reference that fits best.

    Errors: DistilvecError where the package rouge-score is missing.
    """
    require_extra("causal", "data.tests")
    from rouge_score.rouge_scorer import RougeScorer  # type: ignore[import-untyped]

    scorer = RougeScorer(["rougeL"], use_stemmer=True)
    return [
        100 * max(scorer.score(reference, text)["rougeL"].fmeasure for reference in several)
        for text, several in zip(answers, references, strict=True)
    ]
