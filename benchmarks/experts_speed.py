"""What a mixture of experts adds to a student's inference (DistillMoE, tables 17 to 19).

    python -m benchmarks.experts_speed --json results/experts_speed.json

Two encoders with random weights, each with three experts of width 1024 behind its pooling and without: BERT-base (12
layers, 768 wide, the paper's student) and 3 layers, 384 wide. They are measured as `distilvec speed` does, with its
code: fp32 on this machine's processor, from random token ids (16 of a query, 256 of a document) to vectors, both taking
turns in every repeat; and at batch size 1 from 128 and 512 tokens, as in table 19. That is done `rounds` times, in the
other order every other time; a ratio (with experts to without) is the median of the rounds'.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer

from distilvec.config.student import ExpertsSection, StudentSection
from distilvec.core.files import write_json
from distilvec.evaluation.memory import machine_info
from distilvec.evaluation.speed import BACKENDS, ROLE_TOKENS, TIMED, Encode, Setting, Timing, measure, plan_settings
from distilvec.formats.onnx import export_copy
from distilvec.models.experts import Experts
from distilvec.models.load import BUILTIN
from distilvec.students.build import TeacherInfo, build_student

LENGTHS = (128, 512)  # tokens at batch size 1 (table 19)
MODELS = {"bert-base": (12, 768), "small": (3, 384)}  # layers, width
MARKS = {
    1: 1.12,
    32: 1.05,
}  # the most that bert-base may take with experts, by batch size; the paper has 1.117 and 1.038 on an H200
WITHOUT, WITH = "without", "with"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--backends", nargs="+", choices=list(BACKENDS), default=list(BACKENDS))
    parser.add_argument("--roles", nargs="+", choices=list(ROLE_TOKENS), default=list(ROLE_TOKENS))
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=list(MARKS))
    parser.add_argument("--lengths", nargs="*", type=int, default=list(LENGTHS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=50, help="of one round")
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="of one model in one round; at least 5 repeats are made"
    )
    arguments = parser.parse_args()
    timing = Timing(3, arguments.repeats, arguments.seconds)
    report: dict[str, Any] = {
        "machine": machine_info(),
        "timed": TIMED,
        "rounds": arguments.rounds,
        "marks": MARKS,
        "models": {},
    }
    for name in arguments.models:
        models = make_models(*MODELS[name])
        counts = {kind: sum(weight.numel() for weight in model.parameters()) for kind, model in models.items()}
        report["models"][name] = {"parameters": counts, "experts": counts[WITH] - counts[WITHOUT]}
        settings = [
            one
            for one in plan_settings(arguments.batch_sizes, arguments.lengths, ROLE_TOKENS["document"])
            if one.role in (*arguments.roles, None)
        ]
        for backend in arguments.backends:
            found = report["models"][name][backend] = measure_all(backend, models, settings, timing, arguments.rounds)
            for setting, figures in found.items():
                print(f"{name:<10} {backend:<8} {setting:<14} {figures}", flush=True)
            write_json(arguments.json, report)


def make_models(layers: int, width: int) -> dict[str, SentenceTransformer]:
    """The same encoder, with the same weights in memory, without and with experts."""
    config = {
        "model_type": "bert",
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": 12,
        "intermediate_size": 4 * width,
        "max_position_embeddings": 512,
    }
    section = StudentSection(config=config, tokenizer=BUILTIN, experts=ExpertsSection())
    whole = export_copy(build_student(section, TeacherInfo(width, normalized=True, max_length=512), seed=0))
    rest = SentenceTransformer(modules=[module for module in whole if not isinstance(module, Experts)], device="cpu")
    return {WITHOUT: rest.eval(), WITH: whole}


def measure_all(
    backend: str, models: Mapping[str, SentenceTransformer], settings: Sequence[Setting], timing: Timing, rounds: int
) -> dict[str, dict[str, float]]:
    """Milliseconds without and with experts (median, p99 and deviation: medians of the rounds'), the ratio, its lowest
    and highest round, by role and batch size, or by length.
    """
    found = {}
    with tempfile.TemporaryDirectory(prefix="experts-speed-") as folder:
        notes: list[str] = []
        encoders: dict[str, Encode] = BACKENDS[backend](models, Path(folder), notes)
        if notes:
            raise SystemExit("; ".join(notes))
        for setting in settings:
            taken = [
                one_round(backend, setting, encoders, models, timing, bool(number % 2)) for number in range(rounds)
            ]
            ratios = [times[WITH]["median_ms"] / times[WITHOUT]["median_ms"] for times in taken]
            found[f"{setting.role or f'{setting.tokens} tokens'} x {setting.batch_size}"] = {
                **{
                    f"{kind}_{part}": round(statistics.median(times[kind][f"{name}_ms"] for times in taken), 3)
                    for kind in models
                    for name, part in {"median": "ms", "p99": "p99_ms", "std": "std_ms"}.items()
                },
                "ratio": round(statistics.median(ratios), 4),
                "lowest": round(min(ratios), 4),
                "highest": round(max(ratios), 4),
            }
    return found


def one_round(
    backend: str,
    setting: Setting,
    encoders: Mapping[str, Encode],
    models: Mapping[str, SentenceTransformer],
    timing: Timing,
    turned: bool,
) -> dict[str, dict[str, Any]]:
    """The timings of both models in a round, which take turns; `turned`: the other one begins."""
    order = list(encoders)[:: -1 if turned else 1]
    rows = measure(backend, setting, {kind: encoders[kind] for kind in order}, models, timing)
    return {row.model: asdict(row) for row in rows}


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
