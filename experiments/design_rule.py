"""The rule of students/design.py against three other splits of the same number of parameters.

    python -m experiments.design_rule TEACHER --size 5M --split rule --seed 0 --steps 600 --out runs/design-rule \
        --cache FOLDER --json results/design_rule.json

TEACHER is a folder or id. `--texts` are the 30,000 English ones of recipes/sweeps/real_teachers.yaml (for MiniLM and
mpnet), the 12,000 Turkish ones of real_teachers_turkish.yaml, or the 20,000 of experiments/ten_languages.py (for e5).
Each rival turns one claim of the rule around. They were written before any of them was trained:

    rival1    more layers, fewer tokens: half as many layers again, rows as long as the rule's for the tokens that fit
    rival2    all neurons, fewer layers: as many whole layers as the rule's layers have parameters, nearest number
    rival3    more layers, shorter rows: half as many layers again, every token at a lower rank. Where rows cannot be
              shorter, fewer neurons and more tokens: half of the rule's neurons, as many tokens as fit
    rival4    no tokens beside those that the texts use, where the rule has room for others
    rival5    every token in the letters of the texts, at a lower rank

The last two were written later than the others, with the part of the rule that they turn around. Rows of the splits
"half" and "eighth" are of rules before these measurements: half of the parameters in the tables; an eighth of the
neurons at least. Where the repaired rule has a split that was trained under another name, the row has the name "rule"
now.

`--split layers7` is neither: 7 layers, half of the neurons, every token and rows as long as fit; `layers7-tokens9000`
has so many tokens. Such splits show where the best ones lie.

The share of the teacher's ten nearest texts that a student finds (overlap@10) is measured on held-out texts. Each call
trains one student and adds its row to the file, or goes on with one that was stopped; a row that is there is not
trained again.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import distilvec
from benchmarks.markdown import markdown_table
from benchmarks.results import earlier_results
from distilvec.config import recipe as recipes
from distilvec.config.builtin import recipe_folder
from distilvec.core.errors import DistilvecError
from distilvec.core.files import write_json
from distilvec.core.model_name import ModelName
from distilvec.models.load import load_tokenizer
from distilvec.pipeline.finished_run import FinishedRun
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.texts import texts_by_language
from distilvec.students.design import (
    RANK_STEP,
    ModelShape,
    Split,
    TokensUsed,
    available_tokens,
    count_parts,
    describe_split,
    design_student,
    fill_table,
    parse_size,
    part_of_neurons,
    with_tokens,
)
from distilvec.students.shape import count_tokens, read_shape
from experiments.ten_languages import write_texts

SWEEPS = {"english": "real_teachers.yaml", "turkish": "real_teachers_turkish.yaml"}
RUN = ("teacher", "student", "texts", "size", "split", "seed", "steps", "limit")  # keys of a row that name its run


def more_layers_fewer_tokens(shape: ModelShape, parameters: int, tokens: TokensUsed, rule: Split) -> Split | None:
    """Turn around "every token that the texts use before more layers"."""
    return with_tokens(shape, parameters, tokens, replace(rule, layers=_half_again(shape, rule)))


def all_neurons_fewer_layers(shape: ModelShape, parameters: int, tokens: TokensUsed, rule: Split) -> Split | None:
    """Turn around "half of the neurons"."""
    whole_layers = round(count_parts(shape, rule).layers / shape.layer_parameters)
    return fill_table(shape, parameters, tokens, max(1, whole_layers), shape.neurons)


def shorter_rows_or_fewer_neurons(shape: ModelShape, parameters: int, tokens: TokensUsed, rule: Split) -> Split | None:
    """Turn around "half of the parameters in the table": less, and more where rows cannot be shorter."""
    if shape.no_factorizing:
        return fill_table(shape, parameters, tokens, rule.layers, rule.neurons // 2)
    return fill_table(shape, parameters, tokens, _half_again(shape, rule), rule.neurons, least_rank=RANK_STEP)


def tokens_used_alone(shape: ModelShape, parameters: int, tokens: TokensUsed, rule: Split) -> Split:
    """Turn around "further tokens of the same letters, for words of new texts"."""
    return replace(rule, tokens=min(rule.tokens, tokens.number))


def tokens_for_new_texts(shape: ModelShape, parameters: int, tokens: TokensUsed, rule: Split) -> Split | None:
    """Turn around "tokens that the texts do not use only where nothing else can take what is left"."""
    more = replace(tokens, number=tokens.possible)
    return fill_table(shape, parameters, more, rule.layers, rule.neurons, least_rank=RANK_STEP)


RIVALS: dict[str, Callable[[ModelShape, int, TokensUsed, Split], Split | None]] = {
    "rival1": more_layers_fewer_tokens,
    "rival2": all_neurons_fewer_layers,
    "rival3": shorter_rows_or_fewer_neurons,
    "rival4": tokens_used_alone,
    "rival5": tokens_for_new_texts,
}


def _half_again(shape: ModelShape, rule: Split) -> int:
    """Return half as many layers again, at least one more. Errors: DistilvecError if the model has no more."""
    layers = rule.layers + max(1, rule.layers // 2)
    if layers > shape.layers:
        raise DistilvecError(
            f"the rule keeps {rule.layers} of {shape.layers} layers; there are not {layers}.",
            "Give less.",
            key="--split",
        )
    return layers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("teacher")
    parser.add_argument("--student", help="another model whose layers the student takes, a folder or id")
    parser.add_argument("--size", required=True, help="2M, 5M, 20M or 25%%")
    parser.add_argument("--split", default="rule", help=f"rule, {', '.join(RIVALS)}, or layersN, layersN-tokensM")
    parser.add_argument("--texts", choices=[*SWEEPS, "ten-languages"], default="english")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=600, help="of 32 texts")
    parser.add_argument("--limit", type=int, help="texts of each source at most, for a try")
    parser.add_argument("--out", type=Path, default=Path("runs/design-rule"), help="folder of the runs")
    parser.add_argument("--cache", type=Path, help="the cache of teacher vectors")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--plan", action="store_true", help="print the split, and train nothing")
    arguments = parser.parse_args()

    run = {name: getattr(arguments, name) for name in RUN}
    run["teacher"] = Path(arguments.teacher).name
    run["student"] = None if arguments.student is None else Path(arguments.student).name
    rows = read_rows(arguments.json)
    if row_of(rows, run) is not None and not arguments.plan:
        print(f"done before: {row_of(rows, run)}")
        return

    names = [str(value).replace("%", "pc") for value in run.values() if value is not None]
    folder = arguments.out / "-".join(names)
    tree = recipe_tree(arguments, folder.name)
    model = arguments.student or arguments.teacher
    shape = replace(read_shape(ModelName(model)), linear_dim=read_shape(ModelName(arguments.teacher)).dim)
    parameters = parse_size(arguments.size).of(shape)
    split = choose_split(arguments.split, shape, parameters, tokens_of(tree, model, folder))
    parts = count_parts(shape, split)
    print(f"{folder.name}: {describe_split(split)}; {parts.total:,} of {parameters:,} parameters: {parts}", flush=True)
    if arguments.plan:
        return

    tree["student"] |= split.recipe_keys(shape)
    result = distilvec.run(recipes.validate(tree, origin="experiments.design_rule"), out=folder)
    assert result is not None, "one process trains"
    row = {**run, "design": asdict(split), "designed": parts.total, **measured(result)}
    print(row)
    # Read again: another process may have added its row meanwhile.
    others = [other for other in read_rows(arguments.json) if not same_run(other, run)]
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    write_json(arguments.json, {"rows": sorted([*others, row], key=lambda row: [str(row[name]) for name in RUN])})


def recipe_tree(arguments: argparse.Namespace, name: str) -> dict[str, Any]:
    """Return the recipe of a run with the teacher's whole layers as the student."""
    if arguments.texts in SWEEPS:
        corpus = recipes.resolved_tree(recipe_folder() / "sweeps" / SWEEPS[arguments.texts])["corpus"]
    else:
        corpus = {"seed": 0, "sources": write_texts(arguments.out / "ten-languages-texts")}
    if arguments.limit is not None:
        for source in corpus["sources"]:
            source["limit"] = min(arguments.limit, source.get("limit") or arguments.limit)
    return {
        "name": name,
        "teacher": {"model": resolved(arguments.teacher)},
        "student": {"model": "teacher" if arguments.student is None else resolved(arguments.student)},
        "corpus": corpus,
        "method": {"name": "redact"},
        "train": {"max_steps": arguments.steps, "batch_size": 32, "seed": arguments.seed},
        "cache": {} if arguments.cache is None else {"root": str(arguments.cache.resolve())},
    }


