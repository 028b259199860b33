"""A causal run: tokens, training by the package's only loop, answers to the test files.

run folder
  recipe.yaml  student/ (best by validation cross-entropy)  students/step-N/ (saved)  answers/<test>.jsonl
  details/     metrics.jsonl  checkpoint/  report.json
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from accelerate import Accelerator
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from distilvec.config import recipe as recipes
from distilvec.core.errors import DistilvecError, about, first_line
from distilvec.core.files import remove, scratch, write_json
from distilvec.core.hashing import hash_files
from distilvec.core.info import ObjectiveContext, StudentInfo, TeacherInfo
from distilvec.core.log import log
from distilvec.core.model_name import ModelName
from distilvec.core.objective import Objective
from distilvec.core.outputs import OutputSpec
from distilvec.core.processes import is_main, join_processes, main_first
from distilvec.core.run_folder import RunFolder
from distilvec.data.corpus import validation_size
from distilvec.data.readers import check_readable
from distilvec.formats.replace import replace_folder
from distilvec.models.checks import check_weights, reading
from distilvec.models.experts import Experts
from distilvec.models.load import load_tokenizer
from distilvec.pipeline.claim import check_training, claim_folder, refuse_foreign
from distilvec.train.metrics import Metric, read_metrics
from distilvec.train.start import Standing
from distilvec.train.trainer import Trainer, TrainingHooks
from experiments.causal.align import align_responses, common_tokens
from experiments.causal.answers import score_tests
from experiments.causal.data import IGNORED, CausalData, Pair, read_pairs, tokenise
from experiments.causal.methods import METHODS, CausalContext
from experiments.causal.model import CausalEncoder, CausalObjective, CausalTeacher, build_causal_objective
from experiments.causal.schema import CausalRecipe

Loaded = tuple[PreTrainedModel, PreTrainedTokenizerBase]
# change no weight
UNTRAINED = {"logging_steps", "checkpoint_minutes", "checkpoint_steps", "trackers", "keep_students", "shard"}


def run_causal(recipe: CausalRecipe, folder: Path, restart: bool = False) -> dict[str, Any] | None:
    """Train (or resume, or open what is finished) and answer the test files.

    Returns the report, None in all processes but the main one. Errors: DistilvecError; Stopped after a signal.
    """
    transformers.utils.logging.disable_progress_bar()
    run = RunFolder(folder)
    refuse_foreign(run)
    check_training(recipe.train)
    if recipe.train.shard:
        raise DistilvecError("next-token models cannot be sharded.", "Remove the key.", key="train.shard")
    if recipe.data.tests:
        check_rouge()
    join_processes(recipe.train.device)
    fingerprint = training_fingerprint(recipe)
    with ExitStack() as stack:
        with main_first():
            if is_main():
                stack.enter_context(claim_folder(run, recipe, fingerprint, restart))
        trainer = build_trainer(recipe, folder, fingerprint)
        trainer.finish()
        return _report(recipe, folder, trainer) if is_main() else None


def check_rouge() -> None:
    """DistilvecError if the package that scores answers is missing."""
    if importlib.util.find_spec("rouge_score") is None:
        raise DistilvecError(
            "needs the package rouge-score, which scores answers.",
            "Install it (pip install rouge-score).",
            key="data.tests",
        )


def build_trainer(recipe: CausalRecipe, folder: Path, fingerprint: str) -> Trainer:
    """Student, teacher, objective and data, ready to train."""
    section, train = recipe.data, recipe.train
    student, tokenizer = _build_student(recipe)
    teacher, other = None, None
    if recipe.teacher is not None:
        dtype = getattr(torch, recipe.teacher.dtype)
        teacher, other = load_causal_model("teacher.model", recipe.teacher.model, recipe.teacher.revision, dtype)
        _check_fit("teacher", teacher, other, section.max_length)
    _check_fit("student", student, tokenizer, section.max_length)
    pairs, train_rows, validation_rows = _rows(recipe, [tokenizer, *([other] if other is not None else [])])
    aligned = other if getattr(METHODS.get(recipe.method.name), "aligned", False) else None
    common = common_tokens(tokenizer, aligned) if aligned is not None else ((), ())
    encoder, objective = _modules(recipe, student, teacher, common)
    if objective.needs_fixed_batch and train.max_tokens:
        raise DistilvecError(
            f"{recipe.method.name} compares texts within a batch.",
            "Set train.batch_size instead.",
            key="train.max_tokens",
        )
    tokens = tokenise(pairs, tokenizer, section.max_length)
    if tokens.cut:
        log(
            f"{tokens.cut:,} of {len(pairs):,} responses are truncated to {section.max_length} tokens [data.max_length]"
        )
    theirs = tokenise(pairs, other, section.max_length) if other is not None else None
    signals = CausalTeacher(teacher, theirs, objective.teacher_outputs)
    pairs_of = None
    if theirs is not None and aligned is not None:
        pairs_of = align_responses(tokens, theirs, (tokenizer, aligned)).batch
    return Trainer(
        encoder,
        objective,
        CausalData(tokens, signals, train_rows, validation_rows, pairs_of),
        train,
        RunFolder(folder).training,
        fingerprint,
        TrainingHooks(partial(_save, student, tokenizer, folder), validate=validation_cross_entropy),
    )


def training_fingerprint(recipe: CausalRecipe) -> str:
    """Changes with everything that changes the trained weights. Errors: DistilvecError for a missing data file."""
    folders = [Path(name) for name in (recipe.student.model, recipe.student.tokenizer) if name]
    folders += [Path(recipe.teacher.model)] if recipe.teacher is not None else []
    models = sorted(file for folder in folders for file in folder.glob("*") if file.is_file())
    files = {"data.train": recipe.data.train, "data.holdout": recipe.data.holdout}
    data = {key: path for key, path in files.items() if path is not None}
    for key, path in data.items():
        with about(key):
            check_readable(path)
    for name, path in recipe.data.tests.items():
        with about(f"data.tests.{name}"):
            check_readable(path)
    tree = recipe.model_dump(mode="json", include={"teacher", "student", "data", "method", "train"})
    tree["data"].pop("tests")
    tree["train"] = {key: value for key, value in tree["train"].items() if key not in UNTRAINED}
    return recipes.fingerprint("causal", hash_files([*models, *data.values()]), tree)


def load_causal_model(key: str, name: str, revision: str | None, dtype: torch.dtype) -> Loaded:
    """A model and its tokenizer from a folder or the hub; DistilvecError if there is no causal language model."""
    source = ModelName(name, revision)
    with about(key, name), reading(source):
        tokenizer = load_tokenizer(source)
        model = AutoModelForCausalLM.from_pretrained(name, revision=revision, dtype=dtype, trust_remote_code=False)
        check_weights(model, name)
    return model, tokenizer


@torch.no_grad()
def validation_cross_entropy(
    encoder: CausalEncoder, objective: Objective, data: CausalData, accelerator: Accelerator, batch_size: int
) -> tuple[dict[str, float], Standing]:
    """Cross-entropy a token of the validation responses (nats; tokens count alike), perplexity; the first is watched.

    Every process takes all rows. Values of students with different tokenizers cannot be compared.
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
    numbers = {"cross_entropy": mean, "perplexity": float(np.exp(min(mean, 700.0)))}
    return numbers, Standing(Metric("cross_entropy", mean, higher_is_better=False))


