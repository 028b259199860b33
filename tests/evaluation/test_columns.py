"""Columns of the score table: which are made of which models, and what the recipe takes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from refusals import refused

from distilvec.config.recipe import section_of
from distilvec.config.schema import EvaluationSection
from distilvec.config.score_columns import SCORE_COLUMNS, columns_with
from distilvec.evaluation.columns import make_columns


@dataclass
class Model:
    name: str
    dim: int = 4


STUDENT, TEACHER, UNTRAINED, PROJECTED = Model("student"), Model("teacher"), Model("untrained"), Model("projected")


def test_every_column_there_are_models_for():
    models = {"student": STUDENT, "teacher": TEACHER, "untrained": UNTRAINED, "projected": PROJECTED}
    columns = make_columns(models)
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
    assert EvaluationSection().columns == ["teacher", "untrained", "student", "projected", "asymmetric"]
    with refused("evaluation.columns.0", "asymmetric"):
        section_of(EvaluationSection, "evaluation", {"columns": ["asymetric"]})


def test_columns_with_a_model():
    assert columns_with("untrained") == {"untrained", "untrained_asymmetric"}
    assert columns_with("teacher") == {"teacher", "asymmetric", "untrained_asymmetric", "mixed"}
