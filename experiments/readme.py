"""Write the tables and the figure of README.md and docs/ from the JSON files in results/; no number is typed by hand.

    python -m experiments.readme

`pages` says which file of results/ is in which part of which page; docs/reproduce.md says what writes each file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.exports import exports_table
from benchmarks.gpu import gpu_table
from benchmarks.markdown import markdown_table
from benchmarks.stopwatch import busy_note
from distilvec.evaluation.aggregate import AVERAGE, RETRIEVAL
from experiments import larger_teacher
from experiments.alternatives import alternatives_line, latency_line
from experiments.black_box import table as ways_table
from experiments.clients import clients_table
from experiments.cross_tokenizer import (
    distillmoe_tables,
    emo_summary,
    emo_tables,
    forms_tables,
    moe_summary,
    one_input_table,
)
from experiments.deployment import (
    browser_table,
    classify_table,
    databases_table,
    int8_table,
    queue_table,
    scale_table,
    serve_line,
)
from experiments.design_rule import table as design_table
from experiments.distillmoe_tables import (
    aggregation_line,
    experts_speed_table,
    moe_step_table,
    routing_table,
)
from experiments.hardware import hardware_table
from experiments.headlines import headlines_table
from experiments.held_out_origins import origins_table
from experiments.intents import intents_table
from experiments.interval_coverage import coverage_table
from experiments.levers import levers_table
from experiments.linear_layer import layers_table
from experiments.new_texts import table as new_texts_table
from experiments.quality_over_time import draw_quality, first_better, quality_table
from experiments.real_teachers import STARTS, TURKISH, contrast_line, surgery_table
from experiments.real_teachers import table as teachers_table
from experiments.result_students import distances_table, kept
from experiments.result_students import students_table as result_students_table
from experiments.result_students import tasks_table as result_tasks_table
from experiments.score_table import distance_table, modes_table, retained, score_table, summary_table
from experiments.sentence_level import ablation_tables, larger_table, methods_tables, sharpness_table
from experiments.sentence_level import summary_table as talas_summary
from experiments.site.figures import figures
from experiments.size_figure import draw_sizes
from experiments.step_costs import cost_table
from experiments.students_figure import draw_students, student_points
from experiments.surgery_tables import (
    by_short_name,
    inference_table,
    sizes_summary,
    sizes_table,
    speed_line,
    students_table,
    tasks_table,
    trim_table,
    turkish_table,
)
from experiments.sweeps import domains_table, tokenizers_table
from experiments.ten_languages import table as languages_table
from experiments.token_level import alignment_tables, cache_tables, rows_line, step_table, transport_line
from experiments.untouched import Untouched, untouched_from

ROOT = Path(__file__).parents[1]
# Students that were trained on scientific and patent texts chosen because they resemble Cranfield, which they are tested on
CHOSEN_TEXTS = ("17m-rank", "8m-pieces", "5m-pieces")
STAR = (
    "\\* Trained also on scientific and patent texts, which were chosen because they resemble Cranfield: retrieval on other "
    "subjects may be lower."
)
PASSES = {1: "One pass", 2: "Two passes"}
# Students of one teacher, beside one another
ENGLISH = ("english-5m", "english-10m", "english-23m", "english-23m-480k")
KILLED = {"pushing": "pushing to an address", "table": "a table that changed in between"}  # parts of kills.json


def main() -> None:
    """Fill every marked part of every page whose figures are there."""
    for page, parts in pages().items():
        path = ROOT / page
        text = path.read_text(encoding="utf-8")
        for name, table in parts.items():
            begin, end = marks(name)
            before, after = text.split(begin)[0], text.split(end)[1]
            text = before + begin + (table + "\n" if table else "") + end + after
        path.write_text(text, encoding="utf-8")
    others = (read(name) or {} for name in ("alternatives", "int8_scores", "exports"))
    shown = main_students("5m-narrow", "2m-narrow")  # none of CHOSEN_TEXTS
    draw_students(ROOT / "docs" / "figures" / "students.svg", student_points(shown, *others))
    for name, file, draw in (
        ("time-to-quality", "time_to_quality", draw_quality),
        ("sizes", "sizes", draw_sizes),
    ):
        if (found := read(file)) is not None:
            write_figure(name, draw(found))
    for name, picture in figures().items():
        write_figure(name, picture)


def write_figure(name: str, picture: str) -> None:
    """Write a picture of the pages."""
    (ROOT / "docs" / "figures" / f"{name}.svg").write_text(picture, encoding="utf-8")


def pages() -> dict[str, dict[str, str]]:
    """Every page with its marked parts and what belongs into them; empty where there are no figures yet."""
    return {
        "README.md": {"headline": headline(), "fast": fast()},
        "docs/tutorial.md": {"quickstart": quickstart()},
        "docs/sizes.md": {
            "students": students(),
            "design": tables(("design_rule", design_table)),
            "hardware": hardware(),
        },
        "docs/results.md": {
            "people": tables(("result_students", partial(result_students_table, untouched=rival()))),
            "people_tasks": tables(("result_students", partial(result_tasks_table, names=ENGLISH, untouched=rival()))),
            "summary": f"{summary_table(main_students())}\n\n{STAR}",
            "headlines": headlines(),
            "results": results(),
            "small": surgery_part("students", students_table),
            "tasks": surgery_part("students", tasks_table),
            "alternatives": tables(("alternatives", alternatives_line), ("latency", latency_line)),
        },
        "docs/speed.md": {
            "speed": speed(),
            "gpu": tables(("gpu", gpu_table)),
            "quality": tables(("time_to_quality", partial(quality_table, untouched=rival()))),
        },
        "docs/reproduce.md": {"origins": tables(("held_out_origins", origins_table))},
        "docs/levers.md": {"levers": tables(("levers", levers_table))},
        "docs/language.md": {
            "turkish": tables(("real_teachers_turkish", partial(teachers_table, names=TURKISH))),
            "languages": tables(("ten_languages", languages_table)),
        },
        "docs/api_teachers.md": {"ways": tables(("black_box", partial(ways_table, untouched=rival())))},
        "docs/clients.md": {"clients": tables(("clients", clients_table))},
        "docs/demo.md": {"browser": tables(("browser", browser_table))},
        "docs/evaluate.md": {
            "intervals": tables(("interval_coverage", coverage_table)),
            "new_texts": tables(("new_texts", new_texts_table)),
        },
        "docs/export.md": {
            "exports": tables(("exports", exports_table)),
            "int8": tables(("int8_scores", int8_table)),
        },
        "docs/cluster.md": {
            "scale": tables(("scale", scale_table)),
            "queue": tables(("shard_queue", queue_table)),
        },
        "docs/existing_index.md": {"databases": tables(("index_databases", databases_table))},
        "docs/task_student.md": {
            "classify": tables(("classify", classify_table)),
            "intents": tables(("intents", intents_table)),
        },
        "docs/serve.md": {"serve": tables(("serve", serve_line))},
        "docs/papers/redact.md": {
            "distances": f"{distance_table(main_students())}\n\n{STAR}",
            "long": tables(("result_students", partial(distances_table, names=ENGLISH, untouched=rival()))),
            "teachers": tables(
                ("real_teachers", partial(teachers_table, names=STARTS, untouched=rival())),
                ("real_teachers", contrast_line),
            ),
            "layers": tables(("linear_layer", layers_table)),
        },
        "docs/papers/surgery.md": {
            "larger": tables(("real_teachers_turkish", surgery_table)),
            "sizes": surgery_part("sizes", sizes_summary),
            "all_sizes": surgery_part("sizes", sizes_table),
            "trim": surgery_part("trim", trim_table),
            "turkish": surgery_part("turkish", turkish_table),
            "inference": surgery_part("inference", inference_table),
            "tokenizers": tables(("tokenizers", tokenizers_table)),
            "turkish_tokenizers": tables(("tokenizers_turkish", tokenizers_table)),
            "surgery_speed": tables(("surgery_speed", speed_line)),
        },
        "docs/papers/talas.md": {
            "larger": tables(("shootout_sentence_level_mpnet", larger_table)),
            "small": tables(("shootout_sentence_level_small", larger_table)),
            "methods": talas_part(),
            "unseen": tables(("shootout_sentence_level", methods_tables)),
            "unseen_parts": tables(("shootout_sentence_level", ablation_tables)),
            "own_layers": tables(("shootout_sentence_level_cut", methods_tables)),
            "own_layers_parts": tables(("shootout_sentence_level_cut", ablation_tables)),
            "cost": cost_part(),
            "sharpness": tables(("sharpness", sharpness_table)),
        },
        "docs/papers/emo.md": {
            "larger": tables(("larger_teacher", larger_teacher.emo_table)),
            "larger_tasks": tables(("larger_teacher_tasks", larger_teacher.emo_table)),
            "emo": emo_part(),
            "cross": tables(("shootout_cross_tokenizer", emo_tables)),
            "one_input": tables(("shootout_cross_tokenizer", one_input_table)),
            "labels": tables(("shootout_all_labels", emo_tables)),
            "forms": tables(("shootout_forms", forms_tables)),
            "align": tables(("alignment", alignment_tables)),
            "cache": tables(("token_cache", cache_tables)),
            "tokencost": tables(
                ("step_cost_tokens", step_table), ("sinkhorn", transport_line), ("attention_rows", rows_line)
            ),
        },
        "docs/papers/distillmoe.md": {
            "larger": tables(("larger_teacher", larger_teacher.distillmoe_table)),
            "larger_tasks": tables(("larger_teacher_tasks", larger_teacher.distillmoe_table)),
            "experts": tables(("shootout_cross_tokenizer", moe_summary)),
            "moe": tables(("shootout_cross_tokenizer", distillmoe_tables)),
            "gates": tables(("routing", routing_table)),
            "domains": tables(("out_of_domain", domains_table)),
            "moecost": tables(
                ("step_cost_distillmoe", moe_step_table),
                ("aggregation", aggregation_line),
                ("experts_speed", experts_speed_table),
            ),
        },
    }


def marks(name: str) -> tuple[str, str]:
    """The lines around a marked part."""
    return f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"


def tables(*parts: tuple[str, Callable[[Any], str]]) -> str:
    """What is made of each results file that is there; nothing if none is."""
    made = [text for name, make in parts if (found := read(name)) is not None and (text := make(found))]
    return "\n\n".join(made)


def hardware() -> str:
    """Sizes and hours of a corpus, and the minutes of the runs that were measured."""
    training, caching, memory = (read(name) for name in ("training", "caching", "memory"))
    if not training or not caching or not memory:
        return ""
    runs = {"`quickstart`": read("quickstart")}
    for name, record in main_students("8m", "5m", "5m-rank").items():  # the narrow ones had no core of their own
        runs[f"`{'small_' * name[0].isdigit()}english`, {name}"] = record
    return hardware_table(training, caching, memory, {name: record for name, record in runs.items() if record})


def surgery_part(name: str, make: Callable[[Any], str]) -> str:
    """What is made of one part of results/surgery.json."""
    found = (read("surgery") or {}).get(name)
    return make(found) if found else ""


def talas_part() -> str:
    """The sentence-level methods on both students."""
    found = [read(name) for name in ("shootout_sentence_level", "shootout_sentence_level_cut", "step_cost")]
    return talas_summary(*found) if all(found) else ""


def headlines() -> str:
    """The papers' figures beside those here."""
    three_layers = read("english-three-layers")
    return headlines_table(read, three_layers) if three_layers else ""