def _report(recipe: CausalRecipe, folder: Path, trainer: Trainer) -> dict[str, Any]:
    """Answer the test files with the saved student; write and return the report."""
    lines = [line for line in read_metrics(RunFolder(folder).metrics) if line["step"] and "eval/cross_entropy" in line]
    best = min(lines, key=lambda line: line["eval/cross_entropy"])
    report = {
        "name": recipe.name,
        "steps": trainer.state.step,
        "seconds": round(trainer.state.seconds, 1),
        "parameters": sum(p.numel() for p in trainer.module.encoder.model.parameters()),
        "held_out": {"step": best["step"], **{name: best[f"eval/{name}"] for name in ("cross_entropy", "perplexity")}},
        "tests": score_tests(recipe, folder),
    }
    write_json(RunFolder(folder).report, report)
    return report


def _build_student(recipe: CausalRecipe) -> Loaded:
    """The untrained student in fp32; a fresh one is drawn from the recipe's seed, for its tokenizer's vocabulary."""
    section = recipe.student
    if section.model is not None:
        return load_causal_model("student.model", section.model, section.revision, torch.float32)
    assert section.config is not None and section.tokenizer is not None
    with about("student.tokenizer", section.tokenizer):
        tokenizer = load_tokenizer(ModelName(section.tokenizer, section.revision))
    special = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    try:
        config = AutoConfig.for_model(**{"vocab_size": len(tokenizer), **special, **section.config})
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.train.seed)
            return AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False), tokenizer
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, AttributeError, ZeroDivisionError) as error:
        reason = first_line(error).rstrip(".")
        raise DistilvecError(f"no causal language model: {reason}.", "Check its keys.", key="student.config") from None


