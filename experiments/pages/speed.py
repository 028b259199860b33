"""docs/speed.md: rates, memory, kills and faults, against the peers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.gpu import gpu_table
from benchmarks.int8 import PEER
from benchmarks.markdown import markdown_table
from benchmarks.static_training import static_table
from benchmarks.stopwatch import busy_note
from experiments.pages.parts import Parts, read, rival, tables
from experiments.quality_over_time import quality_table

INT8_TIMES = {"all-MiniLM-L6-v2": 1.5, "a student of 5M, three layers": 1.35}  # times onnx-int8's speed, the targets
KILLED = {"pushing": "pushing to an address", "table": "a table that changed in between"}  # parts of kills.json


def parts() -> Parts:
    """The marked parts of docs/speed.md."""
    return {
        "docs/speed.md": {
            "speed": speed(),
            "gpu": tables(("gpu", gpu_table)),
            "faster": faster_table(),
            "static": tables(("static_training", static_table)),
            "quality": tables(("time_to_quality", partial(quality_table, untouched=rival()))),
        }
    }


def speed() -> str:
    """Ratios against the peers, with the command of each; then search, kills and faults in sentences."""
    training, caching, memory = read("training"), read("caching"), read("memory")
    has_training = training is not None and is_of_equal_work(training)
    rows = []
    if has_training:
        rows += training_rows(training)
    if caching:
        rows += caching_rows(caching)
    if memory:
        rows += memory_rows(memory)
    commands = "Commands: `python -m benchmarks.training --json FILE`, and the same with `caching` and `memory`."
    paragraphs = [markdown_table(["what", "distilvec", "peer", "ratio"], rows), commands]
    if has_training:
        paragraphs.append(training_setting(training))
    sentences = tables(("search", search_sentence), ("kills", kills_sentence), ("faults", faults_sentence))
    return "\n\n".join([*paragraphs, sentences])


def faster_table() -> str:
    """What was made faster or smaller, before and after, in the unit of each row; beside its target and its peer."""
    rows = []
    if commands := read("before_after"):
        for name, part in commands["rows"].items():
            values = [part[f"processor_seconds_{when}"] for when in ("before", "after")]
            rows.append(beside(f"{name}, a whole command, seconds of the processor", values, "before_after"))
    if totals := read("totals"):
        for name, part in totals["rows"].items():
            values = [part["seconds"][when]["total"] for when in ("before", "after")]
            what = f"{name} → 5M, from the command to the page, seconds"
            rows.append(beside(what, values, "totals", target=0.65 * values[0]))
    if choices := read("layer_choice"):
        for name, part in choices["rows"].items():
            values = [part[way]["processor_seconds"] for way in ("alone", "glance")]
            rows.append(beside(f"choice of layers ({name}), seconds of the processor", values, "layer_choice"))
    if scale := read("scale"):
        values = [scale[when]["memory_bytes_a_row"]["vectors"] for when in ("before", "slopes")]
        rows.append(beside("memory of a text while a cache is filled, bytes", values, "scale", target=24))
    if int8 := read("int8"):
        for name, forms in int8["models"].items():
            values = [forms[form]["milliseconds"]["1x32"] for form in ("onnx-int8", "openvino-int8")]
            what = f"int8 of {name}, a text of 32 tokens, milliseconds"
            peer = forms[PEER]["milliseconds"]["1x32"] if PEER in forms else None
            rows.append(beside(what, values, "int8", target=values[0] / INT8_TIMES[name], peer=peer))
    if step := read("bf16_step"):
        values = [step["milliseconds"][way] for way in ("autocast", "no casts")]
        what = "a bf16 step without casts (not built), milliseconds"
        rows.append(beside(what, values, "bf16_step", target=values[0] / 1.5))
    head = ["what", "before", "after", "after / before", "target", "peer", "`python -m benchmarks.…`"]
    return markdown_table(head, rows, columns="lrrrrrl")


def beside(
    what: str, values: Sequence[float], command: str, target: float | None = None, peer: float | None = None
) -> list[str]:
    """A row of `faster_table`: before and after."""
    before, after = values
    cells = ["" if value is None else rounded(value) for value in (before, after, target, peer)]
    return [what, *cells[:2], f"{after / before:.2f}", *cells[2:], f"`{command}`"]


def rounded(value: float) -> str:
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def is_of_equal_work(training: Mapping[str, Any]) -> bool:
    """Whether both sides of the benchmark had one learning rate: those measured before had two, and are not shown."""
    return all("learning_rate" in training[name] for name in ("fp32", "bf16") if name in training)


def training_rows(training: dict[str, Any]) -> list[list[str]]:
    """Training in each precision, by the clock and by the processor's time."""
    rows = []
    for precision in ("fp32", "bf16"):
        part = training.get(precision)
        if part is None:
            continue
        rates = part["texts_per_second"]
        ratio = f"**{training[f'ratio_{precision}']:.1f}**"
        title = f"training, {precision}, texts/s (ratio: time to the same distance)"
        rows.append([title, f"{rates['ours']:.0f}", f"{rates['peer']:.0f}", ratio])
        milliseconds = {side: 1000 * seconds for side, seconds in part["processor_seconds_a_text"].items()}
        ratio = f"**{training[f'processor_ratio_{precision}']:.1f}**"
        cells = ["the same, milliseconds of the processor a text", f"{milliseconds['ours']:.1f}"]
        rows.append([*cells, f"{milliseconds['peer']:.1f}", ratio])
    return rows