def emo_part() -> str:
    """The methods across tokenizers, with few labels and with all."""
    found = [read(name) for name in ("shootout_cross_tokenizer", "shootout_all_labels", "step_cost_tokens")]
    return emo_summary(*found) if all(found) else ""


def cost_part() -> str:
    """What a step costs, and Jasper's triplet."""
    cost, triplet = read("step_cost"), read("triplet")
    parts = [f"{next(iter(cost.values()))['machine']}.\n\n{cost_table(cost)}"] if cost else []
    if triplet and "memory_ratio_512_to_naive_64" in triplet:
        parts.append(
            f"Jasper's triplet at batch 512 takes {triplet['memory_ratio_512_to_naive_64']:.2f} times the memory of "
            f"the naive form at batch 64 "
            f"(target: 1); its time grows with the number of pairs to the power {triplet['exponent']:.2f}."
        )
    return "\n\n".join(parts)


def quickstart() -> str:
    """The table that `make quickstart` ends with, and how long it took."""
    record = read("quickstart")
    if record is None:
        return ""
    student, teacher, metrics = record["student"], record["teacher"], record["metrics"]
    return (
        f"What it gave here ({record['training']['minutes']:.1f} minutes of training on two cores; "
        f"{student['parameters'] / 1e6:.1f} M parameters against {teacher['parameters'] / 1e6:.1f} M; validation "
        f"distance "
        f"{metrics['untrained_distance']:.3f} before, {metrics['distance']:.3f} after; scores are nDCG@10 x 100):\n\n"
        + score_table([("", record)])
    )


