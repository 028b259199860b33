"""The shootout on tiny models: what it runs, in what order, what it writes, how it goes on, what its tables say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from contexts import make_context
from samples import make_texts
from scipy.stats import ttest_rel

from distilvec.config import recipe as recipes
from distilvec.core.errors import DistilvecError
from distilvec.data.corpus import Corpus
from distilvec.methods.talas import Talas
from distilvec.pipeline.resolve import resolve
from distilvec.train.trainer import Trainer
from experiments.readme import pages
from experiments.sentence_level import (
    PAPER,
    STUDENTS,
    against_table,
    average_table,
    by_name,
    order,
    shootout_tables,
    title_of,
)
from experiments.shootout_sentence_level import RECIPE, plan, shootout

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("no_pages", "shared_cache")


@pytest.fixture
def small(tiny_recipe, tmp_path) -> Path:
    """A recipe of two methods and an ablation with a suite of two tasks, one in and one out of domain."""
    texts = make_texts(60, seed=3)
    for name, kind in (("near", "sts"), ("far", "pair")):
        rows = [
            {"split": "test", "sentence1": one, "sentence2": other, "score" if kind == "sts" else "label": number % 2}
            for number, (one, other) in enumerate(zip(texts[:30], texts[30:], strict=True))
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    entries = [("near", "sts", "in"), ("far", "pair", "out")]
    suite = [{"name": name, "type": kind, "domain": domain, "path": f"{name}.jsonl"} for name, kind, domain in entries]
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(suite))
    tree = tiny_recipe(train__max_steps=3, evaluation__columns=["student"]).model_dump(mode="json")
    tree["evaluation"]["suite"] = "suite.yaml"
    tree["sweep"] = {"variants": ["redact", "rkd"], "seeds": [0, 1]}
    tree["variants"] = {
        "redact": {"evaluation.columns": ["teacher", "untrained", "student", "asymmetric"]},
        "rkd": {"method.name": "rkd"},
        "sam": {"train.update": {"name": "sam"}},
    }
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
    return tmp_path / "small.yaml"


def test_members_of_the_whole_and_the_quick_one():
    members = plan(RECIPE, False, [])
    names = [member.name for member in members]
    assert len(set(names)) == len(names) == (11 + 17) * 3
    assert (
        names[:2] == ["redact,seed=0", "simcse,seed=0"]
        and names[-1] == "detached,seed=2"
        and names[11] == "simcse-part,seed=0"
    )
    assert {member.recipe.train.update.name for member in members} == {"plain", "sam", "asam", "disam"}
    same = {
        recipes.fingerprint(member.recipe.model_dump(mode="json", include={"teacher", "student", "corpus"}))
        for member in members
    }
    rates = {
        (member.recipe.train.epochs, member.recipe.train.learning_rate, member.recipe.train.batch_size)
        for member in members
    }
    assert len(same) == len(rates) == 1, "the same models, texts, epochs and learning rate for all"
    quick = plan(RECIPE, True, [])
    assert len(quick) == 11 and {member.recipe.train.seed for member in quick} == {0}
    assert {source.limit for source in quick[0].recipe.corpus.sources} == {2000}


def test_it_runs_writes_as_it_goes_and_goes_on(small, tmp_path, monkeypatch):
    out, path = tmp_path / "out", tmp_path / "shootout.json"
    trained: list[Path] = []
    whole = Trainer.run

    def stop_at_the_third(self):
        trained.append(self.folder.path.parent)
        if len(trained) == 3:
            raise KeyboardInterrupt
        return whole(self)

    monkeypatch.setattr(Trainer, "run", stop_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        shootout(small, out, path)
    written = json.loads(path.read_text())["rows"]
    assert [(row["run"], row["column"]) for row in written] == [
        *(("redact", column) for column in ("teacher", "untrained", "student", "asymmetric")),
        ("rkd", "student"),
    ]
    report = shootout(small, out, path)
    assert [folder.name for folder in trained[3:]] == [
        "sam,seed=0",
        *(f"{name},seed=1" for name in ("redact", "rkd", "sam")),
    ], "what is done is not trained again"
    assert json.loads(path.read_text()) == report
    rows = {(row["run"], row["column"], row["seed"]): row for row in report["rows"]}
    assert len(rows) == len(report["rows"]) == 4 * 2 + 2 * 2
    for row in report["rows"]:
        assert row["averages"]["in"] == row["scores"]["near"] and row["averages"]["out"] == row["scores"]["far"]
        assert row["averages"]["all"] == pytest.approx((row["scores"]["near"] + row["scores"]["far"]) / 2, abs=2e-3)
    assert rows["sam", "student", 0]["update"] == "sam"
    text = shootout_tables(report)
    assert "| rkd | 2 |" in text and "| teacher | 1 |" in text and "| untrained | 2 |" in text and "near*" in text
    monkeypatch.setattr(Trainer, "run", lambda self: pytest.fail("trained again"))
    assert shootout(small, tmp_path / "elsewhere", path)["rows"] == report["rows"], "the folders may be gone"


def test_other_settings_do_not_mix(small, tmp_path):
    path = tmp_path / "shootout.json"
    shootout(small, tmp_path / "one", path, overrides=["sweep.seeds=[0]", "sweep.variants=[redact]"])
    first = json.loads(path.read_text())
    second = shootout(
        small,
        tmp_path / "two",
        path,
        overrides=["sweep.seeds=[0]", "sweep.variants=[redact]", "train.learning_rate=1e-4"],
    )
    assert not {row["mark"] for row in first["rows"]} & {row["mark"] for row in second["rows"]}
    assert json.loads(path.read_text()) == second, "rows of other settings are gone"
    with pytest.raises(DistilvecError, match="another recipe"):
        shootout(
            small,
            tmp_path / "one",
            path,
            overrides=["sweep.seeds=[0]", "sweep.variants=[redact]", "train.learning_rate=1e-5"],
        )


def row(run, seed, value, column="student"):
    averages = {"in": value, "out": value, "all": value}
    return {
        "run": run,
        "column": column,
        "seed": seed,
        "averages": averages,
        "scores": {},
        "domains": {},
        "train_seconds": 1.0,
    }


def test_tables_and_words():
    found = {
        "simcse": [row("simcse", 0, 50.0), row("simcse", 1, 52.0)],
        "jasper": [row("jasper", 0, 70.0)],
        "talas": [row("talas", 0, 69.5)],
    }
    table = average_table(found)
    assert "| simcse | 2 | 51.00 ± 1.41 |" in table and "**70.00**" in table and table.count("**") == 2
    text = order("methods", found)
    assert "Pairs of rows in the paper's order: 2 of 3 (Spearman's rho 0.50)" in text
    assert "jasper above talas (by 0.50; in the paper 2.85 below)" in text
    close = {"jasper": [row("jasper", 0, 70.0), row("jasper", 1, 72.0)], "talas": [row("talas", 0, 70.5)]}
    assert "less than the standard deviation over seeds: 1" in order("methods", close)
    assert shootout_tables({"rows": []}) == ""


def test_differences_from_the_student_without_a_teacher():
    """Paired by seed, with scipy's interval; the rows of the result file are those of the page."""
    alone, ours = [50.0, 52.0, 51.5], [53.0, 54.5, 55.0]
    found = {name: [row(name, seed, value) for seed, value in enumerate(values)] for name, values in
             (("simcse", alone), ("jasper", ours), ("talas", ours[:2]))}  # fmt: skip
    table, note = against_table({**found, "untrained": found["simcse"]})
    interval = ttest_rel(ours, alone).confidence_interval(0.95)
    cell = f"+3.00 [{interval.low:+.2f}, {interval.high:+.2f}]"
    assert f"| jasper | {cell} | {cell} | {cell} |" in table and "| talas | +2.75 | +2.75 | +2.75 |" in table
    assert "untrained" not in table and "95%" in note
    assert against_table({"jasper": found["jasper"]}) == against_table({"simcse": found["simcse"]}) == []


