"""Columns of the score table: which are made of which models, and what the recipe takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import numpy as np
import pyarrow as pa
import pytest
from refusals import refused

from distilvec.config.recipe import section_of
from distilvec.config.schema import EvaluationSection
from distilvec.config.score_columns import SCORE_COLUMNS, ScoredModel, columns_with
from distilvec.core.errors import about
from distilvec.evaluation.columns import make_columns, score_columns
from distilvec.evaluation.evaluator import EmbeddingCache
from distilvec.evaluation.tasks import StsTask
from distilvec.teachers.encode import EmbeddedBatch


@dataclass
class Model:
    name: str
    dim: int = 4


MODELS = {name: Model(name) for name in get_args(ScoredModel)}
STUDENT, TEACHER, UNTRAINED = MODELS["student"], MODELS["teacher"], MODELS["untrained"]


def test_every_column_there_are_models_for():
    columns = make_columns(MODELS)
    assert list(columns) == list(SCORE_COLUMNS)
    assert columns["asymmetric"] == columns["mixed"] == (STUDENT, TEACHER)
    assert columns["untrained_asymmetric"] == (UNTRAINED, TEACHER)
    assert make_columns({"student": STUDENT}) == {"student": (STUDENT, STUDENT)}


@pytest.mark.parametrize(("dim", "in_teacher_space"), [(4, False), (3, True)])
def test_two_models_need_one_space(dim, in_teacher_space):
    models = {"student": Model("student", dim), "teacher": TEACHER}
    assert list(make_columns(models, in_teacher_space)) == ["teacher", "student"]


def test_the_recipe_takes_the_names_and_no_others():
    section = section_of(EvaluationSection, "evaluation", {"columns": list(SCORE_COLUMNS)})
    assert section.columns == list(SCORE_COLUMNS)
    by_default = EvaluationSection().columns
    assert by_default == [name for name in SCORE_COLUMNS if SCORE_COLUMNS[name].by_default]
    assert {"teacher", "untrained", "student", "projected", "asymmetric"} <= {*by_default}
    with refused("evaluation.columns.0", "asymmetric"):
        section_of(EvaluationSection, "evaluation", {"columns": ["asymetric"]})


def test_columns_with_a_model():
    assert {"untrained", "untrained_asymmetric"} <= columns_with("untrained")
    assert {"teacher", "asymmetric", "untrained_asymmetric", "mixed"} <= columns_with("teacher")
    for name in ("teacher", "student", "projected", "asymmetric", "mixed"):
        assert name not in columns_with("untrained")


def test_a_table_that_is_damaged_further_on_fails_the_tasks_that_need_it(embedder):
    class Damaged(type(embedder())):
        dim = 16

        def embed_batches(self, texts, role):
            yield EmbeddedBatch(np.arange(len(texts)), {"embedding": self.embed(texts, role)}, 1.0)

        def embed(self, texts, role="document"):
            if "lost" in texts:
                with about("teacher.vectors", "rows.parquet"):
                    raise pa.ArrowInvalid("corrupt page")
            return super().embed(texts, role)

    gold = np.arange(4.0)
    tasks = [
        StsTask("damaged", ["lost", "b", "c", "d"], ["e", "f", "g", "h"], gold),
        StsTask("whole", ["i", "j", "k", "l"], ["m", "n", "o", "p"], gold),
    ]
    problems = []
    scores, _ = score_columns(tasks, {"teacher": (Damaged(), Damaged())}, EmbeddingCache(), problems)
    assert [score.task for score in scores["teacher"]] == ["whole"]
    (problem,) = problems
    assert problem.task == "damaged" and "rows.parquet" in problem.text
