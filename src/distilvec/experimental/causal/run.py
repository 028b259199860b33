"""A causal run: tokens, training by the house's one loop, answers to the test files.

run folder
  recipe.yaml  metrics.jsonl  checkpoint/  student/ (best by held-out cross-entropy)  students/step-N/ (kept)
  report.json  answers/<test>.jsonl
"""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from accelerate import Accelerator
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from distilvec.config import recipe as recipes
from distilvec.core.device import pick_device, processes
from distilvec.core.errors import DistilvecError
from distilvec.core.extras import require_extra
from distilvec.core.files import write_json
from distilvec.core.hashing import hash_files
from distilvec.core.info import ObjectiveContext, StudentInfo, TeacherInfo
from distilvec.core.log import log
from distilvec.core.objective import Objective
from distilvec.core.outputs import OutputSpec
from distilvec.experimental.causal.answers import answer, rouge_l
from distilvec.experimental.causal.data import IGNORED, CausalData, Pair, fitting, read_pairs, tokenise
from distilvec.experimental.causal.model import (
    CausalEncoder,
    CausalTeacher,
    NoTeacher,
    build_student_model,
    check_fit,
    load_teacher_model,
    save_model,
)
from distilvec.experimental.causal.objective import CausalObjective, build_causal_objective
from distilvec.experimental.causal.schema import CausalRecipe
from distilvec.models.experts import Experts
from distilvec.pipeline.preflight import check_training
from distilvec.pipeline.run_dir import claim_folder, refuse_foreign
from distilvec.train.metrics import read_metrics
from distilvec.train.trainer import Trainer, TrainingHooks

Loaded = tuple[PreTrainedModel, PreTrainedTokenizerBase]
UNTRAINED = {
    "logging_steps",
    "checkpoint_minutes",
    "checkpoint_steps",
    "trackers",
    "keep_students",
}  # keys that change no weight


