"""Words about results agree with the rows: claims of the hand-written paragraphs against results/*.json."""

from __future__ import annotations

import json
import re
import statistics
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from scipy.stats import ttest_rel

ROOT = Path(__file__).parents[2]
METRICS = {"banking77": "accuracy", "stsb-separate": "spearman", "mrpc": "accuracy"}


@dataclass(frozen=True)
class Claim:
    """`words` of a page, and the difference upper - lower that they give; `shown`: its 95 % interval leaves out 0.

    `table` is a file of results/, with the task or average after a colon. None for `shown`: fewer than three seeds.
    """

    page: str
    words: str
    table: str
    upper: str
    lower: str
    least: float
    most: float
    shown: bool | None = True


TASKS, NEW, CUT = "shootout_cross_tokenizer", "shootout_sentence_level", "shootout_sentence_level_cut"
BANKING, STSB, FORMS = f"{TASKS}:banking77", f"{TASKS}:stsb-separate", "shootout_forms:banking77"
CLAIMS = [
    Claim("token_level", "about eight points on banking77", BANKING, "mined", "task", 7.5, 8.5),
    Claim(
        "token_level",
        "where every text has a label, under one",
        "shootout_all_labels:banking77",
        "mined",
        "task",
        0,
        1,
        None,
    ),
    Claim(
        "token_level",
        "+1.04 [-0.82, +2.90], so three seeds do not show a lead",
        BANKING,
        "dskd-hidden",
        "dskd",
        1.03,
        1.05,
        False,
    ),
    Claim("token_level", "which is clearly above the student alone", BANKING, "emo-states", "task", 1, 4),
    Claim("token_level", "where both have seen the labels as often", BANKING, "emo", "task-half", 1, 3),
    Claim("token_level", "and not on this one", BANKING, "emo", "task", 0, 1, False),
    Claim("token_level", "three seeds show it on the [second student]", FORMS, "emo", "task", 0, 1),
    Claim("token_level", "without IRA the score is that of `emo`", BANKING, "emo", "emo-otis", -0.5, 0.5, False),
    Claim("token_level", "without OTIS 0.7 lower", BANKING, "emo", "emo-ira", 0.65, 0.75, False),
    *(
        Claim("token_level", "no difference that three seeds show", BANKING, f"emo-{form}", "emo", -1.1, 1.1, False)
        for form in ("fast", "slow", "special", "all", "sharp", "light")
    ),
    Claim("token_level", "(`emo-strong`) costs 0.8 points", BANKING, "emo", "emo-strong", 0.75, 0.85),
    Claim("token_level", "costs fourteen points", BANKING, "task", "task-short", 13.5, 14.5),
    Claim("token_level", "`dskd` is below", STSB, "task-half", "dskd", 2, 10),
    Claim(
        "token_level",
        "`dskd`, `mined` and `emo` end within half a point",
        f"{TASKS}:mrpc",
        "task-trained",
        "emo",
        0,
        0.5,
        None,
    ),
    Claim("sentence_level", "(-0.39 [-0.56, -0.22])", f"{NEW}:all", "talas", "distillcse", -0.395, -0.385),
    Claim(
        "sentence_level",
        "gains one point with four pre-trained",
        f"{NEW}:all",
        "talas_plain",
        "simcse-tamd",
        0.95,
        1.05,
    ),
    Claim("sentence_level", "ends lower, by 4 to 11 points", f"{NEW}:all", "talas_plain", "detached", 6, 7.5, False),
    Claim(
        "sentence_level",
        "`talas_plain` scores 1.6 points higher",
        f"{CUT}:all",
        "talas_plain, projected",
        "talas_plain",
        1.55,
        1.65,
    ),
    Claim(
        "sentence_level",
        "score 3 points higher than those behind the map",
        f"{NEW}:all",
        "talas",
        "talas, projected",
        2.5,
        3.5,
    ),
    Claim("sentence_level", "and level with `jasper`", f"{NEW}:all", "talas", "jasper", -0.2, 0.2, False),
    Claim("sentence_level", "In domain it is ahead of both", f"{NEW}:in", "talas", "distillcse", 1, 4),
    Claim("sentence_level", "out of domain behind", f"{NEW}:out", "talas", "jasper", -3, -1),
    Claim(
        "sentence_level",
        "begin fresh, it costs half a point",
        f"{CUT}:all",
        "simcse-tamd",
        "talas_plain",
        0.45,
        0.65,
        None,
    ),
    Claim("sentence_level", "gives the second student 0.9 points", f"{CUT}:all", "sam", "talas_plain", 0.8, 0.9),
    Claim("sentence_level", "takes 2.7 from the first", f"{NEW}:all", "talas_plain", "sam", 2.65, 2.75),
    Claim(
        "sentence_level", "(`asam-5`, second student) is no better", f"{CUT}:all", "asam-5", "talas_plain", -2, 0, False
    ),
    Claim("sentence_level", "with the second 2.35 points above", f"{CUT}:all", "jasper", "distillcse", 2.345, 2.355),
    Claim("sentence_level", "is about three points above `simcse` with both", f"{NEW}:all", "rkd", "simcse", 2.5, 3.5),
    Claim(
        "sentence_level",
        "4.4 points above `simcse`, second to `distilcse_ckd`",
        f"{NEW}:all",
        "distillcse",
        "simcse",
        4.35,
        4.45,
    ),
    Claim(
        "sentence_level",
        "gains a quarter of a point, and loses one out of domain",
        f"{CUT}:out",
        "distillcse",
        "simcse",
        -1.1,
        -0.9,
    ),
    Claim(
        "distillmoe",
        "ends a point below the student alone at equal steps",
        BANKING,
        "distillmoe",
        "task",
        -1.5,
        -0.5,
        False,
    ),
    Claim(
        "distillmoe", "`gate-held` gains two points over `distillmoe`", BANKING, "gate-held", "distillmoe", 1.75, 2.5
    ),
    Claim(
        "distillmoe",
        "(`gate-held-residual`), two above the student alone",
        BANKING,
        "gate-held-residual",
        "task",
        1.75,
        2.5,
    ),
    Claim("distillmoe", "or lose one (`light`)", BANKING, "light", "distillmoe", -1.5, -0.75),
    Claim("distillmoe", "show no difference from `distillmoe`", BANKING, "gate-slow", "distillmoe", -1.5, -0.75, False),
    Claim("distillmoe", "ends five points above `distillmoe`", BANKING, "manual-equal", "distillmoe", 4.75, 5.5),
    Claim("distillmoe", "is 2.8 points better (`dskd-hidden`)", BANKING, "dskd-hidden", "manual-equal", 2.7, 2.9),
    Claim("sentence_level", "gains nothing by SAM", f"{CUT}:all", "redact-sam", "redact", -0.5, 0.1, False),
    Claim(
        "sentence_level",
        "`talas_plain` behind its map is level",
        f"{CUT}:all",
        "talas_plain, projected",
        "distilcse_ckd, projected",
        -0.3,
        0.3,
        False,
    ),
    Claim(
        "sentence_level",
        "1.6 points higher, `distilcse_ckd` 0.2",
        f"{CUT}:all",
        "distilcse_ckd, projected",
        "distilcse_ckd",
        0.15,
        0.25,
    ),
    Claim("token_level", "`mined`, `cdm` and `multilevel_ot` are level", STSB, "cdm", "task-half", -0.5, 0.5, False),
    Claim(
        "sentence_level",
        "those of `distilcse_ckd` half a point",
        f"{NEW}:all",
        "distilcse_ckd",
        "distilcse_ckd, projected",
        0.4,
        0.6,
        False,
    ),
    Claim("distillmoe", "three losses at fixed weights (`manual-equal`)", STSB, "manual-equal", "task", -1.5, 0, False),
    Claim("token_level", "`emo`, `emo-states`, `uld`", STSB, "emo-states", "task-half", -0.5, 0.5, False),
    Claim("distillmoe", "3.9 above the labels alone", BANKING, "manual-equal", "task", 3.85, 3.95),
    Claim("distillmoe", "both forms end 4.2 above the labels alone", FORMS, "manual-equal", "task", 4.15, 4.25),
    Claim("distillmoe", "both forms end 4.2 above the labels alone", FORMS, "manual-pointwise", "task", 4.15, 4.25),
    Claim("distillmoe", "more than two points by themselves", BANKING, "task", "head-alone", 2, 3),
    Claim(
        "distillmoe",
        "is level with the labels alone, with DynamicCKA (`no-head`)",
        STSB,
        "no-head",
        "task",
        -0.6,
        0,
        False,
    ),
]