def rival() -> Untouched:
    """What a user would take in place of a student of a larger teacher."""
    return untouched_from(read("students_against_minilm"))


def fast() -> str:
    """Speed against the peers: the rates of training and caching, and quality against time."""
    training, caching, quality = read("training"), read("caching"), read("time_to_quality")
    if not training or not caching:
        return ""
    text = f"- **Fast on a CPU.** Caching a teacher is {caching['ratio_fp32']:.2f} times as fast as `encode`"
    if is_of_equal_work(training):
        rates = [f"{training[f'ratio_{name}']:.1f} ({name})" for name in ("fp32", "bf16") if name in training]
        text += (
            f", and training {' and '.join(rates)} times as fast as sentence-transformers' trainer, at one learning rate and "
            "to one distance"
        )
    better = first_better(quality["minilm"], "sentence-transformers") if quality else None
    if better is not None:
        own, other = better
        untouched = rival().scores
        text += (
            f". A student of all-mpnet-base-v2 is better {own:.0f} minutes after the first command than the one that "
            f"sentence-transformers' example script makes in {other:.0f}; all-MiniLM-L6-v2, of which both are made, has "
            f"more in retrieval untouched ({untouched['cranfield']:.1f} on Cranfield, {untouched['xquad-en']:.1f} on XQuAD), "
            "but no place in mpnet's index"
        )
    return f"{text} ([speed](docs/speed.md), also on a GPU)."


