"""The papers' claims beside the same figures measured here, for docs/results.md; `python -m experiments.readme`."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.markdown import markdown_table
from distilvec.evaluation.aggregate import RETRIEVAL
from experiments import larger_teacher
from experiments.cross_tokenizer import MOE_PAPER, PAPER, values
from experiments.score_table import retained
from experiments.sentence_level import PAPER as TALAS_PAPER
from experiments.sentence_level import by_name, by_seed
from experiments.shootout import Gap, Seeds, gap_between_seeds

Rows = Sequence[Mapping[str, Any]]
Read = Callable[[str], Any]

# REDACT: shares of the teacher's nDCG@10 on BEIR and of its average on MTEB (sections 4.1 and 4.2), points of nDCG@10
# that the teacher's documents add (table 1), validation losses by batch size (table 3).
REDACT_STANDARD, REDACT_ASYMMETRIC, REDACT_AVERAGE = 96.1, 97.7, 95.8
REDACT_DOCUMENTS = 54.8 - 53.9
REDACT_BATCHES = 0.4301 - 0.4214
# Surgery: Spearman on STSb-TR (table 1); on TR-MTEB, six tasks of retrieval, the share of the average, and the points
# that twice the tokens add (sections 5.2, 6.1 and 6.2).
STSB_TR, TR_RETRIEVAL, TR_AVERAGE, TWICE_THE_TOKENS = 77.45 - 72.92, 72.2 - 75.9, 98.0, 3.7
# EMO: SciTail against labels alone, without OTIS and without IRA (table 3).
SCITAIL, SCITAIL_OTIS, SCITAIL_IRA = 90.9 - 88.1, 90.9 - 88.8, 90.9 - 87.2
# DistillMoE: SciTail, its losses at equal weights (table 11), without experts (table 13), four layers out of
# domain (table 14).
MOE_SCITAIL, MOE_EQUAL, MOE_EXPERTS, MOE_OUT = 92.4 - 88.1, 49.6 - 46.0, 82.1 - 79.9, 66.52 - 63.70
# TALAS: the largest eigenvalue of AdamW over that of ASAM after three epochs (table 4).
EIGENVALUES = 21.48 / 12.94

SHARE = "{:.1f}"

STUDENTS = "distilvec run recipes/students.yaml --variant english-23m-480k"
THREE_LAYERS = "distilvec run recipes/english.yaml --variant three-layers"
FAMILIES = "distilvec run recipes/sweeps/real_teachers.yaml"
TURKISH = "distilvec run recipes/sweeps/real_teachers_turkish.yaml"
CROSS = "python -m experiments.shootout_cross_tokenizer"
LARGER = "python -m experiments.larger_teacher"
SMALL = "MiniLM for Mistral 7B; four layers for 12"
FEW = f"{SMALL}; 2,000 labels, equal steps"
E5 = "e5 for Mistral 7B; four layers of MiniLM for 12"
SENTENCES = "python -m experiments.shootout_sentence_level"


@dataclass(frozen=True)
class Claim:
    """A figure of a paper, the same one here, the setting that decides it, and the command that makes it.

    printed: None where the paper draws it only, or does not have it
    form: of its numbers; the sign counts where it is printed
    seeds: how many, and what the interval is over if not over three of them
    """

    what: str
    setting: str
    printed: float | None
    here: Gap
    command: str
    form: str = "{:+.2f}"
    seeds: str = "3"

    @property
    def cells(self) -> list[str]:
        """The claim's row."""
        printed = "no figure" if self.printed is None else self.form.format(self.printed)
        here = self.form.format(self.here.mean)
        if self.here.low != self.here.high:
            here += f" [{self.form}, {self.form}]".format(self.here.low, self.here.high)
        return [self.what, printed, here, self.against, self.seeds, self.setting, f"`{self.command}`"]

    @property
    def against(self) -> str:
        """Where the figure here, with its interval, is beside the paper's and beside 0."""
        if self.printed is None:
            return ""
        low, high = (self.here.mean if end is None else end for end in (self.here.low, self.here.high))
        if low >= self.printed:
            return "not below"
        if high >= self.printed:
            return "interval has it"
        if "+" not in self.form or self.printed < 0 or low > 0:
            return "below"
        return "below, interval has 0" if high >= 0 else "other sign"


