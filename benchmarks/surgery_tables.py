"""The tables of docs/surgery.md from results/surgery.json and surgery_speed.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KINDS = {"bpe": "byte-level BPE", "unigram": "Unigram", "wordpiece": "WordPiece"}


def surgery_tables(found: Mapping[str, Any]) -> str:
    """Every part that has been measured."""
    parts = []
    if "trim" in found:
        parts.append(f"### Trimmed, not trained\n\n{trim_table(found['trim'])}")
    if "turkish" in found:
        parts.append(f"### A Turkish tokenizer\n\n{turkish_table(found['turkish'])}")
    if "inference" in found:
        parts.append(inference_table(found["inference"]))
    return "\n\n".join(parts)


def inference_table(found: Mapping[str, Any]) -> str:
    """Turkish text through the same layers behind either tokenizer."""
    lines = ["| Turkish | texts/s, before | after | tokens/s, before | after | times faster |", "|---|---:|---:|---:|---:|---:|"]
    for name, part in found["on"].items():
        texts, tokens = ([part[side][f"{unit}_per_second"] for side in ("before", "after")] for unit in ("texts", "tokens"))
        cells = [f"{value:,.0f}" for value in (*texts, *tokens)]
        lines.append(f"| {name} | {' | '.join(cells)} | {part['times_faster']:.2f} |")
    return (
        "\n".join(lines)
        + f"\n\nall-MiniLM-L6-v2 before, with a Unigram vocabulary of {found['size']:,} after; texts of up to 256 tokens, the two in turn, "
        f"medians ({found['machine']}; `python -m benchmarks.surgery inference --json FILE`)."
    )


def trim_table(found: Mapping[str, Any]) -> str:
    """Size, distance and STS-B of trimmed vocabularies."""
    lines = ["| tokens | parameters | distance to the teacher | STS-B |", "|---:|---:|---:|---:|"]
    for row in found["rows"]:
        lines.append(f"| {row['tokens']:,} | {row['parameters'] / 1e6:.1f} M | {row['distance']:.3f} | {row['stsb']:.2f} |")
    return (
        "\n".join(lines)
        + "\n\nThe first row is all-MiniLM-L6-v2. Tokens were chosen on the training texts of recipes/small_english.yaml; the distance is "
        f"the mean L2 over {found['held_out']:,} held-out texts (`python -m benchmarks.surgery trim --json FILE`). No weight was trained."
    )


def turkish_table(found: Mapping[str, Any]) -> str:
    """Fertility and length of Turkish text before and after."""
    lines = [
        "| tokenizer | texts | tokens a word | characters a token | unknown, % | shorter by, % | attention saved, % | whole words, % |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for kind, part in found["kinds"].items():
        for texts, language in part["languages"].items():
            before, after, saved = language["before"], language["after"], language["saved"]
            whole = part["after"]["vocabulary"]["whole_words"]
            lines.append(
                f"| {KINDS[kind]} | {texts} | {before['fertility']:.2f} → {after['fertility']:.2f} "
                f"| {before['characters_per_token']:.2f} → {after['characters_per_token']:.2f} "
                f"| {100 * before['unknown']:.2f} → {100 * after['unknown']:.2f} "
                f"| {saved['length']:.1f} | {saved['attention']:.1f} | {100 * whole:.0f} |"
            )
    return (
        "\n".join(lines)
        + f"\n\nFrom all-MiniLM-L6-v2's 30,522 tokens to {found['size']:,} trained on Turkish sentences and questions (lengths are of "
        "whole texts; `python -m benchmarks.surgery turkish --json FILE`). The teacher knows no Turkish, so no score is claimed."
    )


def speed_line(found: Mapping[str, Any]) -> str:
    """How fast counting and the transplant are."""
    counting, made, wanted = found["counting"], found["transplant"], found["marks"]
    rates = counting["megabytes_per_second"]
    old, new = made["rows"]
    return (
        f"Counting tokens: {rates['words']:.1f} MB of text a second by distinct words (mark: {wanted['megabytes_per_second']:g}), "
        f"{rates['whole']:.1f} on whole texts with the same counts ({counting['texts']}, {counting['megabytes']:.0f} MB). "
        f"From {old:,} to {new:,} rows of {made['width']}, from folder to folder: {made['seconds']:.0f} s (mark: {wanted['seconds']:g}), "
        f"with {made['memory_of_tables']:.2f} times the memory of both tables (mark: {wanted['memory_of_tables']:g}) "
        f"({found['machine']}; `python -m benchmarks.surgery_speed --json FILE`)."
    )
