"""Distil a causal language model: `python -m experiments.causal RECIPE`, with the options of `distilvec run`."""

from __future__ import annotations

import sys

import typer

from distilvec.cli.boundary import run_app
from distilvec.cli.options import Out, Overrides, RecipeFile, Restart, Variant, combined
from distilvec.cli.terminal import show_table
from distilvec.config.builtin import recipe_file
from distilvec.core.processes import exit_process
from experiments.causal.run import run_causal
from experiments.causal.schema import load_causal

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def causal(
    recipe: RecipeFile,
    overrides: Overrides = None,
    variant: Variant = None,
    out: Out = None,
    restart: Restart = False,
) -> None:
    """Distil a causal language model across tokenizers (DistillMoE on instructions), and score its answers by ROUGE-L.

    method.name may also be uld, mined, multilevel_ot or dskd, on the predictions of the response's tokens. Without a
    teacher (teacher=null) the student learns from the responses alone. Run again to resume.
    """
    loaded = load_causal(recipe_file(recipe), combined(variant), overrides)
    folder = out or loaded.output / loaded.name
    report = run_causal(loaded, folder, restart)
    if report is None:  # not the main process
        return
    rows = [["validation cross-entropy", f"{report['held_out']['cross_entropy']:.4f}"]]
    rows += [[f"ROUGE-L, {name}", f"{test['rouge_l']:.2f}"] for name, test in report["tests"].items()]
    show_table(["", loaded.name], [*rows, ["student", str(folder / "student")]])


if __name__ == "__main__":
    status = run_app(app, sys.argv[1:])
    exit_process(status)  # of a process group: the others must not wait for this one
    sys.exit(status)