def claims_table(read: Read) -> str:
    """Return the table; `read` gives a file of results/."""
    papers: dict[str, Iterable[Claim]] = {
        "REDACT": redact_claims(read),
        "Tokenizer surgery": surgery_claims(read),
        "EMO": emo_claims(read),
        "DistillMoE": moe_claims(read),
        "TALAS": talas_claims(read),
    }
    rows: list[list[str]] = []
    for paper, claims in papers.items():
        rows.append([f"**{paper}**", *[""] * 6])
        rows += [claim.cells for claim in claims]
    head = ["claim", "paper", "here", "here is", "seeds", "setting here, for the paper's", "command"]
    return markdown_table(head, rows, columns="lrrllll")


def redact_claims(read: Read) -> list[Claim]:
    """What a student keeps of its teacher's scores."""
    student = next(row for row in read("result_students")["rows"] if row["name"] == "english-23m-480k")
    record, report = read("english-three-layers"), read("english-three-layers-report")
    families = [row for row in read("real_teachers")["rows"] if row["run"] == "mpnet-ridge"]
    tasks = {"cranfield": "Cranfield for BEIR", "xquad-en": "XQuAD for BEIR"}
    trained = f"{student['texts'] / 1e6:.1f} M texts x {student['passes']}, for 6.6 M x 30"
    three_layers = "MiniLM → three of its own layers, 23 → 17 M"
    claims: list[Claim] = []
    for what, column, printed in (
        ("retrieval kept, %", "student", REDACT_STANDARD),
        ("the same, documents by the teacher", "asymmetric", REDACT_ASYMMETRIC),
    ):
        for task, title in tasks.items():
            share = Gap(100 * student["scores"][column][task] / student["scores"]["teacher"][task])
            setting = f"mpnet → MiniLM, 109 → 23 M; {trained}; {title}"
            claims.append(Claim(what, setting, printed, share, STUDENTS, SHARE, "1"))
        teacher = next(row["value"] for row in record["scores"]["teacher"] if row["task"] == "cranfield")
        ends = (100 + 100 * end / teacher for end in report["intervals"][column]["cranfield"][:2])
        share = Gap(retained(record)[column][RETRIEVAL], *ends)
        setting = f"{three_layers}; {tasks['cranfield']}"
        claims.append(Claim(what, setting, printed, share, THREE_LAYERS, SHARE, "1, by query"))
    for task, title in tasks.items():
        documents, own = (
            {row["seed"]: row["scores"][side][task] for row in families} for side in ("asymmetric", "student")
        )
        setting = f"mpnet → MiniLM; 30,000 texts, three passes; {title}"
        what = "retrieval, the teacher's documents less own"
        claims.append(Claim(what, setting, REDACT_DOCUMENTS, gap(documents, own), FAMILIES))
    share = Gap(100 * student["averages"]["student"]["all"] / student["averages"]["teacher"]["all"])
    setting = "109 → 23 M, for 335 → 23 M; nine tasks for the 41 of MTEB"
    claims.append(Claim("average kept, %", setting, REDACT_AVERAGE, share, STUDENTS, SHARE, "1"))

    distances = {row["run"]: row["distance"] for row in read("levers")["rows"] if row["seed"] == 0}
    wider = Gap(distances["batch-64"] - distances["last-layers"])
    what, setting = "distance, batches of 64 less 32", "MiniLM → 5 M; equal texts, 1.5 times the rate for 64"
    claims.append(Claim(what, setting, REDACT_BATCHES, wider, "python -m experiments.levers", "{:+.3f}", "1"))
    fit = report["margin"]["fits"]["average"]
    margin = Gap(fit["crossing"], fit["crossing_low"], fit["margin"])
    what, setting = "distance at which the teacher's score is reached", f"{three_layers}; a line through saved students"
    claims.append(Claim(what, setting, None, margin, THREE_LAYERS, "{:.3f}", "1"))
    return claims