@cache
def rows(file):
    """The rows of a file in results/, trained students alone, also behind their projection."""
    found = json.loads((ROOT / "results" / f"{file}.json").read_text(encoding="utf-8"))["rows"]
    return [row for row in found if row.get("column", "student") in ("student", "projected")]


def scores(table, name):
    """A row's score by seed; "RUN, projected" is a run's student behind its projection."""
    file, task = table.split(":")
    if task in METRICS:
        own = [row for row in rows(file) if (row["task"], row["method"]) == (task, name)]
        return {row["seed"]: row["scores"][METRICS[task]] for row in own}
    run, column = name.removesuffix(", projected"), "projected" if name.endswith(", projected") else "student"
    return {row["seed"]: row["averages"][task] for row in rows(file) if (row["run"], row["column"]) == (run, column)}


@cache
def prose(page):
    """The text of a page without what experiments.readme writes, each run of white space as one space."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    return " ".join(re.sub(r"<!-- (\w+):begin -->.*?<!-- \1:end -->", "", text, flags=re.DOTALL).split())


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: f"{claim.page}-{claim.upper}-{claim.lower}")
def test_words_about_results_agree_with_the_rows(claim):
    assert claim.words in prose(claim.page)
    upper, lower = scores(claim.table, claim.upper), scores(claim.table, claim.lower)
    seeds = sorted(upper.keys() & lower.keys())
    pairs = [upper[seed] for seed in seeds], [lower[seed] for seed in seeds]
    assert claim.least <= statistics.mean(pairs[0]) - statistics.mean(pairs[1]) <= claim.most
    interval = ttest_rel(*pairs).confidence_interval(0.95) if len(seeds) > 2 else None
    assert claim.shown == (interval and not interval.low <= 0 <= interval.high)


def test_the_share_that_dskd_keeps_and_its_limits():
    """`dskd-hidden` keeps 80 % of what `mined` gains over the labels alone."""
    means = {name: statistics.mean(scores(BANKING, name).values()) for name in ("task", "mined", "dskd-hidden")}
    share = (means["dskd-hidden"] - means["task"]) / (means["mined"] - means["task"])
    assert f"It keeps {share:.0%}".replace("%", " %") in prose("token_level")


def test_the_share_of_right_answers_after_eight_steps():
    found = scores(BANKING, "task-ratio").values()
    assert len(found) == 3 and round(statistics.mean(found)) == 4
    assert "the student is right on four texts of a hundred" in prose("token_level")


def test_the_lead_over_baselines_without_class_probabilities():
    baselines = [scores(BANKING, f"{name}-hidden") for name in ("uld", "mined", "dskd", "multilevel_ot")]
    pairs = [*zip(*([own[seed] for seed in range(3)] for own in baselines), strict=True)]
    means, ours = (
        [statistics.mean(pair) for pair in pairs],
        [scores(BANKING, "manual-equal")[seed] for seed in range(3)],
    )
    lead = statistics.mean(ours) - statistics.mean(means)
    assert f"{lead:.1f} above the mean of the four baselines that read no class" in prose("distillmoe")
    assert ttest_rel(ours, means).confidence_interval(0.95).low > 0


def test_every_seed_falls_without_the_gradient_of_lasds_guide():
    whole, detached = scores(f"{NEW}:all", "talas_plain"), scores(f"{NEW}:all", "detached")
    falls = sorted(whole[seed] - detached[seed] for seed in range(3))
    assert f"by {falls[0]:.0f} to {falls[-1]:.0f} points" in prose("sentence_level")


def test_the_first_of_a_kind():
    """`distilcse_ckd` is first with both students; asymmetric scores are those of `redact`."""
    for file in (NEW, CUT):
        found = {
            run: statistics.mean(scores(f"{file}:all", run).values()) for run in {row["run"] for row in rows(file)}
        }
        assert max(found, key=found.__getitem__) == "distilcse_ckd"
    assert "**`distilcse_ckd`** is first with both students" in prose("sentence_level")
    retrieval = []
    for file in (NEW, CUT):
        every = json.loads((ROOT / "results" / f"{file}.json").read_text(encoding="utf-8"))["rows"]
        own = [row for row in every if (row["run"], row["column"]) == ("redact", "asymmetric")]
        retrieval.append(statistics.mean(row["scores"]["cranfield"] for row in own))
    assert "asymmetric: {:.1f}; with the second student {:.1f})".format(*retrieval) in prose("sentence_level")


def averages(file, name, model, names):
    """The average over tasks by seed of a run of a sweep."""
    return {
        row["seed"]: statistics.mean(value for task, value in row["scores"][model].items() if task in (names or {task}))
        for row in rows(file)
        if row["run"] == name
    }


def lead(file, upper, lower, model="student", names=None):
    """The mean difference of two runs of a sweep, and its 95 % interval; over all tasks, or those of `names`."""
    ours, theirs = (averages(file, run, model, names) for run in (upper, lower))
    pairs = [[found[seed] for seed in sorted(ours.keys() & theirs.keys())] for found in (ours, theirs)]
    assert len(pairs[0]) > 2
    interval = ttest_rel(*pairs).confidence_interval(0.95)
    return statistics.mean(pairs[0]) - statistics.mean(pairs[1]), interval.low, interval.high


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece"])
def test_tokenizers_of_the_corpus_lead_where_the_teacher_knows_the_language(kind):
    assert "the tokenizers that were trained on the corpus are ahead of the teacher's own" in prose("surgery")
    assert lead("tokenizers", f"english-{kind}", "english-own")[1] > 0
    assert lead("tokenizers_turkish", f"local-{kind}", "local-own")[2] < 0
    assert "They lead before training, too" in prose("surgery")
    assert lead("tokenizers", f"english-{kind}", "english-own", "untrained")[1] > 0


def test_few_steps_move_sts_by_two_to_three_points():
    assert "they move the scores of STS by two to three points, in either direction" in prose("surgery")
    found = rows("tokenizers")
    moved = []
    for run in {row["run"] for row in found}:
        own = [row["scores"] for row in found if row["run"] == run]
        moved.append(
            statistics.mean(each["student"][t] - each["untrained"][t] for each in own for t in ("stsb", "sts13"))
        )
    assert min(moved) < 0 < max(moved) and all(1.5 < abs(gap) < 3.5 for gap in moved)


def test_the_teacher_knows_less_turkish_than_random_weights():
    assert "it scores below students of random weights" in prose("surgery")
    for row in rows("tokenizers_turkish"):
        assert row["scores"]["teacher"]["stsb_tr"] < row["scores"]["untrained"]["stsb_tr"]
        assert row["scores"]["student"]["stsb_tr"] < row["scores"]["untrained"]["stsb_tr"]


def test_fixed_weights_help_without_labels_in_and_out_of_domain():
    """By about as much as in the paper: 5.1 in and 4.2 out of domain with six layers, 2.6 and 2.8 with four."""
    assert "The losses at fixed weights help on tasks that the texts come from and on others" in prose("distillmoe")
    domains = json.loads((ROOT / "results" / "out_of_domain.json").read_text(encoding="utf-8"))["tasks"]
    for domain, most in (("in", 6), ("out", 5)):
        names = {name for name, task in domains.items() if task["domain"] == domain}
        gap, low, _ = lead("out_of_domain", "manual+testbed", "simcse+testbed", names=names)
        assert low > 0 and 2 < gap < most
        lost, _, high = lead("out_of_domain", "distillmoe+testbed", "simcse+testbed", names=names)
        assert high < 0 and lost < -gap
        _, low, high = lead("out_of_domain", "dskd+testbed", "simcse+testbed", names=names)
        assert low < 0 < high
    assert "`dskd` shows no difference from `simcse`" in prose("distillmoe")


def outside_of_retrieval(scores):
    """Scores by task, of rows of a report or of a table, without those of retrieval."""
    if isinstance(scores, list):
        return {row["task"]: row["value"] for row in scores if row["type"] != "retrieval"}
    return {task: value for task, value in scores.items() if task != "cranfield"}


def test_asymmetric_scores_are_the_students_outside_of_retrieval():
    """Only retrieval has documents of the teacher; what is scored with both models elsewhere is `mixed`."""
    pairs = []
    for name in ("english-three-layers", "english-three-layers-report", "english-two-layers"):
        scores = json.loads((ROOT / "results" / f"{name}.json").read_text())["scores"]
        pairs.append((scores["student"], scores["asymmetric"]))
    surgery = json.loads((ROOT / "results" / "surgery.json").read_text())
    for record in [*surgery["students"].values(), *surgery["sizes"].values()]:
        pairs.append((record["scores"]["student"], record["scores"]["asymmetric"]))
    for name in ("shootout_sentence_level", "shootout_sentence_level_cut"):
        rows = json.loads((ROOT / "results" / f"{name}.json").read_text())["rows"]
        students = {(row["run"], row["seed"]): row["scores"] for row in rows if row["column"] == "student"}
        asymmetric = [row for row in rows if row["column"] == "asymmetric"]
        pairs += [(students[row["run"], row["seed"]], row["scores"]) for row in asymmetric]
    assert len(pairs) > 20
    for student, asymmetric in pairs:
        assert outside_of_retrieval(asymmetric) == outside_of_retrieval(student) != {}