def is_of_equal_work(training: Mapping[str, Any]) -> bool:
    """Whether both sides of the benchmark had one learning rate: those measured before had two, and are not shown."""
    return all("learning_rate" in training[name] for name in ("fp32", "bf16") if name in training)


def main_students(*names: str) -> dict[str, Any]:
    """The records of the main students, by a name that describes them, or of the variants `names` and the plain cuts.

    A star marks those of CHOSEN_TEXTS.
    """
    records = {f"{name} layers": read(f"english-{name}-layers") for name in ("three", "two")}
    variants = names or (*CHOSEN_TEXTS, "5m-narrow", "2m-narrow")
    for name, record in by_short_name((read("surgery") or {}).get("students", {})).items():
        if name in variants:
            layers = record["student"]["layers"]
            star = "\\*" if name in CHOSEN_TEXTS else ""
            records[f"{name}{star}: {layers} layer{'s' * (layers != 1)}, {record['tokens']:,} tokens"] = record
    present = [(name, record) for name, record in records.items() if record]
    return dict(sorted(present, key=lambda item: -item[1]["student"]["parameters"]))


def students() -> str:
    """What the students keep of the teacher, in both modes."""
    found = main_students()
    return f"{modes_table(found)}\n\n{STAR}" if found else ""


def headline() -> str:
    """What a small student keeps, before and after training, and what made it; then one of a larger teacher.

    Its texts were not chosen to resemble a test.
    """
    record = by_short_name((read("surgery") or {}).get("students", {})).get("5m-narrow")
    if not record:
        return ""
    shares, speed, training = retained(record), record["inference"], record["training"]
    before, after = shares["untrained"], shares["student"]
    faster = speed["student_texts_per_second"] / speed["teacher_texts_per_second"]
    return (
        f"For example, a student with {record['student']['parameters'] / 1e6:.1f} of the "
        f"{record['teacher']['parameters'] / 1e6:.1f} million parameters of {record['teacher']['name']} keeps "
        f"{after[RETRIEVAL]:.1f}% of its retrieval\n(Cranfield; {before[RETRIEVAL]:.1f}% before training) and "
        f"{after[AVERAGE]:.1f}% of its average over eight tasks ({before[AVERAGE]:.1f}% before), and embeds "
        f"{faster:.1f} times as many texts\na second on a CPU. {PASSES[training['epochs']]} over "
        f"{record['data']['train_rows']:,} open English texts made it, in {training['minutes']:.0f} minutes of training on a "
        f"machine with two CPU cores\n([results](docs/results.md)).{of_a_larger_teacher()}"
    )