def surgery_claims(read: Read) -> list[Claim]:
    """Students of e5 with other tokens against it; twice the tokens; what a prompt gives the paper's teacher."""
    rows, surgery = read("real_teachers_turkish")["rows"], read("surgery")
    tokens = {
        "trim-12": "the tokens of 12,000 texts",
        "unigram-12": "16,000 new tokens",
        "unigram-12-slow": "16,000 new tokens behind prompts, rate 1e-4",
    }
    equal = {"trim-12": "3, equal"}  # nothing was trained
    tests = {"stsb_tr": "STSb-TR", "tquad": "TQuAD"}
    seeds = {
        (name, column): {row["seed"]: row["scores"][column] for row in rows if row["run"] == name}
        for name in tokens
        for column in ("student", "teacher")
    }
    claims: list[Claim] = []
    for what, task, printed, test in (
        ("STSb-TR, student less teacher", "stsb_tr", STSB_TR, "validation pairs"),
        ("Turkish retrieval, student less teacher", "tquad", TR_RETRIEVAL, "TQuAD for six tasks"),
    ):
        for name, chosen in tokens.items():
            ours, theirs = (
                {seed: scores[task] for seed, scores in seeds[name, column].items()}
                for column in ("student", "teacher")
            )
            setting = f"e5 with its prompts, for embeddinggemma without; {chosen}; {test}"
            claims.append(Claim(what, setting, printed, gap(ours, theirs), TURKISH, seeds=equal.get(name, "3")))
    claims += paper_teacher_claims(read)
    prompt = Gap(*read("teacher_prompts")["rows"]["STS"]["against_none"])
    what, setting = "STSb-TR, the teacher's STS prompt less none", "embeddinggemma itself; validation pairs"
    claims.append(Claim(what, setting, None, prompt, "python -m experiments.teacher_prompts", seeds="1,500 pairs"))
    for name in ("trim-12", "unigram-12-slow"):
        shares = {
            seed: 100 * sum(scores[task] for task in tests) / sum(seeds[name, "teacher"][seed][task] for task in tests)
            for seed, scores in seeds[name, "student"].items()
        }
        size = next(row["parameters"] for row in rows if row["run"] == name) / 1e6
        setting = f"e5, 118 → {size:.0f} M, for 300 → 200 M; {tokens[name]}; STSb-TR, TQuAD for 26 tasks"
        kept = gap(shares, dict.fromkeys(shares, 0.0))
        number = equal.get(name, "3")
        claims.append(Claim("Turkish average kept, %", setting, TR_AVERAGE, kept, TURKISH, SHARE, number))
    means = {
        record["tokens"]: statistics.mean(row["value"] for row in record["scores"]["student"])
        for record in surgery["sizes"].values()
    }
    setting = "MiniLM, three layers, English; 8,000 → 16,000 tokens for 65,536 → 131,072"
    twice, command = Gap(means[16_000] - means[8_000]), "distilvec run recipes/sweeps/vocabulary_size.yaml"
    claims.append(Claim("average, twice the tokens", setting, TWICE_THE_TOKENS, twice, command, seeds="1"))
    shorter = Gap(surgery["turkish"]["kinds"]["unigram"]["languages"]["stsb_tr"]["saved"]["length"])
    what, setting = "Turkish texts shorter by, %", "MiniLM's English tokens → 8,000 new tokens; STSb-TR"
    claims.append(Claim(what, setting, None, shorter, "python -m experiments.surgery turkish", SHARE, ""))
    return claims