def test_the_page_holds_what_the_rows_give():
    page, parts = (ROOT / "docs" / "papers" / "talas.md").read_text(encoding="utf-8"), pages()["docs/papers/talas.md"]
    for name in ("methods", "unseen", "unseen_parts", "own_layers", "own_layers_parts"):
        assert parts[name] and parts[name] in page
    assert page.count("\n| against `simcse` |") == len(STUDENTS)


def test_the_first_table_has_the_averages_of_every_table():
    parts = pages()["docs/papers/talas.md"]
    first = {line.split(" | ")[0]: line.split(" | ")[1::2] for line in parts["methods"].splitlines()[2:]}
    for name, number in (("unseen", 0), ("own_layers", 1)):
        averages = [line.split(" | ") for line in parts[name].splitlines()[4:] if line.startswith("| ")]
        for cells in (cells for cells in averages[:8] if cells[0] in first):
            assert cells[4].replace("**", "") == first[cells[0]][number]


def test_titles_name_only_what_the_rows_show():
    assert title_of("parts", []) and title_of("radius", ["talas", "sam", "redact"]) == ""
    assert title_of("radius", ["talas", "asam-5"]).startswith("The radius rho") and "detached" in title_of(
        "lasd", ["detached", "talas"]
    )
    assert title_of("lasd", ["lasd-0.1", "detached"]).count("; ") == 1
    parts = pages()["docs/papers/talas.md"]
    part = "\n\n".join([parts["unseen_parts"], parts["own_layers_parts"]])
    for title in (line for line in part.splitlines() if line.startswith("**")):
        below = part.partition(title)[2].partition("\n\nOf ")[0].partition("\n\n**")[0]
        named = set(re.findall(r"`([\w-]+)`", title))
        assert named <= set(re.findall(r"^\| ([\w.-]+) \|", below, re.MULTILINE)), title


