"""The pages that say how to do something: students at work, exported, in the browser, served, against an index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.exports import exports_table
from benchmarks.int8 import int8_table as forms_table
from benchmarks.layer_choice import choice_table
from benchmarks.markdown import markdown_table
from benchmarks.ray_hosts import hosts_sentence
from benchmarks.reading import reading_table
from benchmarks.teacher_families import families_table
from experiments.black_box import table as ways_table
from experiments.built_in_prompt import table as built_in_table
from experiments.clicks import clicks_table, tables_beside
from experiments.clients import clients_table
from experiments.fitted import table as fitted_table
from experiments.held_out_origins import origins_table
from experiments.intents import intents_table
from experiments.interval_coverage import coverage_table
from experiments.levers import levers_table
from experiments.mixed_index import table as mixed_table
from experiments.new_texts import table as new_texts_table
from experiments.pages.parts import Parts, read, rival, tables
from experiments.rates import table as rates_table
from experiments.real_teachers import TURKISH
from experiments.real_teachers import table as teachers_table
from experiments.score_table import score_table
from experiments.switch import table as switch_table
from experiments.ten_languages import table as languages_table
from experiments.texts_needed import table as needed_table
from experiments.unseen_tokens import table as unseen_table

PARTS = {
    "model": "`model/`: `onnx/model_quantized.onnx` and the tokenizer",
    "runtime": "`runtime/`: transformers.js and onnxruntime-web, its WebAssembly in gzip",
    "documents": "`documents.json`, `vectors.bin`: first 300 characters, int8 vectors",
    "page": "the page",
    "all": "**all**",
}
MAKERS = {"mpnet": "all-mpnet-base-v2 (768 numbers each)", "e5": "multilingual-e5-small (384 numbers each)"}


def parts() -> Parts:
    """The marked parts of the guides."""
    return {
        "docs/tutorial.md": {"quickstart": quickstart()},
        "docs/guide.md": {
            "built_in_prompt": tables(("built_in_prompt", built_in_table)),
            "layer_choice": tables(("layer_choice", choice_table)),
            "rates": tables(("rates", rates_table)),
        },
        "docs/reproduce.md": {"origins": tables(("held_out_origins", origins_table))},
        "docs/levers.md": {"levers": tables(("levers", levers_table))},
        "docs/language.md": {
            "turkish": tables(("real_teachers_turkish", partial(teachers_table, names=TURKISH))),
            "languages": tables(("ten_languages", languages_table)),
            "unseen": tables(("unseen_tokens", unseen_table)),
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
            "int8_forms": tables(("int8", forms_table)),
            "int8": tables(("int8_scores", int8_table)),
        },
        "docs/teachers.md": {"families": tables(("teacher_families", families_table))},
        "docs/cluster.md": {
            "scale": tables(("scale", scale_table)),
            "queue": tables(("shard_queue", queue_table)),
            "hosts": tables(("ray_hosts", hosts_sentence)),
        },
        "docs/switch.md": {
            "switch": tables(("switch", switch_tables)),
            "fitted": tables(("fitted", fitted_table)),
            "databases": tables(("index_databases", databases_table)),
            "mixed": tables(("mixed_index", mixed_table)),
            "clicked": tables(("clicks", clicked_tables)),
            "needed": tables(("texts_needed", needed_table)),
        },
        "docs/index_formats.md": {"reading": tables(("reading", reading_table))},
        "docs/methods/clicks.md": {"clicks": tables(("clicks", clicks_table))},
        "docs/task_student.md": {
            "classify": tables(("classify", classify_table)),
            "intents": tables(("intents", intents_table)),
        },
        "docs/serve.md": {"serve": tables(("serve", serve_line))},
    }


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


def switch_tables(found: Mapping[str, Any]) -> str:
    """The picture, and a table for each model that made the index."""
    parts = ["![What each way keeps of the old model's search](figures/switch.svg)"]
    for maker, result in found.items():
        parts.append(f"{result['documents']:,} documents by {MAKERS[maker]}:")
        parts.append(switch_table(result["rows"]))
    return "\n\n".join(parts)


def clicked_tables(found: Mapping[str, Any]) -> str:
    """For each model that made an index, a student before and behind its clicks, beside what needs no training."""
    parts = []
    for maker, table in tables_beside(found).items():
        parts.append(f"The index of {MAKERS[maker]}:")
        parts.append(table)
    return "\n\n".join(parts)


def browser_table(found: Mapping[str, Any]) -> str:
    """The page's weight by part, and its times."""
    student = f"{found['name']} ({found['parameters'] / 1e6:.1f} M)"
    title = f"{student}, {found['documents']:,} documents of {found['dim']} dimensions"
    weights = [[words, f"{found['megabytes'][part]:.2f} MB"] for part, words in PARTS.items()]
    query, search, load = *(found["milliseconds"][name] for name in ("query", "search")), found["load_seconds"]
    return markdown_table(["part", title], weights) + (
        f"\n\nHeadless Chromium {found['chromium']}: {query['median']:.1f} ms a query (median of {found['queries']}; "
        f"95% below {query['p95']:.1f} ms), of which {search['median']:.1f} ms are the search; "
        f"{load:.1f} s to load (`benchmarks/browser.py` of commit 0e823248; {found['machine']})."
    )


def databases_table(found: Sequence[Mapping[str, Any]]) -> str:
    """Expected and measured overlap@10, database by database."""

    def cell(interval: Sequence[float]) -> str:
        return "{:.3f} [{:.3f}, {:.3f}]".format(*interval)

    head = ["database", "vectors", "expected overlap", "measured on 500 new texts"]
    rows = [[row["index"], f"{row['rows']:,}", cell(row["expected"]), cell(row["measured"])] for row in found]
    agreeing = sum(row["agrees"] for row in found)
    return markdown_table(head, rows) + f"\n\nExpected and measured agree in {agreeing} of {len(found)} databases."