def paper_teacher_claims(read: Read) -> Iterator[Claim]:
    """Students of the paper's teacher against it, both without a prompt."""
    rows = read("paper_teacher")["rows"]
    tokens = {
        "own-turkish-long": "32,000 new tokens",
        "hybrid-mixed": "the paper's hybrid",
    }
    for name, chosen in tokens.items():
        training = rows[name]["training"]
        passes = "one pass" if training["epochs"] == 1 else f"{training['epochs']} passes"
        trained = f"{training['texts'] // training['epochs']:,} texts in {passes}, for 580,000"
        setting = f"embeddinggemma, both without a prompt; {chosen}; {trained}; validation pairs"
        less = Gap(*rows[name]["bare"]["less_bare_teacher"])
        command = "python -m experiments.paper_teacher"
        yield Claim("STSb-TR, student less teacher", setting, STSB_TR, less, command, seeds="1, by pair")


def emo_claims(read: Read) -> list[Claim]:
    """What EMO adds to the labels and to other methods, and its parts."""
    rows, every = read("shootout_cross_tokenizer")["rows"], read("shootout_all_labels")["rows"]
    report, paper = read("larger_teacher"), PAPER["banking77"]
    over_labels = paper["emo"] - paper["task"]
    every_label = f"{SMALL}; every label, equal steps"
    claims = against_labels(read, "emo", PAPER, SCITAIL)
    here = gap(values(every, "banking77", "emo"), values(every, "banking77", "task"))
    command = f"{CROSS} -- task.labels=null"
    claims.insert(1, Claim("Banking77, less labels alone", every_label, over_labels, here, command, seeds="2"))
    for part, printed, without in (("OTIS", SCITAIL_OTIS, "emo-ira"), ("IRA", SCITAIL_IRA, "emo-otis")):
        here = larger_gap(report, "mrpc", "emo", without)
        claims.append(Claim(f"pairs, with {part} less without", f"{E5}; MRPC for SciTail", printed, here, LARGER))
    for name, method in (("ULD", "uld"), ("DSKD", "dskd"), ("MinED", "mined")):
        here = gap(values(rows, "banking77", "emo"), values(rows, "banking77", method))
        claims.append(Claim(f"Banking77, less {name}", FEW, paper["emo"] - paper[method], here, CROSS))
    return claims


def moe_claims(read: Read) -> list[Claim]:
    """What DistillMoE adds to the labels, to MinED, and to its own losses without experts."""
    rows, report, domains = read("shootout_cross_tokenizer")["rows"], read("larger_teacher"), read("out_of_domain")
    paper = MOE_PAPER["banking77"]

    def less(task: str, other: str) -> Gap:
        return gap(values(rows, task, "distillmoe"), values(rows, task, other))

    outside = [name for name, task in domains["tasks"].items() if task["domain"] == "out"]
    scores = {
        run: {
            row["seed"]: statistics.mean(row["scores"]["student"][task] for task in outside)
            for row in domains["rows"]
            if row["run"] == f"{run}+testbed"
        }
        for run in ("distillmoe", "simcse")
    }
    equal = "less its losses at equal weights"
    e5, here = f"{E5}; MRPC for ConTRoL", larger_gap(report, "mrpc", "distillmoe", "manual-equal")
    tiny = "MiniLM for BGE-M3; four layers, as there; four tasks for seven"
    command = "distilvec run recipes/sweeps/out_of_domain.yaml"
    mined = paper["distillmoe"] - paper["mined"]
    return [
        *against_labels(read, "distillmoe", MOE_PAPER, MOE_SCITAIL),
        Claim(equal, f"{FEW}; Banking77 for ConTRoL", MOE_EQUAL, less("banking77", "manual-equal"), CROSS),
        Claim(equal, e5, MOE_EQUAL, here, LARGER),
        Claim(
            "STS-B, with experts less without",
            f"{SMALL}; equal steps",
            MOE_EXPERTS,
            less("stsb-separate", "no-head"),
            CROSS,
        ),
        Claim("Banking77, less MinED", FEW, mined, less("banking77", "mined"), CROSS),
        Claim("out of domain, less SimCSE", tiny, MOE_OUT, gap(scores["distillmoe"], scores["simcse"]), command),
    ]