def _check_fit(key: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_length: int) -> None:
    """DistilvecError if the tokenizer has tokens that the model lacks, or texts may have more tokens than positions."""
    config = model.config.get_text_config()
    if len(tokenizer) > config.vocab_size:
        problem = f"the tokenizer has {len(tokenizer):,} tokens, the model {config.vocab_size:,}"
        raise DistilvecError(f"{problem}. They do not belong together.", key=key)
    if max_length > (getattr(config, "max_position_embeddings", None) or max_length):
        problem = f"{max_length} tokens; the {key} has {config.max_position_embeddings} positions"
        raise DistilvecError(f"{problem}.", "Lower data.max_length.", key="data.max_length")


def _rows(recipe: CausalRecipe, tokenizers: list[PreTrainedTokenizerBase]) -> tuple[list[Pair], np.ndarray, np.ndarray]:
    """All rows, and the numbers of those for training and of those for validation."""
    section = recipe.data
    pairs, dropped = read_pairs(section.train, "data.train", section, tokenizers)
    if dropped:
        log(f"{dropped:,} rows are left out: prompts of more than {section.max_prompt} tokens [data.max_prompt]")
    if section.holdout is not None:
        more, _ = read_pairs(section.holdout, "data.holdout", section, tokenizers)
        return pairs + more, np.arange(len(pairs)), np.arange(len(pairs), len(pairs) + len(more))
    if len(pairs) < 2:
        raise DistilvecError("found a single row.", "Give at least two: one is for validation.", key="data.train")
    with about("data.holdout_rows"):
        count = validation_size(section.holdout_rows, len(pairs))
    drawn = np.random.Generator(np.random.PCG64(section.seed)).permutation(len(pairs))
    return pairs, np.sort(drawn[count:]), np.sort(drawn[:count])


def _modules(
    recipe: CausalRecipe,
    student: PreTrainedModel,
    teacher: PreTrainedModel | None,
    common: tuple[Sequence[int], Sequence[int]] = ((), ()),
) -> tuple[CausalEncoder, CausalObjective]:
    """The trained modules; experts and projections are drawn from the recipe's seed."""
    torch.manual_seed(recipe.train.seed)
    ours = student.config.get_text_config()
    experts, given = None, recipe.student.experts
    if given is not None and teacher is not None:
        experts = Experts(ours.hidden_size, given.count, given.width, given.gate_width, given.dropout)
    count = 0 if experts is None else experts.experts
    info = StudentInfo(ours.hidden_size, ours.num_hidden_layers, experts=count)
    if teacher is None:
        alone = ObjectiveContext(info, (TeacherInfo(ours.hidden_size),))
        return CausalEncoder(student), CausalObjective(alone, None)
    theirs = teacher.config.get_text_config()
    described = TeacherInfo(
        theirs.hidden_size, normalized=False, hidden_size=theirs.hidden_size, layers=theirs.num_hidden_layers
    )
    context = CausalContext(info, (described,), common=common)
    return CausalEncoder(student, experts), build_causal_objective(recipe.method, context)


def _save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, run: Path, name: str) -> None:
    """Write model and tokenizer as a plain transformers folder, complete or not at all, in the main process."""
    if not is_main():
        return
    folder = RunFolder(run).model(name)
    new = scratch(folder)
    remove(new)
    model.save_pretrained(new)
    tokenizer.save_pretrained(new)
    replace_folder(new, folder)