def of_a_larger_teacher() -> str:
    """What the smallest student keeps of a teacher of another family, beside its rival, in two more sentences."""
    rows = {row["name"]: row for row in (read("result_students") or {"rows": []})["rows"]}
    row = rows.get("english-5m")
    if row is None:
        return ""
    scores = row["scores"]

    def shares(found: Mapping[str, float]) -> str:
        cranfield, xquad = (100 * found[task] / scores["teacher"][task] for task in ("cranfield", "xquad-en"))
        return f"{cranfield:.1f}% on Cranfield and {xquad:.1f}% on XQuAD"

    return (
        f"\n\nOf all-mpnet-base-v2 ({row['teacher_parameters'] / 1e6:.0f} million), one of {row['parameters'] / 1e6:.1f} million "
        f"keeps {shares(scores['student'])} ({shares(scores['untrained'])} before\ntraining), and "
        f"{kept(row, 'student', AVERAGE)}% of nine tasks ({kept(row, 'untrained', AVERAGE)}%). If you can embed your documents "
        f"again, compare it with all-MiniLM-L6-v2 as it is:\n22.7 million parameters, {shares(rival().scores)}."
    )


def results() -> str:
    """One table for both students."""
    records = [(name, read(f"english-{name}-layers")) for name in ("three", "two")]
    found = [(f"{name} layers: ", record) for name, record in records if record]
    if not found:
        return ""
    rows = []
    for name, record in found:
        cells = [
            f"{name}layers {record['student']['kept_layers']}",
            f"{record['student']['parameters'] / 1e6:.1f} M",
            f"{record['training']['texts']:,}",
            f"{record['training']['minutes']:.0f}",
            f"{record['metrics']['untrained_distance']:.3f}",
            f"{record['metrics']['distance']:.3f}",
        ]
        rows.append(cells)
    head = ["student", "parameters", "texts", "minutes", "distance before", "distance after"]
    return markdown_table(head, rows) + "\n\n" + score_table(found)


def speed() -> str:
    """Ratios against the peers, with the command of each."""
    lines = []
    training, caching, memory, kills = (read(name) for name in ("training", "caching", "memory", "kills"))
    if training and is_of_equal_work(training):
        lines += training_rows(training)
    if caching:
        lines += caching_rows(caching)
    if memory:
        sizes, growth = memory["peak_mb"], memory["growth"]
        first, last = next(iter(sizes)), list(sizes)[-1]
        for stage in ("caching", "training"):
            cells = [
                f"own memory while {stage}, tiny random model, MB, {int(last):,} rows against {int(first):,}",
                f"{sizes[last][stage]:.0f}",
                f"{sizes[first][stage]:.0f}",
                f"{growth[stage]:.2f}",
                "`python -m benchmarks.memory --json FILE`",
            ]
            lines.append(cells)
    text = markdown_table(["what", "distilvec", "peer", "ratio", "command"], lines, columns="lrrrl")
    if training and is_of_equal_work(training):
        text += f"\n\n{training_setting(training)}"
    if search := read("search"):
        parts = search["precisions"]
        text += (
            f"\n\nThe {search['count']} best of {search['documents']:,} documents ({search['width']} wide) for "
            f"{search['queries']:,} queries: "
            + ", ".join(
                f"{name} {part['seconds']:.0f} s with {part['peak_mb'] / 1000:.1f} GB at the peak"
                for name, part in parts.items()
            )
        )
        text += " (`benchmarks/search.py` of commit 0e823248)."
    if kills:
        counts = ", ".join(f"{KILLED.get(part, part)} {found['kills']}" for part, found in kills.items())
        same = all(found["same"] for found in kills.values())
        text += (
            f"\n\nKilled with `kill -9` while working ({counts} times), everything ended with "
            f"{'the same' if same else 'OTHER'} bytes and "
            "weights as work that nobody killed: `python -m benchmarks.kills --json FILE`."
        )
    if faults := read("faults"):
        counts, flips = faults["table"]["counts"], faults["flips"]
        text += (
            f"\n\nOf {sum(counts.values())} faults and attacks (`tests/faults`) {counts['right']} end as they should: "
            f"{counts['lost']} lose a file, "
            f"{counts['silent']} pass in silence, {counts['traceback']} show a traceback; {flips['noticed']} of "
            f"{flips['flips']} flipped bits are "
            "noticed before a weight changes: `python -m benchmarks.faults --json FILE`."
        )
    return text if lines or kills else ""


