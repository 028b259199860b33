"""plan → corpus → cache → train → evaluate: each part is skipped when what it depends on has not changed.

root (cache.root)              shared by all runs
  corpora/<fingerprint>/       texts, keys, hold-out
  tasks/<fingerprint>/         the examples of a labelled task
  vocabularies/<fingerprint>/  a tokenizer chosen for a student on a corpus
  tokens/<fingerprint>/        a student's, or a live teacher's, tokens of a corpus
  alignments/<fingerprint>/    which of them go together
  keys/<fingerprint>/          of a corpus's texts behind another teacher's prompts
  teachers/<name-fingerprint>/ each teacher's vectors and, where a method wants them, signals of tokens
run folder
  recipe.yaml  metrics.jsonl  checkpoint/  student/ (best)  last/  students/step-N/ (kept)
  stages/<name>/               metrics.jsonl and checkpoint/ of the stages of training but the last
  distillation.json  report.json  samples.npz  report.html  figures/
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate import PartialState
from sentence_transformers import SentenceTransformer

from distilvec.alignment.store import AlignmentStore
from distilvec.config import recipe as recipes
from distilvec.config.schema import Recipe
from distilvec.core.device import processes
from distilvec.core.errors import DistilvecError
from distilvec.core.files import write_json
from distilvec.core.objective import Objective, build_objective, method_class
from distilvec.core.outputs import OutputSpec
from distilvec.core.task_head import TaskHead
from distilvec.data.corpus import Corpus
from distilvec.data.labeled import Examples
from distilvec.data.tokens import TokenStore
from distilvec.evaluation.evaluator import read_score
from distilvec.evaluation.tasks import Task, TaskFailure
from distilvec.formats.sentence_transformers import save_student
from distilvec.models.load import load
from distilvec.pipeline import prepare, resolve
from distilvec.pipeline.evaluate import describe, study
from distilvec.pipeline.preflight import check_run
from distilvec.pipeline.record import best_distance
from distilvec.pipeline.run_dir import claim_folder, training_fingerprint
from distilvec.pipeline.run_result import RunResult
from distilvec.pipeline.supervised import copy_head, head_writer, with_supervised
from distilvec.pipeline.teachers import TeacherSide
from distilvec.report.model_card import model_card
from distilvec.report.write import write_report
from distilvec.students.build import TeacherInfo, build_student
from distilvec.students.encoder import Encoder
from distilvec.students.lora import add_adapters, merged
from distilvec.teachers.cache.manifest import Manifest
from distilvec.teachers.cache.store import TeacherCache
from distilvec.teachers.model import LocalTeacher
from distilvec.teachers.precomputed import VectorsTeacher
from distilvec.train.checkpoint import Progress, objective_file, save_objective
from distilvec.train.dataset import Teacher, TrainingData
from distilvec.train.metrics import Callback, check_callbacks
from distilvec.train.stages import (
    Stage,
    check_parameters,
    errors_named,
    stage_progress,
    take_over,
    train_stage,
    training_stages,
)


class Run:
    """One recipe in one folder. Its parts are lazy: asking for `data` builds the corpus, fills the cache and tokenises.

    Each of the `callbacks` is called as callback(step, metrics) for every logged line of training and validation.
    """

    def __init__(self, recipe: Recipe, folder: Path, restart: bool = False, callbacks: Sequence[Callback] = ()) -> None:
        self.recipe, self.folder, self.restart, self.callbacks = recipe, folder, restart, check_callbacks(callbacks)
        transformers.utils.logging.disable_progress_bar()
        self.root = (recipe.cache.root or prepare.cache_root()).expanduser()

    @cached_property
    def processes(self) -> PartialState:
        """This process and, under `accelerate launch`, its siblings."""
        return processes(self.recipe.train.device)

    # -- what the parts build ----------------------------------------------------------------------------------------

    @cached_property
    def stages(self) -> list[Stage]:
        """The stages of training; one where the recipe names none."""
        return training_stages(self.recipe, self.folder)

    @cached_property
    def sides(self) -> list[TeacherSide]:
        """The teachers: the recipe's own, whom the student is compared with, and its further ones."""
        others = enumerate(self.recipe.more_teachers)
        return [
            TeacherSide(self, self.recipe.teacher),
            *(TeacherSide(self, section, f"more_teachers.{n}") for n, section in others),
        ]

    @property
    def teacher(self) -> LocalTeacher | VectorsTeacher:
        """The first teacher."""
        return self.sides[0].teacher

    @property
    def info(self) -> TeacherInfo:
        """What student and method must know of the first teacher."""
        return self.sides[0].info

    @cached_property
    def tasks(self) -> list[Task]:
        """The evaluation suite; empty where the recipe names none."""
        return prepare.suite(self)

    @cached_property
    def examples(self) -> Examples | None:
        """The labelled examples of the recipe's task; None where it names none."""
        return prepare.examples(self)

    @property
    def teacher_head(self) -> TaskHead | None:
        """The first teacher's head, where it was fine-tuned for the recipe's task."""
        return self.sides[0].head

    @cached_property
    def corpus(self) -> Corpus:
        """The training texts, with no text of the evaluation suite among them."""
        return prepare.corpus(self)

    @cached_property
    def vocabulary(self) -> Any:
        """The tokenizer that the recipe's `student.vocabulary` asks for, made of the corpus's texts; None where it asks for none."""
        return prepare.vocabulary(self)

    @cached_property
    def student_tokenizer(self) -> tuple[Any, int]:
        """The student's tokenizer, and how many tokens of a text it reads."""
        model = self.student()
        return model.tokenizer, int(model.max_seq_length)

    @cached_property
    def required(self) -> OutputSpec:
        """What all stages want of every teacher."""
        return resolve.wanted(self)

    @property
    def live(self) -> bool:
        """Whether the first teacher runs in every step instead of filling a cache."""
        return self.sides[0].live

    @property
    def manifest(self) -> Manifest:
        """What the first teacher's signals depend on."""
        return self.sides[0].manifest

    @property
    def cache(self) -> TeacherCache:
        """The first teacher's cache, opened or created (not yet filled)."""
        return self.sides[0].cache

    def fill(self) -> TeacherCache:
        """The cache of every teacher that has one, filled with every row of the corpus; gives the first of them."""
        for side in self.sides:
            if side.live:
                side.say_live()
        first, *_ = [side.fill() for side in self.cached]
        return first

    @property
    def cached(self) -> list[TeacherSide]:
        """The teachers that a cache answers for; DistilvecError where there are none."""
        found = [side for side in self.sides if not side.live]
        if not found:
            names = ", ".join(side.info.name for side in self.sides)
            raise DistilvecError(
                f"[teacher.live] {self.recipe.name} runs {names} in every step: there is nothing to cache."
            )
        return found

    @property
    def alignment(self) -> AlignmentStore | None:
        """The pairs of the student's and the first teacher's tokens; None where no stage needs them."""
        return self.sides[0].alignment

    def data(self, model: SentenceTransformer, objective: Objective) -> TrainingData:
        """Corpus, tokens and cached teacher vectors, ready for the loop."""
        with self.processes.main_process_first():
            for side in self.sides:
                side.prepare()
            tokens = prepare.build_token_store(self.root, self.corpus, model)
            assert self.required.tokens is None or self.required.tokens.alignment is None or self.alignment is not None
        return self.training_data(tokens, resolve.answering(self, objective))

    def student(self) -> SentenceTransformer:
        """The untrained student; the same every time."""
        compatible = any(method_class(stage.recipe.method.name).compatible for stage in self.stages)
        return build_student(self.recipe.student, self.info, self.recipe.train.seed, compatible, self.vocabulary)

    def encoder(self) -> Encoder:
        """The untrained student as it is trained: with adapters where the recipe wants such."""
        model = self.student()
        if self.recipe.student.lora is not None:
            add_adapters(model, self.recipe.student.lora, self.recipe.train.seed)
        return Encoder(model)

    def training_data(self, tokens: TokenStore, teacher: Teacher) -> TrainingData:
        """Rows of the corpus, or examples of the task, with their tokens and their teacher."""
        rows, parts = self.corpus, self.examples
        train, holdout = (rows.train_rows, rows.holdout_rows) if parts is None else (parts.train, parts.holdout)
        return TrainingData(rows, tokens, teacher, train, holdout, self.alignment, examples=parts)

    def objective(self, encoder: Encoder, stage: Stage | None = None) -> Objective:
        """A stage's method (the last one's by default) for this student and teacher; its own parameters are drawn from the seed."""
        stage = stage or self.stages[-1]
        method, train = stage.recipe.method, stage.recipe.train
        sizes = resolve.sizes(self, encoder)
        torch.manual_seed(train.seed)
        with errors_named(stage):
            objective = build_objective(method.name, method.options, method.weights, sizes)
            if objective.in_batch and train.max_tokens:
                raise DistilvecError(
                    f"[train.max_tokens] {method.name} compares the texts of a batch with each other, so batches need a fixed "
                    "number of rows. Remove max_tokens and set batch_size."
                )
        return objective

    # -- the parts ---------------------------------------------------------------------------------------------------

    def execute(self) -> RunResult | None:
        """Everything the recipe says; a stage whose inputs have not changed is not run again.

        Under `accelerate launch` every process trains, the main one does the rest; the others return None.
        """
        check_run(self.recipe, self.folder)
        with ExitStack() as stack:
            with self.processes.main_process_first():
                if self.processes.is_main_process:
                    stack.enter_context(claim_folder(self.folder, self.recipe, self.train_fingerprint(), self.restart))
            state, distance = self.train()
            return self._finish(state, distance) if self.processes.is_main_process else None

    def _finish(self, state: Progress, distance: dict[str, float]) -> RunResult:
        """Evaluate the trained student, describe it, and write record, model card and report."""
        found = study(self).run() if self.tasks else {}
        if self.examples is not None:
            found = with_supervised(self, found, self.train_fingerprint())
        scores = {name: [read_score(score) for score in column] for name, column in found.get("scores", {}).items()}
        record = describe(self, state, distance, scores)
        model = load(self.folder / "student", device="cpu")
        if "supervised" in found:
            record["supervised"] = found["supervised"]
        head = copy_head(self.folder / "student")
        save_student(model, self.folder / "student", dict(record), model_card(record), extra_files=head)
        write_json(self.folder / "distillation.json", record, sealed=True, key="distillation.json")
        page = write_report(self.folder, found, record, recipes.dump(self.recipe)) if found else None
        problems = [TaskFailure(**problem) for problem in found.get("failures", [])]
        return RunResult(self.folder, state, distance, scores, record, problems, page)

    def train(self) -> tuple[Progress, dict[str, float]]:
        """Train, stage by stage, or take the finished student that is there; the best student's held-out distance comes with it."""
        encoder = self.encoder()
        objectives = [self.objective(encoder, stage) for stage in self.stages]
        for stage, objective in zip(self.stages, objectives, strict=True):
            check_parameters(stage, encoder, objective)
        data = self.data(encoder.model, objectives[0])
        mark, state = self.train_fingerprint(), Progress()
        for side in self.sides:
            side.release()
        for number, stage in enumerate(self.stages):
            if not stage.last and stage_progress(stage, mark).finished:
                continue
            if number:
                encoder = self.encoder()
                take_over(encoder, objectives[number], stage, self.stages[number - 1], mark)
            save = partial(self._save, encoder, objectives[number])
            data = replace(data, teacher=resolve.answering(self, objectives[number]))
            state = train_stage(stage, encoder, objectives[number], data, mark, save, self.callbacks)
        return state, best_distance([stage.folder / "metrics.jsonl" for stage in self.stages])

    def _save(self, encoder: Encoder, objective: Objective, name: str) -> None:
        """Keep a student of the last stage under a name, what its objective has learnt beside it."""
        info = {"method": self.stages[-1].recipe.method.name, "teacher": self.info.name, "complete": False}
        card, head = f"# {self.recipe.name}\n\nTraining has not finished.\n", head_writer(objective, self.examples)
        save_student(merged(encoder.model), self.folder / name, info, card, extra_files=head)
        save_objective(objective_file(self.folder / name), objective)

    # -- bookkeeping -------------------------------------------------------------------------------------------------

    def train_fingerprint(self) -> str:
        """Changes when anything that changes the trained weights does."""
        vectors = [side.manifest.fingerprint + (" live" if side.live else "") for side in self.sides]
        weights = [f" {side.section.weight}" for side in self.sides] if len(self.sides) > 1 else [""]
        marks = "+".join(vector + weight for vector, weight in zip(vectors, weights, strict=True))
        return training_fingerprint(self.recipe, self.stages, marks, self.corpus.fingerprint)