def test_lasds_rows_stand_beside_those_with_as_many_pairs():
    """Table 8 of TALAS counts pairs of layers; the student of three layers has one, two or three."""
    options = {"relations-2": {"relation_layers": 2}, "talas": {}, "relations-embeddings": {"include_embeddings": True}}
    context = make_context(student_layers=3)
    pairs = {name: len(Talas(context, {}, **chosen).lasd_layers) - 1 for name, chosen in options.items()}
    theirs = {2: 73.86, 3: 74.62, 6: 74.79}
    assert PAPER["relations"] == {name: theirs.get(count) for name, count in pairs.items()}
    found = {name: [row(name, 0, value)] for name, value in (("relations-2", 60.0), ("talas", 61.0))}
    found["relations-embeddings"] = [row("relations-embeddings", 0, 62.0)]
    table = average_table(found, PAPER["relations"])
    assert "| relations-2 | 1 | 60.00 | 60.00 | 60.00 | 1 |  |" in table and "74.62 |" in table
    assert "order: 1 of 1." in order("relations", found)


def test_projected_students_have_rows_of_their_own():
    rows = [row("talas", 0, 60.0), row("talas", 0, 63.0, "projected"), row("redact", 0, 61.0)]
    rows += [row("redact", 0, 1.0, column) for column in ("asymmetric", "mixed")]
    assert list(by_name(rows)) == ["talas", "talas, projected", "redact"]


def test_no_evaluation_text_enters_the_corpus(tiny_recipe, tmp_path):
    """Training sentences that are in the test split too, in another case or spacing, are dropped before the limit
    counts.
    """
    pairs = [(f"a shared sentence {number}", f"a training sentence {number}") for number in range(40)]
    rows = [{"split": "train", "sentence1": one, "sentence2": other, "score": 1} for one, other in pairs]
    rows += [
        {"split": "test", "sentence1": one.upper(), "sentence2": f"{one}  ", "score": number}
        for number, (one, _) in enumerate(pairs[:25])
    ]
    path = tmp_path / "sts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump([{"name": "sts", "type": "sts", "path": str(path)}]))
    source = {"path": str(path), "column": ["sentence1", "sentence2"], "where": {"split": "train"}, "limit": 50}
    recipe = tiny_recipe(
        corpus__sources=[source], corpus__validation_rows=16, evaluation__suite=str(tmp_path / "suite.yaml")
    )
    corpus = resolve(recipe, tmp_path / "run").corpus
    assert isinstance(corpus, Corpus) and len(corpus) == 50
    texts = set(corpus.texts(range(len(corpus))))
    assert not texts & {one for one, _ in pairs[:25]}, "no text of the test split"
    assert corpus.report["excluded"] == 25 and corpus.report["left_out"] == 5
