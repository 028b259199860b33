"""The command `distilvec align`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from distilvec.cli.options import (
    JsonFile,
    TextColumns,
    TextLimit,
    TrustRemoteCode,
    check_input,
    check_model_path,
    check_outputs,
    option,
    source_names,
)
from distilvec.cli.output import write_result
from distilvec.core.errors import set_by


def align(
    teacher: Annotated[str, option("The teacher's folder or id; only its tokenizer is loaded.")],
    student: Annotated[str, option("The student's folder or id; only its tokenizer is loaded.")],
    texts: Annotated[list[Path], option("A file or folder of texts, as in a recipe's corpus; may be repeated.")],
    column: TextColumns = None,
    kind: Annotated[
        Literal["offsets", "overlap", "mined", "mined_types", "strict"],
        option("offsets: same characters; overlap: common characters; mined: edit distance; strict: mined and equal."),
    ] = "offsets",
    limit: TextLimit = None,
    max_length: Annotated[int, option("Tokens that both models read of a text, with special tokens.", min=1)] = 512,
    json_file: JsonFile = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Measure how well two tokenizers line up on texts.

    For each file: the percentage of the teacher's and of the student's tokens that can be paired one to one, in
    brackets with special tokens.
    """
    from itertools import islice

    check_model_path(teacher, "--teacher")
    check_model_path(student, "--student")
    for path in texts:
        check_input(path, "--texts")
    check_outputs([("--json", json_file)], [teacher, student, *texts])

    from distilvec.alignment.align import Aligner, measure_mapping, unicode_texts
    from distilvec.cli.terminal import show_table
    from distilvec.config.schema import SourceSection
    from distilvec.core.errors import about
    from distilvec.core.log import progress
    from distilvec.core.model_name import ModelName
    from distilvec.data.sources import read_source, source_files
    from distilvec.models.load import load_tokenizer

    coverages = []
    names = {"teacher.model": "teacher", "student.model": "student", "student.tokenizer": "student"}
    names |= {"teacher.max_length": "max_length", "student.max_length": "max_length"}
    with set_by(names | source_names(len(texts))):
        sources = [SourceSection(path=path, column=column or None) for path in texts]
        for position, source in enumerate(sources):
            source_files(source, position)
        with about("--student", student):
            student_tokenizer = load_tokenizer(ModelName(student, trusted=trust_remote_code))
        with about("--teacher", teacher):
            teacher_tokenizer = load_tokenizer(ModelName(teacher, trusted=trust_remote_code))
        aligner = Aligner(student_tokenizer, max_length, teacher_tokenizer, max_length, kind)
        for position, (path, source) in enumerate(zip(texts, sources, strict=True)):
            sample = list(islice(unicode_texts(read_source(source, position), source), limit))
            with progress(f"aligning {source.label}", len(sample), "texts") as advance:
                coverage = measure_mapping(aligner, sample, advance)
            coverages.append({"name": source.label, "file": str(path), **coverage})
    content = {"teacher": teacher, "student": student, "kind": kind, "max_length": max_length, "texts": coverages}
    write_result(json_file, content)
    rows = []
    for row in coverages:
        shares = []
        for side in ("teacher", "student"):
            shares.append(f"{row[f'{side}_rate_ordinary']:.2f} ({row[f'{side}_rate']:.2f})")
        rows.append([row["name"], *shares, f"{row['pairs']:,}", f"{row['texts_per_second']:,.0f}"])
    show_table(["texts", "teacher %", "student %", "pairs", "texts/s"], rows)