def training_setting(training: dict[str, Any]) -> str:
    """Where and how training was measured."""
    part = training["fp32"]
    tried = ", ".join(f"{rate} ({distance:.3f})" for rate, distance in part["peer_distance_by_rate"].items())
    note = busy_note(part["load_before"])
    reached = []
    for precision in (name for name in ("fp32", "bf16") if name in training):
        distances, texts = training[precision]["held_out_distance"], training[precision]["texts_to_the_distance"]
        reached.append(
            f"in {precision} {distances['ours']:.3f} after {texts['ours']:,} texts, the peer {distances['peer']:.3f} "
            f"after {texts['peer']:,}, at {100 * training[precision]['share_of_matmul_rate']:.0f}% of the measured "
            "matrix-product rate"
        )
    return (
        f"Training: {part['machine']}, {part['cores']} cores, load {part['load_before']:g} before the start"
        f"{f' ({note})' if note else ''}. Distance to the teacher: {'; '.join(reached)}. Both sides trained at a rate "
        f"of {part['learning_rate']:g}; the peer's distance after {part['texts_a_round']:,} texts at each rate tried: "
        f"{tried}."
    )


def caching_rows(caching: dict[str, Any]) -> list[list[str]]:
    """Teacher caching in both precisions."""
    rate, cosine = caching["texts_per_second"], caching["minimum_cosine"]
    return [
        [
            f"teacher caching, fp32, texts/s (minimum cosine {cosine['ours_fp32']:.7f})",
            f"{rate['ours_fp32']:.0f}",
            f"{rate['peer_fp32']:.0f}",
            f"**{caching['ratio_fp32']:.2f}**",
        ],
        [
            f"teacher caching, bf16 against the peer's fp32 (minimum cosine {cosine['ours_bf16']:.5f})",
            f"{rate['ours_bf16']:.0f}",
            f"{rate['peer_fp32']:.0f}",
            f"**{caching['ratio_bf16']:.2f}**",
        ],
        [
            f"teacher caching, bf16 against bf16 (the peer's minimum cosine {cosine['peer_bf16']:.5f})",
            f"{rate['ours_bf16']:.0f}",
            f"{rate['peer_bf16']:.0f}",
            f"**{caching['ratio_bf16_vs_bf16']:.2f}**",
        ],
    ]


def memory_rows(memory: Mapping[str, Any]) -> list[list[str]]:
    """The process's own memory while caching and training, with many rows against few."""
    sizes = memory["peak_mb"]
    first, last = next(iter(sizes)), list(sizes)[-1]
    rows = []
    for stage in ("caching", "training"):
        cells = [
            f"own memory while {stage}, tiny random model, MB, {int(last):,} rows against {int(first):,}",
            f"{sizes[last][stage]:.0f}",
            f"{sizes[first][stage]:.0f}",
            f"{memory['growth'][stage]:.2f}",
        ]
        rows.append(cells)
    return rows


def search_sentence(search: Mapping[str, Any]) -> str:
    """How long a search takes and how much memory, by precision."""
    precisions = [
        f"{name} {part['seconds']:.0f} s with {part['peak_mb'] / 1000:.1f} GB at the peak"
        for name, part in search["precisions"].items()
    ]
    return (
        f"The {search['count']} best of {search['documents']:,} documents ({search['width']} wide) for "
        f"{search['queries']:,} queries: {', '.join(precisions)} (`benchmarks/search.py` of commit 0e823248)."
    )


def kills_sentence(kills: Mapping[str, Any]) -> str:
    """How often work was killed, and whether it ended as work that nobody killed."""
    counts = ", ".join(f"{KILLED.get(name, name)} {part['kills']}" for name, part in kills.items())
    same = "the same" if all(part["same"] for part in kills.values()) else "OTHER"
    return (
        f"Killed with `kill -9` while working ({counts} times), everything ended with {same} bytes and "
        "weights as undisturbed work (`python -m benchmarks.kills --json FILE`)."
    )


def faults_sentence(faults: Mapping[str, Any]) -> str:
    """How faults and attacks end, and how many flipped bits are noticed."""
    counts, flips = faults["table"]["counts"], faults["flips"]
    return (
        f"{counts['right']} of {sum(counts.values())} faults and attacks (`tests/faults`) end as they should: "
        f"{counts['lost']} lose a file, {counts['silent']} pass in silence, {counts['traceback']} show a traceback. "
        f"{flips['noticed']} of {flips['flips']} flipped bits are noticed before a weight changes "
        "(`python -m benchmarks.faults --json FILE`)."
    )
