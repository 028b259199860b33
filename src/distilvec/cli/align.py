"""The verb `distilvec align`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Optional

import typer

from distilvec.cli.model_options import TrustRemoteCode, named_options

_OPTIONS = {
    "teacher.model": "--teacher",
    "student.model": "--student",
    "teacher.max_length": "--max-length",
    "student.max_length": "--max-length",
    "student.tokenizer": "--student",
}


class Kind(StrEnum):
    """How tokens are paired."""

    offsets = "offsets"
    overlap = "overlap"
    mined = "mined"
    strict = "strict"


def align(
    teacher: Annotated[str, typer.Option(help="The teacher's folder or id; only its tokenizer is loaded.")],
    student: Annotated[str, typer.Option(help="The student's folder or id; only its tokenizer is loaded.")],
    texts: Annotated[
        list[Path], typer.Option(help="A file or folder of texts, as in a recipe's corpus; may be given several times.")
    ],
    column: Annotated[
        Optional[list[str]], typer.Option(help="The column(s) with texts; found by name when left out.")
    ] = None,
    kind: Annotated[
        Kind,
        typer.Option(
            help="offsets: same characters; overlap: common characters; mined: edit distance; strict: mined and equal."
        ),
    ] = Kind.offsets,
    limit: Annotated[Optional[int], typer.Option(min=1, help="Read only so many texts of each file.")] = None,
    max_length: Annotated[
        int, typer.Option(min=1, help="Tokens that either model reads of a text, special ones included.")
    ] = 512,
    json_file: Annotated[Optional[Path], typer.Option("--json", help="Write all figures here.")] = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Which part of two models' tokens can be paired one to one, on texts: the mapping rates of EMO's table 6.

    For each file the per cent of the teacher's and of the student's tokens that are in a pair, and in brackets the same with
    special tokens counted.
    """
    from itertools import islice

    from distilvec.core.files import check_output_file, write_json

    check_output_file(json_file, "--json")

    from distilvec.alignment.align import Aligner
    from distilvec.alignment.coverage import measure_mapping, unicode_texts
    from distilvec.cli.terminal import show_table
    from distilvec.config.schema import SourceSection
    from distilvec.core.log import progress
    from distilvec.data.sources import read_source, source_files
    from distilvec.models.load import load_tokenizer

    found = []
    with named_options(_OPTIONS):
        sources = [SourceSection(path=path, column=column or None) for path in texts]
        for position, source in enumerate(sources):
            source_files(source, position)
        tokenizers = [
            load_tokenizer(name, option, trust_remote_code=trust_remote_code)
            for name, option in ((student, "--student"), (teacher, "--teacher"))
        ]
        aligner = Aligner(tokenizers[0], max_length, tokenizers[1], max_length, kind.value)
        for position, (path, source) in enumerate(zip(texts, sources, strict=True)):
            read = list(islice(unicode_texts(read_source(source, position), source), limit))
            with progress(f"aligning {source.label}", len(read), "texts") as advance:
                measured = measure_mapping(aligner, read, advance)
            found.append({"name": source.label, "file": str(path), **measured})
    if json_file:
        content = {"teacher": teacher, "student": student, "kind": kind.value, "max_length": max_length, "texts": found}
        write_json(json_file, content, key="--json")
    show_table(
        ["texts", "teacher %", "student %", "pairs", "texts/s"],
        [
            [
                row["name"],
                *(f"{row[f'{side}_rate_ordinary']:.2f} ({row[f'{side}_rate']:.2f})" for side in ("teacher", "student")),
                f"{row['pairs']:,}",
                f"{row['texts_per_second']:,.0f}",
            ]
            for row in found
        ],
    )