def resolved(model: str) -> str:
    """Return the absolute path of a folder, and an id as it is."""
    return str(Path(model).resolve()) if Path(model).is_dir() else model


def tokens_of(tree: dict[str, Any], model: str, folder: Path) -> TokensUsed:
    """Count the tokens of a model's vocabulary that the training texts of a recipe use."""
    corpus = resolve(recipes.validate(tree, origin="experiments.design_rule"), folder).corpus
    return count_tokens(load_tokenizer(ModelName(model)), texts_by_language(corpus))


def choose_split(name: str, shape: ModelShape, parameters: int, used: TokensUsed) -> Split:
    """Return the rule's split or a rival's. Errors: DistilvecError for a rival that does not fit."""
    rule = design_student(shape, parse_size(str(parameters)), used).split
    if name == "rule":
        return rule
    available = available_tokens(shape, used)
    if name not in RIVALS:
        if not re.fullmatch(r"layers\d+(-tokens\d+)?", name):
            known = ", ".join(RIVALS)
            raise DistilvecError(f"found '{name}'.", f"Give rule, {known}, or layers5-tokens9000.", key="--split")
        layers, _, number = name.removeprefix("layers").partition("-tokens")
        if number:
            available = replace(available, number=int(number))
        neurons = part_of_neurons(shape, 2)
        split = fill_table(shape, parameters, available, int(layers), neurons, least_rank=RANK_STEP)
    else:
        split = RIVALS[name](shape, parameters, available, rule)
    if split is None or split == rule:
        raise DistilvecError(
            f"{name} does not fit into {parameters:,} parameters.", "Give another size.", key="--split"
        )
    return split


