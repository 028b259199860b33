"""The verb `distilvec causal`."""

from __future__ import annotations

from distilvec.cli.options import Out, Overrides, RecipeFile, Restart, Variant, combined


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
    from distilvec.cli.terminal import show_table
    from distilvec.config.builtin import recipe_file
    from distilvec.experimental.causal.run import run_causal
    from distilvec.experimental.causal.schema import load_causal

    loaded = load_causal(recipe_file(recipe), combined(variant), overrides)
    folder = out or loaded.output / loaded.name
    report = run_causal(loaded, folder, restart)
    if report is not None:
        rows = [["validation cross-entropy", f"{report['held_out']['cross_entropy']:.4f}"]]
        rows += [[f"ROUGE-L, {name}", f"{test['rouge_l']:.2f}"] for name, test in report["tests"].items()]
        show_table(["", loaded.name], [*rows, ["student", str(folder / "student")]])
