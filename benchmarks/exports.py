"""Exported files against PyTorch in fp32, form by form: cosines, ranking, size and latency of one text.

    python -m benchmarks.exports MODEL [MODEL ...] --json results/exports.json [--forms onnx-int8 ...]

Every form is written by `distilvec export` and compared on the first task of --suite (Cranfield), out of tolerance or
not. Latencies of PyTorch and the file alternate from call to call; nothing else may run. Rows of other models in FILE
stay.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.markdown import markdown_table
from benchmarks.results import earlier_results
from benchmarks.stopwatch import machine
from distilvec.core.files import write_json
from distilvec.core.model_name import BUILTIN
from distilvec.models.load import resolve_model
from distilvec.verbs.export.export import FORMS, export_model

SUITE = Path(__file__).parents[1] / "recipes" / "suites" / "cranfield.yaml"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=[BUILTIN], help="NAME=FOLDER or a model")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--forms", nargs="+", default=[*FORMS], choices=[*FORMS])
    parser.add_argument("--suite", type=Path, default=SUITE)
    arguments = parser.parse_args()
    result = earlier_results(arguments.json, {"models": {}})
    result["machine"] = machine()
    for given in arguments.models:
        name, _, folder = given.rpartition("=")
        with tempfile.TemporaryDirectory() as scratch:
            rows = {
                form: export_model(
                    resolve_model(folder), form, Path(scratch) / FORMS[form].file, suite=arguments.suite, force=True
                ).forms[form]
                for form in arguments.forms
            }
        result["models"][name or Path(folder).name] = rows
        write_json(arguments.json, result)
    print(exports_table(result))


def exports_table(result: Mapping[str, Any]) -> str:
    """One line per model and form; ratios are those of PyTorch's median latency to the file's."""
    head = [
        "model", "form", "MB", "mean cosine", "overlap@10", "nDCG@10 (PyTorch)", "ms, PyTorch", "ms", "ratio",
    ]  # fmt: skip
    lines = []
    for model, rows in result["models"].items():
        for form, row in rows.items():
            ratio = row["pytorch_latency_ms"] / row["latency_ms"]
            cells = [
                model,
                f"`{form}`",
                f"{row['megabytes']:.1f}",
                f"{row['mean_cosine']:.4f}",
                f"{row['overlap']:.3f}",
                f"{row['ndcg']:.2f} ({row['pytorch_ndcg']:.2f})",
                f"{row['pytorch_latency_ms']:.2f}",
                f"{row['latency_ms']:.2f}",
                f"{ratio:.2f}",
            ]
            lines.append(cells)
    return markdown_table(head, lines, columns="ll" + "r" * 7)


if __name__ == "__main__":
    main()