def training_rows(training: dict[str, Any]) -> list[list[str]]:
    """Training in each precision, by the clock and by the processor's time."""
    rows = []
    command = "`python -m benchmarks.training --json FILE`"
    for precision in ("fp32", "bf16"):
        part = training.get(precision)
        if part is None:
            continue
        rates, distances, texts = (
            part[name] for name in ("texts_per_second", "held_out_distance", "texts_to_the_distance")
        )
        title = (
            f"training, {precision}, texts/s; the ratio is of the time to one distance ({distances['ours']:.3f} after "
            f"{texts['ours']:,} texts, peer {distances['peer']:.3f} after {texts['peer']:,}; both at a rate of "
            f"{part['learning_rate']:g}; {100 * part['share_of_matmul_rate']:.0f}% of the measured matrix-product rate)"
        )
        ratio = f"**{training[f'ratio_{precision}']:.1f}**"
        rows.append([title, f"{rates['ours']:.0f}", f"{rates['peer']:.0f}", ratio, command])
        milliseconds = {side: 1000 * seconds for side, seconds in part["processor_seconds_a_text"].items()}
        ratio = f"**{training[f'processor_ratio_{precision}']:.1f}**"
        cells = ["the same, milliseconds of the processor a text", f"{milliseconds['ours']:.1f}"]
        rows.append([*cells, f"{milliseconds['peer']:.1f}", ratio, command])
    return rows


def training_setting(training: dict[str, Any]) -> str:
    """Where and how training was measured."""
    part = training["fp32"]
    tried = ", ".join(f"{rate} ({distance:.3f})" for rate, distance in part["peer_distance_by_rate"].items())
    note = busy_note(part["load_before"])
    return (
        f"Training: {part['machine']}, {part['cores']} cores, load {part['load_before']:g} before the start"
        f"{f' ({note})' if note else ''}; rates tried for the peer, with its distance after {part['texts_a_round']:,} texts: {tried}."
    )


def caching_rows(caching: dict[str, Any]) -> list[list[str]]:
    """Teacher caching in both precisions."""
    rate, cosine = caching["texts_per_second"], caching["minimum_cosine"]
    command = "`python -m benchmarks.caching --json FILE`"
    return [
        [
            f"teacher caching, fp32, texts/s (minimum cosine {cosine['ours_fp32']:.7f})",
            f"{rate['ours_fp32']:.0f}",
            f"{rate['peer_fp32']:.0f}",
            f"**{caching['ratio_fp32']:.2f}**",
            command,
        ],
        [
            f"teacher caching, bf16 against the peer's fp32 (minimum cosine {cosine['ours_bf16']:.5f})",
            f"{rate['ours_bf16']:.0f}",
            f"{rate['peer_fp32']:.0f}",
            f"**{caching['ratio_bf16']:.2f}**",
            command,
        ],
        [
            f"teacher caching, bf16 against bf16 (the peer's minimum cosine {cosine['peer_bf16']:.5f})",
            f"{rate['ours_bf16']:.0f}",
            f"{rate['peer_bf16']:.0f}",
            f"**{caching['ratio_bf16_vs_bf16']:.2f}**",
            command,
        ],
    ]


def read(name: str) -> Any:
    """results/NAME.json, or None."""
    path = ROOT / "results" / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


if __name__ == "__main__":
    main()
