"""Greedy answers of the student to the prompts of test files, and their ROUGE-L."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from distilvec.core.device import pick_device
from distilvec.core.errors import DistilvecError
from distilvec.core.log import progress
from distilvec.core.run_folder import RunFolder
from experiments.causal.data import prompt_ids, read_pairs
from experiments.causal.schema import CausalRecipe, GenerationSection


def score_tests(recipe: CausalRecipe, folder: Path) -> dict[str, Any]:
    """ROUGE-L of the saved student on every test file, by name; its answers are written to answers/."""
    device, found = pick_device(recipe.train.device), {}
    student = RunFolder(folder).student
    model = AutoModelForCausalLM.from_pretrained(student, dtype=torch.float32, trust_remote_code=False)
    tokenizer = AutoTokenizer.from_pretrained(student, trust_remote_code=False)
    (folder / "answers").mkdir(exist_ok=True)
    for name, path in recipe.data.tests.items():
        pairs, dropped = read_pairs(path, f"data.tests.{name}", recipe.data, [tokenizer])
        began = time.monotonic()
        answers = answer(model.to(device), tokenizer, [pair.prompt for pair in pairs], recipe.generation)
        scores = rouge_l(answers, [pair.responses for pair in pairs])
        seconds = round(time.monotonic() - began, 1)
        mean = round(float(np.mean(scores)), 4)
        found[name] = {"rouge_l": mean, "rows": len(pairs), "left_out": dropped, "seconds": seconds}
        lines = [
            {"prompt": pair.prompt, "answer": text, "references": pair.responses, "rouge_l": round(score, 2)}
            for pair, text, score in zip(pairs, answers, scores, strict=True)
        ]
        content = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        (folder / "answers" / f"{name}.jsonl").write_text(content, encoding="utf-8")
    return found


@torch.no_grad()
def answer(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str], section: GenerationSection
) -> list[str]:
    """The model's answers, in order: the likeliest token at every position, to the end-of-text token or the limit."""
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
            f"the longest prompt and answer have {longest} tokens, the model {positions} positions.",
            "Lower generation.max_new_tokens or data.max_prompt.",
            key="generation.max_new_tokens",
        )
    answers = [""] * len(prompts)
    order = sorted(range(len(prompts)), key=lambda row: len(encoded[row]))
    prompt_tokens = np.cumsum([len(encoded[row]) + section.max_new_tokens for row in order])
    with progress("answering", len(prompts), "prompts") as advance:
        for first in range(0, len(order), section.batch_size):
            rows = order[first : first + section.batch_size]
            longest = len(encoded[rows[-1]])
            padding = [longest - len(encoded[row]) for row in rows]
            ids = torch.tensor([[end] * count + encoded[row] for row, count in zip(rows, padding, strict=True)])
            mask = torch.arange(longest) >= torch.tensor(padding)[:, None]
            batch = {"input_ids": ids.to(model.device), "attention_mask": mask.long().to(model.device)}
            made = model.generate(**batch, generation_config=settings)[:, longest:]
            for row, text in zip(rows, tokenizer.batch_decode(made, skip_special_tokens=True), strict=True):
                answers[row] = text
            done = first + len(rows)
            advance(done, work=len(order) * float(prompt_tokens[done - 1] / prompt_tokens[-1]))
    return answers


def rouge_l(answers: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    """ROUGE-L (F-measure of the longest common subsequence of stemmed words) x 100, with the best reference."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rougeL"], use_stemmer=True)
    return [
        100 * max(scorer.score(reference, text)["rougeL"].fmeasure for reference in several)
        for text, several in zip(answers, references, strict=True)
    ]