def measured(run: FinishedRun) -> dict[str, Any]:
    """Return what a finished run says of its student, and of its start."""
    student, training = run.record.student, run.record.training
    assert student is not None and training is not None
    overlap = {} if run.record.overlap is None else run.record.overlap.to_json()
    after, before = overlap.get("student") or {}, overlap.get("start") or {}
    return {
        "parameters": student.parameters,
        "among": after.get("among"),
        "alone": after.get("alone"),
        "distance": run.validation["distance"],
        "minutes": training.minutes,
        "learning_rate": training.learning_rate,
        "layers": training.start,
        "untrained": {
            "among": before.get("among"),
            "alone": before.get("alone"),
            "distance": run.validation["untrained_distance"],
        },
    }


TITLES = {
    "rule": "the rule",
    "half": "half of the parameters in the tables",  # rows of earlier rules; not trained anew
    "eighth": "an eighth of the neurons, fewer tokens",
    "rival1": "more layers, fewer tokens",
    "rival2": "all neurons, fewer layers",
    "rival3": "more layers, shorter rows",
    "rival4": "only tokens that the texts use",
    "rival5": "tokens for new texts, shorter rows",
}


def table(content: dict[str, Any]) -> str:
    """Return the table of docs/sizes.md: the splits of each teacher and size, the rule's first."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in content["rows"]:
        name = row["teacher"] if row["student"] is None else f"{row['teacher']}, layers of {row['student']}"
        texts = row["texts"].replace("-", " ") + (f", {row['limit']:,} of each source" if row["limit"] else "")
        groups.setdefault((name, texts, row["size"]), []).append(row)

    lines = []
    for group, rows in groups.items():
        rows.sort(key=lambda row: (row["split"] != "rule", row["split"], row["seed"]))
        best = max(row["among"]["mean"] for row in rows)
        title = ", ".join(group)
        for row in rows:
            design, share = row["design"], row["among"]
            split = TITLES.get(row["split"], "other layers or tokens")
            if row["split"] == "rival3" and design["rank"] is None:
                split = "fewer neurons, more tokens"
            split += f", seed {row['seed']}" if row["seed"] else ""
            mean = f"**{share['mean']:.2f}**" if share["mean"] == best and len(rows) > 1 else f"{share['mean']:.2f}"
            cells = [
                title,
                split,
                str(design["layers"]),
                f"{design['neurons']:,}",
                f"{design['tokens']:,}",
                str(design["rank"] or "whole"),
                f"{mean} [{share['low']:.2f}, {share['high']:.2f}]",
            ]
            lines.append(cells)
            title = ""
    head = ["teacher, texts, size", "split", "layers", "neurons", "tokens", "rank", "overlap@10"]
    return markdown_table(head, lines, columns="llrrrrr")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of the file, none if there is no file yet."""
    rows: list[dict[str, Any]] = earlier_results(path, {"rows": []})["rows"]
    return rows


def same_run(row: dict[str, Any], run: dict[str, Any]) -> bool:
    """Return whether a row is that of the run."""
    return all(row[name] == run[name] for name in RUN)


def row_of(rows: list[dict[str, Any]], run: dict[str, Any]) -> dict[str, Any] | None:
    """Return the run's row, None if it is not trained yet."""
    return next((row for row in rows if same_run(row, run)), None)


if __name__ == "__main__":
    main()
