"""The scores of finished sweeps: what is collected of run folders, and what the tables say."""

from __future__ import annotations

import pytest
import yaml

from distilvec.core.files import write_json
from distilvec.core.run_folder import RunFolder
from experiments.sweeps import collected, domains_table, tokenizers_table

SCORES = {"simcse+testbed": (40.0, 42.0, 44.0), "dskd+testbed": (45.0, 48.0, 48.0)}  # by seed, of the task near


@pytest.fixture
def runs(tmp_path, tiny_model):
    """Folders of six runs with two tasks, of which one is out of domain and ten points lower."""
    folders = []
    for name, values in SCORES.items():
        for seed, value in enumerate(values):
            folder = tmp_path / f"{name},seed={seed}"
            RunFolder(folder).make()
            (folder / "student").symlink_to(tiny_model)
            scores = [
                {"task": "near", "type": "sts", "metric": "spearman", "value": value, "domain": "in"},
                {"task": "far", "type": "sts", "metric": "spearman", "value": value - 10, "domain": "out"},
            ]
            student, training = {"parameters": 5_000_000}, {"seed": seed, "minutes": 1.0, "steps": 2105}
            columns = {"student": scores, "teacher": [{**score, "value": 80.0} for score in scores]}
            record = {"name": name, "student": student, "training": training, "scores": columns}
            write_json(RunFolder(folder).record, record, sealed=True)
            (folder / "recipe.yaml").write_text(yaml.safe_dump({"name": name, "train": {"seed": seed}}))
            folders.append(folder)
    return folders


def test_scores_are_collected_by_run_and_seed(runs):
    report = collected(runs)
    assert report["tasks"]["far"] == {"type": "sts", "metric": "spearman", "domain": "out"}
    found = {(row["run"], row["seed"]): row["scores"]["student"] for row in report["rows"]}
    assert found["dskd+testbed", 1] == {"near": 48.0, "far": 38.0} and len(found) == 6
    assert {row["steps"] for row in report["rows"]} == {2105} and all(row["tokens"] > 100 for row in report["rows"])


def test_a_table_pairs_differences_by_seed(runs):
    shown = domains_table(collected(runs))
    line = next(line for line in shown.splitlines() if line.startswith("| dskd |"))
    # the gaps are 5, 6 and 4: mean 5, and 4.303 times their standard error
    assert "| 47.00 ± 1.73 | +5.00 [+2.52, +7.48] | 37.00 ± 1.73 | +5.00 [+2.52, +7.48] | 42.00 ± 1.73 |" in line
    assert "| teacher |  |  | 80.00 |  | 80.00 |  | 80.00 |  |" in shown
    assert "(in domain: near; out of domain: far)" in shown and "2,105 steps a run" in shown


def test_tokenizers_stand_beside_the_teacher_s_own(runs):
    report = collected(runs)
    for row in report["rows"]:
        row["run"] = {"simcse+testbed": "local-own", "dskd+testbed": "local-bpe"}[row["run"]]
        row["scores"]["untrained"] = dict.fromkeys(row["scores"]["student"], 20.0)
    own, bpe = (line for line in tokenizers_table(report).splitlines() if line.startswith(("| own", "| bpe")))
    # both tasks are of one type
    assert "[" not in own and bpe.count("| 20.00 → ") == bpe.count("+5.00 [+2.52, +7.48]") == 2