def against_labels(read: Read, method: str, paper: Mapping[str, Mapping[str, float]], scitail: float) -> list[Claim]:
    """What a method adds to the labels alone, with the small and with the larger teacher."""
    rows, pairs, tasks = read("shootout_cross_tokenizer")["rows"], read("larger_teacher"), read("larger_teacher_tasks")
    banking, stsb = (paper[task][method] - paper[task]["task"] for task in ("banking77", "stsb-separate"))
    small = {task: gap(values(rows, task, method), values(rows, task, "task")) for task in paper}
    number = "2, by row"
    larger = {
        task: larger_gap(report, task, method, "task")
        for report, task in ((tasks, "banking77-2000"), (tasks, "stsb"), (pairs, "mrpc"))
    }
    labels, e5 = "less labels alone", f"{E5}; 2,000 labels, equal steps"
    return [
        Claim(f"Banking77, {labels}", FEW, banking, small["banking77"], CROSS),
        Claim(f"Banking77, {labels}", e5, banking, larger["banking77-2000"], LARGER, seeds=number),
        Claim(f"STS-B, {labels}", f"{SMALL}; equal steps", stsb, small["stsb-separate"], CROSS),
        Claim(f"STS-B, {labels}", f"{E5}; equal steps", stsb, larger["stsb"], LARGER),
        Claim(f"pairs, {labels}", f"{E5}; MRPC for SciTail", scitail, larger["mrpc"], LARGER),
    ]


def talas_claims(read: Read) -> list[Claim]:
    """What TALAS adds to other methods, and its parts, for each pair of models; how flat its minima are."""
    pairs = {
        "_mpnet": "mpnet for Qwen3 0.6B; four layers of MiniLM",
        "": "MiniLM for Qwen3 0.6B; four layers that never saw it",
        "_cut": "MiniLM for Qwen3 0.6B; three of its own layers",
    }
    compared = [
        ("average, less SimCSE", "talas", "simcse", "methods"),
        ("average, less DistillCSE", "talas", "distillcse", "methods"),
        ("average, ASAM less AdamW", "talas", "talas_plain", "methods"),
        ("average, with LASD less without", "talas_plain", "simcse-tamd", "parts"),
    ]
    claims: list[Claim] = []
    for what, ours, theirs, table in compared:
        with_it, without = TALAS_PAPER[table][ours], TALAS_PAPER[table][theirs]
        assert with_it is not None and without is not None, "the paper prints both"
        for name, setting in pairs.items():
            found = by_name(read(f"shootout_sentence_level{name}")["rows"])
            if theirs in found:
                here = gap(by_seed(found[ours]), by_seed(found[theirs]))
                number = "1" if here.low is None else "3"
                claims.append(Claim(what, setting, with_it - without, here, SENTENCES, seeds=number))
    curves = {}
    for run in read("sharpness"):
        curves[run["name"]] = {point["epoch"]: point["lambda_max"] for point in run["points"]}
    ratio = Gap(curves["adamw"][3] / curves["asam"][3])
    setting, command = f"{pairs['_cut']}; after three passes, as there", "python -m experiments.sharpness"
    what, form = "largest eigenvalue, AdamW / ASAM", "{:.2f}"
    return [*claims, Claim(what, setting, EIGENVALUES, ratio, command, form, "1")]


def larger_gap(report: Mapping[str, Any], task: str, ours: str, theirs: str) -> Gap:
    """Return the difference of two methods of the larger teacher, over seeds, or over rows with two seeds."""
    found = larger_teacher.gap_between(report, task, ours, theirs)
    assert found is not None, f"{ours} and {theirs} have rows"
    return found


def gap(ours: Seeds, theirs: Seeds) -> Gap:
    """Return the mean difference of seeds that both have."""
    found = gap_between_seeds(ours, theirs)
    assert found is not None, "both have a seed"
    return found
