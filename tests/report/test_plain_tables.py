"""Scores as rows of text and as Markdown."""

from distilvec.evaluation.evaluator import Score
from distilvec.report.plain_tables import ABSENT, scores_table, to_markdown


def score(task, value, metric="spearman"):
    return Score(task, "sts", metric, value, {metric: value}, 0.0, 1)


def test_table_with_a_missing_task():
    columns = {
        "teacher": [score("a", 80.0), score("b", 40.0)],
        "student": [score("a", 79.0), score("b", 40.0)],
        "partial": [score("b", 38.123)],
    }
    rows = scores_table(columns, reference="teacher")
    assert rows == [
        ["Task", "Metric", "teacher", "student", "partial"],
        ["a", "spearman", "80.00", "79.00", ABSENT],
        ["b", "spearman", "40.00", "40.00", "38.12"],
        ["average", "", "60.00", "59.50", ABSENT],
        ["% of teacher", "", "100.0", "99.2", ABSENT],
    ]
    lines = to_markdown(rows).splitlines()
    assert lines[1] == "| --- | --- | ---: | ---: | ---: |" and len(lines) == 6
    assert lines[2] == f"| a | spearman | 80.00 | 79.00 | {ABSENT} |"
    assert "a\\|b" in to_markdown([["a|b", "x"]])