class CausalRun:
    """One causal recipe in one folder."""

    def __init__(self, recipe: CausalRecipe, folder: Path, restart: bool = False) -> None:
        self.recipe, self.folder, self.restart = recipe, folder, restart
        transformers.utils.logging.disable_progress_bar()

    def execute(self) -> dict[str, Any] | None:
        """Train (or go on, or take what is finished) and answer the test files; the report, None in all processes but the main one."""
        refuse_foreign(self.folder)
        check_training(self.recipe.train)
        if self.recipe.data.tests:
            require_extra("causal", "data.tests")
        state = processes(self.recipe.train.device)
        mark = self.fingerprint()
        with ExitStack() as stack:
            with state.main_process_first():
                if state.is_main_process:
                    stack.enter_context(claim_folder(self.folder, self.recipe, mark, self.restart))
            loop = self.loop(mark)
            loop.finish()
            return self._finish(loop) if state.is_main_process else None

    def _finish(self, loop: Trainer) -> dict[str, Any]:
        """Answer the test files; the report."""
        held_out = min(
            (
                line
                for line in read_metrics(self.folder / "metrics.jsonl")
                if line["step"] and "eval/cross_entropy" in line
            ),
            key=lambda line: line["eval/cross_entropy"],
        )
        report = {
            "name": self.recipe.name,
            "steps": loop.state.step,
            "seconds": round(loop.state.seconds, 1),
            "parameters": sum(p.numel() for p in loop.module.encoder.model.parameters()),
            "held_out": {
                "step": held_out["step"],
                **{name: held_out[f"eval/{name}"] for name in ("cross_entropy", "perplexity")},
            },
            "tests": self.test(),
        }
        write_json(self.folder / "report.json", report)
        return report

    def loop(self, mark: str) -> Trainer:
        """Student, teacher, objective and data, ready to train."""
        recipe, section = self.recipe, self.recipe.data
        student, tokenizer = build_student_model(recipe)
        teacher = load_teacher_model(recipe.teacher) if recipe.teacher else None
        check_fit("student", student, tokenizer, section.max_length)
        if teacher is not None:
            check_fit("teacher", *teacher, section.max_length)
        pairs, train, holdout = self._pairs([tokenizer] if teacher is None else [tokenizer, teacher[1]])
        encoder, objective = self._modules(student, teacher)
        if objective.needs_fixed_batch and recipe.train.max_tokens:
            raise DistilvecError(
                "[train.max_tokens] distillmoe compares texts, so batches need a fixed number of rows. Set batch_size."
            )
        if len(train) < recipe.train.batch_size:
            raise DistilvecError(
                f"[train.batch_size] {recipe.train.batch_size} rows in a batch, but only {len(train):,} to train on."
            )
        tokens = tokenise(pairs, tokenizer, section)
        if tokens.cut:
            log(
                f"{tokens.cut:,} of {len(pairs):,} responses lose their end at {section.max_length} tokens [data.max_length]"
            )
        answering = (
            CausalTeacher(teacher[0], tokenise(pairs, teacher[1], section), objective.teacher_outputs)
            if teacher
            else NoTeacher()
        )
        data = CausalData(tokens, answering, train, holdout)
        hooks = TrainingHooks(
            save=lambda name: save_model(student, tokenizer, self.folder / name), validate=held_out_cross_entropy
        )
        return Trainer(encoder, objective, data, recipe.train, self.folder, mark, hooks)

    def _pairs(self, tokenizers: list[PreTrainedTokenizerBase]) -> tuple[list[Pair], np.ndarray, np.ndarray]:
        """All rows, and the numbers of those to train on and of those held out."""
        section = self.recipe.data
        read = read_pairs(section.train, "data.train", section)
        train = fitting(read, tokenizers, section)
        held = (
            fitting(read_pairs(section.holdout, "data.holdout", section), tokenizers, section)
            if section.holdout
            else []
        )
        dropped = len(read) - len(train)
        if dropped:
            log(
                f"{dropped:,} of {len(read):,} rows are left out: prompts of more than {section.max_prompt} tokens [data.max_prompt]"
            )
        numbers = np.arange(len(train) + len(held))
        if held:
            return train + held, numbers[: len(train)], numbers[len(train) :]
        if section.holdout_rows * 2 > len(train):
            raise DistilvecError(
                f"[data.holdout_rows] {section.holdout_rows} is more than half of {len(train):,} rows. Lower it, or give data.holdout."
            )
        drawn = np.random.Generator(np.random.PCG64(section.seed)).permutation(numbers)
        return train, np.sort(drawn[section.holdout_rows :]), np.sort(drawn[: section.holdout_rows])

    def _modules(self, student: PreTrainedModel, teacher: Loaded | None) -> tuple[CausalEncoder, CausalObjective]:
        """What is trained; experts and projections are drawn from the recipe's seed."""
        recipe = self.recipe
        torch.manual_seed(recipe.train.seed)
        section, ours = recipe.student.experts, student.config.get_text_config()
        experts = section.count if section and teacher is not None else 0
        student_info = StudentInfo(ours.hidden_size, ours.num_hidden_layers, experts=experts)
        if teacher is None:
            return CausalEncoder(student), CausalObjective(ObjectiveContext(student_info, ()), None)
        theirs = teacher[0].config.get_text_config()
        mixture = (
            Experts(ours.hidden_size, section.count, section.width, section.gate_width, section.dropout)
            if section
            else None
        )
        size, layers = theirs.hidden_size, theirs.num_hidden_layers
        context = ObjectiveContext(student_info, (TeacherInfo(size, normalized=False, hidden_size=size, layers=layers),))
        method = recipe.method
        return CausalEncoder(student, mixture), build_causal_objective(
            method.name, method.options, method.weights, context
        )

    def test(self) -> dict[str, Any]:
        """ROUGE-L of the saved student on every test file; its answers are kept."""
        section, found = self.recipe.data, {}
        folder = self.folder / "student"
        device = pick_device(self.recipe.train.device)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False).to(device)
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        for name, path in section.tests.items():
            read = read_pairs(path, f"data.tests.{name}", section)
            pairs = fitting(read, [tokenizer], section)
            began = time.monotonic()
            answers = answer(model, tokenizer, [pair.prompt for pair in pairs], self.recipe.generation)
            scores = rouge_l(answers, [pair.responses for pair in pairs])
            found[name] = {
                "rouge_l": round(float(np.mean(scores)), 4),
                "rows": len(pairs),
                "left_out": len(read) - len(pairs),
                "seconds": round(time.monotonic() - began, 1),
            }
            lines = [
                {"prompt": pair.prompt, "answer": text, "references": pair.responses, "rouge_l": round(score, 2)}
                for pair, text, score in zip(pairs, answers, scores, strict=True)
            ]
            path = self.folder / "answers" / f"{name}.jsonl"
            path.parent.mkdir(exist_ok=True)
            path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
        return found

    def fingerprint(self) -> str:
        """Changes when anything that changes the trained weights does."""
        recipe = self.recipe
        if missing := [
            path for path in (recipe.data.train, recipe.data.holdout) if path is not None and not path.is_file()
        ]:
            raise DistilvecError(
                f"[data] not found: {missing[0]}. Give a JSONL file; relative paths start at the recipe's folder."
            )
        names = [
            name
            for name in (recipe.student.model, recipe.student.tokenizer, recipe.teacher and recipe.teacher.model)
            if name
        ]
        models = sorted(file for name in names for file in Path(name).glob("*") if file.is_file())
        files = [*models, recipe.data.train, *([recipe.data.holdout] if recipe.data.holdout else [])]
        tree = recipe.model_dump(mode="json", include={"teacher", "student", "data", "method", "train"})
        tree["data"].pop("tests")
        tree["train"] = {key: value for key, value in tree["train"].items() if key not in UNTRAINED}
        return recipes.fingerprint("causal", hash_files(files), tree)


@torch.no_grad()
def held_out_cross_entropy(
    encoder: CausalEncoder, objective: Objective, data: CausalData, accelerator: Accelerator, batch_size: int
) -> tuple[dict[str, float], float]:
    """Cross-entropy a token of the held-out responses (nats; here tokens count alike), its perplexity, and the number to watch.

    Every process takes all the rows. The figure depends on the tokenizer: students with different ones cannot be compared by it.
    """
    encoder.eval()
    order = data.holdout_rows[np.argsort(data.lengths[data.holdout_rows], kind="stable")]
    total = torch.zeros(2, dtype=torch.float64, device=accelerator.device)
    for rows in np.array_split(order, -(-len(order) // batch_size)):
        batch = data.batch(rows).to(accelerator.device)
        with accelerator.autocast():
            losses = encoder(batch, OutputSpec(logits=True)).losses
        count = (batch.tokens["labels"] != IGNORED).sum(1)
        total += torch.stack([(losses * count).sum(), count.sum()]).double()
    mean = float(total[0] / total[1])
    return {"cross_entropy": mean, "perplexity": float(np.exp(min(mean, 700.0)))}, mean
