"""docs/papers/: the tables of the five papers."""

from __future__ import annotations

from functools import partial

from experiments import larger_teacher
from experiments.cross_tokenizer import (
    distillmoe_tables,
    emo_summary,
    emo_tables,
    forms_tables,
    moe_summary,
    one_input_table,
)
from experiments.linear_layer import layers_table
from experiments.pages.costs import (
    aggregation_line,
    alignment_tables,
    cache_tables,
    cost_table,
    experts_speed_table,
    moe_step_table,
    routing_table,
    rows_line,
    step_table,
    transport_line,
)
from experiments.pages.parts import ENGLISH, STAR, Parts, main_students, read, rival, surgery_part, tables
from experiments.paper_teacher import contrasts_table as paper_teacher_contrasts
from experiments.paper_teacher import table as paper_teacher_table
from experiments.per_hour import table as per_hour_table
from experiments.real_teachers import STARTS, contrast_line, surgery_table
from experiments.real_teachers import table as teachers_table
from experiments.result_students import distances_table
from experiments.score_table import distance_table
from experiments.sentence_level import ablation_tables, larger_table, methods_tables, sharpness_table
from experiments.sentence_level import summary_table as talas_summary
from experiments.surgery_tables import (
    inference_table,
    sizes_summary,
    sizes_table,
    speed_line,
    trim_table,
    turkish_table,
)
from experiments.sweeps import domains_table, tokenizers_table
from experiments.teacher_prompts import prompts_table


def parts() -> Parts:
    """The marked parts of the papers' pages."""
    return {
        "docs/papers/redact.md": {
            "distances": f"{distance_table(main_students())}\n\n{STAR}",
            "long": tables(("result_students", partial(distances_table, names=ENGLISH, untouched=rival()))),
            "per_hour": tables(("per_hour", per_hour_table)),
            "teachers": tables(
                ("real_teachers", partial(teachers_table, names=STARTS, untouched=rival())),
                ("real_teachers", contrast_line),
            ),
            "layers": tables(("linear_layer", layers_table)),
        },
        "docs/papers/surgery.md": {
            "prompts": tables(("teacher_prompts", prompts_table)),
            "paper_teacher": tables(("paper_teacher", paper_teacher_table)),
            "paper_teacher_changes": tables(("paper_teacher", paper_teacher_contrasts)),
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


def talas_part() -> str:
    """The sentence-level methods on both students."""
    figures = [read(name) for name in ("shootout_sentence_level", "shootout_sentence_level_cut", "step_cost")]
    return talas_summary(*figures) if all(figures) else ""


def emo_part() -> str:
    """The methods across tokenizers, with few labels and with all."""
    figures = [read(name) for name in ("shootout_cross_tokenizer", "shootout_all_labels", "step_cost_tokens")]
    return emo_summary(*figures) if all(figures) else ""


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
