"""distilvec classify: options, checks before heavy imports, and the last screen."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from distilvec.cli.options import (
    JsonFile,
    Overrides,
    Restart,
    TrustRemoteCode,
    argument,
    changed_files,
    check_dry_run,
    check_model_path,
    check_outputs,
    names_by_key,
    option,
)
from distilvec.cli.output import write_result
from distilvec.core.errors import about, set_by

_REPLACED = ("student.layers", "student.size", "teacher.model")  # by options of the command that comes next


def classify(
    file: Annotated[Path, argument("Labelled texts: CSV, TSV, JSON Lines or Parquet.", metavar="FILE")],
    overrides: Overrides = None,
    text: Annotated[list[str] | None, option("The column of texts; give two for pairs. Usual names are found.")] = None,
    label: Annotated[
        list[str] | None,
        option("The column of labels, or of lists of labels; or several columns of 0 and 1, one a label."),
    ] = None,
    teacher: Annotated[
        str | None, option("A model to learn from; all-MiniLM-L6-v2 by default.", key="teacher.model", metavar="MODEL")
    ] = None,
    student: Annotated[
        str | None,
        option(
            "A smaller model that learns from the teacher; by default some of the teacher's layers.",
            key="student.model",
            metavar="MODEL",
        ),
    ] = None,
    size: Annotated[
        str | None, option("Parameters of the student: 5M, 20M, 25%; see distill --size.", key="student.size")
    ] = None,
    layers: Annotated[
        int | None,
        option(
            "Layers of the student, instead of --size; a third of the teacher's by default.",
            key="student.layers",
            min=1,
        ),
    ] = None,
    test: Annotated[Path | None, option("A file of test rows, instead of a share of FILE's.")] = None,
    test_size: Annotated[float | None, option("The share of each label's rows to test on; 0.2 by default.")] = None,
    epochs: Annotated[
        int | None,
        option("Passes over the training rows; 5 by default, more for few rows.", key="train.epochs", min=1),
    ] = None,
    seed: Annotated[int, option("The seed of the split and the trainings.", key="train.seed", min=0)] = 0,
    out: Annotated[Path | None, option("The run folder; runs/<FILE's name> by default.")] = None,
    dry_run: Annotated[bool, option("Show what would be done and how long it takes, then stop.", "--dry-run")] = False,
    restart: Restart = False,
    trust_remote_code: TrustRemoteCode = False,
    json_file: JsonFile = None,
) -> None:
    """Train a small text classifier on your labels.

    It is tested on held-out rows. The same command resumes.
    """
    check_dry_run(dry_run, json_file)
    for option_name, model in (("--teacher", teacher), ("--student", student)):
        if model is not None:
            check_model_path(model, option_name)

    from distilvec.config.recipe import read_overrides
    from distilvec.core.files import check_output_folder
    from distilvec.core.run_folder import RunFolder
    from distilvec.students.design import parse_size
    from distilvec.verbs.classify.recipes import (
        DEFAULT_TEACHER,
        STUDENT_STEPS,
        check_arguments,
        check_cut,
        describe_labels,
        teacher_recipe,
        training,
    )
    from distilvec.verbs.classify.split import read_and_split

    # Before torch is imported, which takes seconds: a wrong path, column or key is refused at once.
    changes = read_overrides(overrides or [])
    with set_by(names_by_key(classify) | {key: key for key in changes}):
        check_outputs([("--json", json_file)], [file, test, teacher, student, *changed_files(changes)])
        arguments = {"teacher": teacher, "student": student, "size": size, "layers": layers, "epochs": epochs}
        check_arguments(changes, **arguments, seed=seed)
        check_cut(size, layers)
        if size is not None:
            with about("size"):
                parse_size(size)
        data, split = read_and_split(file, text or [], label or [], test, test_size, seed)
        folder = out or Path("runs") / data.name
        with about("out", folder):
            check_output_folder(folder)
        labels = describe_labels(data, split, RunFolder(folder).labels)
        teacher_recipe(teacher or DEFAULT_TEACHER, labels, epochs, seed, trust_remote_code, changes)

        from distilvec.cli.terminal import show_end, show_table
        from distilvec.report.next_step import NextStep
        from distilvec.verbs.classify.classify import classification

        work = classification(
            file,
            text=text,
            label=label,
            teacher=teacher,
            student=student,
            size=size,
            layers=layers,
            test=test,
            test_size=test_size,
            epochs=epochs,
            seed=seed,
            out=folder,
            restart=restart,
            trust_remote_code=trust_remote_code,
            overrides=changes,
        )
        if dry_run:
            show_table(["", data.name], work.plan())
            return
        classifier = work.run()
    write_result(json_file, classifier.to_json())
    step = None
    if classifier.advice and classifier.larger:
        next_words = ["distilvec", "classify", str(file)]
        next_words += [word for word in overrides or [] if word.partition("=")[0] not in _REPLACED]
        for name, columns in (("--text", text), ("--label", label)):
            for column in columns or []:
                next_words += [name, column]
        # Fewer passes than by default were a first look
        usual_epochs = training(len(split.train), None, STUDENT_STEPS, seed)["epochs"]
        next_options = {
            "--test": test,
            "--test-size": test_size,
            "--epochs": None if epochs is None or epochs < usual_epochs else epochs,
            "--seed": seed or None,
            "--teacher": classifier.teacher_folder,
            **{f"--{name}": value for name, value in classifier.larger.items()},
            "--out": f"{classifier.folder}-larger",
        }
        for name, value in next_options.items():
            if value is not None:
                next_words += [name, str(value)]
        if trust_remote_code:
            next_words.append("--trust-remote-code")
        step = NextStep(classifier.advice, shlex.join(next_words))
    show_end(classifier, step)