def serve_line(found: Mapping[str, Any]) -> str:
    """Throughput, latency and memory of the server under load."""
    server, loop = found["server"], found["encode_loop"]
    memory = ", ".join(f"{value:.0f}" for value in server["megabytes_after_each_quarter"])
    return (
        f"`distilvec serve` with {found['model']} answered {server['answered']:,} of {found['requests']:,} requests at "
        f"concurrency {found['concurrency']}: {server['texts_per_second']:.0f} texts/s, median "
        f"{server['p50_ms']:.0f} ms, 99% below {server['p99_ms']:.0f} ms; a loop over `encode` gives "
        f"{loop['texts_per_second']:.0f} texts/s at {loop['p50_ms']:.0f} ms. Its own memory after "
        f"each quarter: {memory} MB. "
        f"{server['refused_with_a_message']} malformed or oversized requests were refused with a message "
        f"(`python -m benchmarks.serve --json FILE`; {found['machine']}).{peer_line(found)}"
    )


def peer_line(found: Mapping[str, Any]) -> str:
    """Our server and another one, asked in turn."""
    if (peer := found.get("peer")) is None:
        return ""
    ours, theirs = (
        f"{side['texts_per_second']:.0f} texts/s, median {side['p50_ms']:.0f} ms, 99% below {side['p99_ms']:.0f} ms"
        for side in (peer["ours"], peer["theirs"])
    )
    return f" In turn with {peer['command']} on the same texts (`--peer`): {ours}; {peer['command']}: {theirs}."


def scale_table(found: Mapping[str, Any]) -> str:
    """Seconds, memory and disk of every stage, one line per size."""
    head = ["texts", "corpus, duplicates", "tokens", "vectors of 16 dimensions"]
    head += ["memory, corpus", "memory, vectors", "disk", "while it is built"]
    rows = []
    for size in found["sizes"].values():
        stages = size["stages"]
        seconds = [
            f"{stages[name]['processor_seconds']:,.0f} s" if name in stages else ""
            for name in ("corpus", "tokens", "vectors")
        ]
        memory = [stages[name]["peak_mb"] for name in ("corpus", "vectors")]
        kept = sum(size["disk_mb"].values())
        built = kept - size["disk_mb"]["corpus"] + size["peak_disk_mb"]
        megabytes = [f"{figure:,.0f} MB" for figure in (*memory, kept, built)]
        rows.append([f"{size['rows']:,}", *seconds, *megabytes])
    bases = [stage["base_mb"] for size in found["sizes"].values() for stage in size["stages"].values()]
    table = markdown_table(head, rows, columns="r" * len(head))
    about = f"Seconds are of one processor, memory is the process's own; {max(bases):,.0f} MB of it are the libraries."
    return f"{table}\n\n{about}"


def queue_table(found: Mapping[str, Any]) -> str:
    """The simulated queue, one line per number of workers."""
    head = ["workers", "hours", "efficiency", "failures", "work lost", "hours of the writer alone"]
    rows = []
    for run in found["runs"]:
        cells = [
            str(run["workers"]),
            str(run["hours"]),
            f"{100 * run['efficiency']:.0f}%",
            str(run["failures"]),
            f"{100 * run['repeated']:.3f}%",
            str(run["writer_hours"]),
        ]
        rows.append(cells)
    return markdown_table(head, rows, columns="r" * len(head))


def int8_table(found: Mapping[str, Any]) -> str:
    """Scores of int8 files on every task of the suite, and what they keep of the teacher's."""
    head = ["int8 file", "average", "% of the teacher", "asymmetric, %", "retrieval, %", "retrieval, asymmetric, %"]
    rows = []
    for name, scores in found.items():
        averages = scores["averages"]
        kept = [
            f"{100 * averages[column][part] / averages['teacher'][part]:.1f}"
            for part in ("all", "retrieval")
            for column in ("student", "asymmetric")
        ]
        rows.append([name, f"{averages['student']['all']:.2f}", *kept])
    return markdown_table(head, rows)


def classify_table(report: Mapping[str, Any]) -> str:
    """`classify` beside setfit: accuracy on the test rows, parameters, and minutes of the command, job by job."""
    lines = []
    for job, sides in report.items():
        if job == "machine":
            continue
        rows = []
        ours, peer = sides.get("distilvec"), sides.get("setfit")
        if ours is not None:
            low, high = ours["interval"]
            teacher = [f"{ours['teacher_accuracy']:.1f}", f"{ours['teacher_parameters'] / 1e6:.1f} M", ""]
            rows.append(["`classify`, its teacher", *teacher])
            accuracy = f"{ours['accuracy']:.1f} [{low:.1f}, {high:.1f}]"
            student = [accuracy, f"{ours['parameters'] / 1e6:.1f} M", f"{ours['minutes']:.1f}"]
            rows.append(["`classify`", *student])
        if peer is not None:
            figures = [f"{peer['accuracy']:.1f}", f"{peer['parameters'] / 1e6:.1f} M", f"{peer['minutes']:.1f}"]
            rows.append([f"setfit, {2 * peer['pairs']} pairs a text", *figures])
        title = job
        for row in rows:
            lines.append([title, *row])
            title = ""  # a job's name stands in its first line alone
    head = ["training rows", "model", "accuracy", "parameters", "minutes"]
    return markdown_table(head, lines, columns="llrrr")
