"""The verbs about models: finetune a teacher, align two tokenizers, transplant a vocabulary, export, push to a hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from distilvec.cli.options import (
    JsonFile,
    Model,
    Overrides,
    Restart,
    TextColumns,
    TextLimit,
    TrustRemoteCode,
    argument,
    check_input,
    check_model,
    check_outputs,
    check_positive,
    named_options,
    option,
)
from distilvec.cli.output import write_result

_FINETUNE = {
    "teacher.model": "model",
    "student.model": "model",
    "student.lora.r": "--r",
    "student.lora.alpha": "--alpha",
    "student.lora.dropout": "--dropout",
    "train.epochs": "--epochs",
    "train.batch_size": "--batch-size",
    "train.learning_rate": "--learning-rate",
}
_TRANSPLANT = {
    "student.vocabulary": "--texts",
    "student.vocabulary.size": "--vocab-size",
    **{
        f"student.vocabulary.{field}": f"--{field.replace('_', '-')}"
        for field in ("kind", "tokenizer", "target", "share", "letters", "compose", "keep_norm")
    },
    "student.model": "teacher",
    "student.embedding": "--rank",
    "student.embedding.rank": "--rank",
    "max_length": "--max-length",
}
_ALIGN = {
    "teacher.model": "--teacher",
    "student.model": "--student",
    "teacher.max_length": "--max-length",
    "student.max_length": "--max-length",
    "student.tokenizer": "--student",
}


def finetune(
    model: Model,
    task: Annotated[Path, option("Labelled rows: a file with a column split, or a folder with one file a split.")],
    kind: Annotated[str, option("classification (text, label), pair (two sentences, label) or sts (score).", "--type")],
    out: Annotated[Path, option("The run folder; the fine-tuned model is its student/.")],
    overrides: Overrides = None,
    encode: Annotated[str, option("A pair as one input (joint), or its texts apart (separate).")] = "joint",
    lora: Annotated[bool, option("Train low-rank adapters, merged into the saved model; or all weights.")] = True,
    r: Annotated[int, option("Rank of the adapters.")] = 256,
    alpha: Annotated[float, option("Scale of the adapters, over their rank.")] = 32,
    dropout: Annotated[float, option("Dropout before the adapters.")] = 0.1,
    epochs: Annotated[int, option("Passes over the training rows.")] = 3,
    batch_size: Annotated[int, option("Texts in a micro-batch, of all processes together.")] = 32,
    learning_rate: Annotated[float | None, option("By default 2e-3 with adapters, 2e-5 without.")] = None,
    restart: Restart = False,
    trust_remote_code: TrustRemoteCode = False,
    json_file: JsonFile = None,
) -> None:
    """Fine-tune a teacher on a labelled task, with its head; run again to resume.

    The folder it leaves is a teacher for recipes on the same task: teacher.model=OUT/student. Keys of the recipe can be
    changed as for `distilvec run`: task.limit=2000, teacher.pooling=mean for a plain Hugging Face model,
    teacher.adapters and teacher.attention=bidirectional for LLM2Vec.
    """
    from distilvec.config import recipe as recipes
    from distilvec.core.extras import require_extra
    from distilvec.core.files import check_output_folder

    check_model(model, "model")
    check_outputs([("--json", json_file)], [task])
    changes = recipes.read_overrides(overrides or [])
    adapted = changes.get("student.lora", lora)
    if adapted:
        require_extra("finetune", "--lora")
    check_output_folder(out, "--out")

    adapters = {"r": r, "alpha": alpha, "dropout": dropout}
    tree = finetune_recipe(model, task, kind, encode, adapters if lora else None, trust_remote_code)
    rate = learning_rate if learning_rate is not None else 2e-3 if adapted else 2e-5
    train = {**tree["train"], "epochs": epochs, "batch_size": batch_size, "learning_rate": rate}
    tree |= {"name": out.resolve().name or "finetune", "train": train}
    with named_options(_FINETUNE):
        recipe = recipes.recipe_from(tree, changes, "distilvec finetune")
        check_input(task, "task.path")

        from distilvec.cli.terminal import show_finished
        from distilvec.pipeline.run import run as run_recipe

        result = run_recipe(recipe, out, restart)
    if result is not None:
        write_result(json_file, result.to_json())
    show_finished(result)


def finetune_recipe(
    model: str, task: Path, kind: str, encode: str, lora: dict[str, Any] | None, trust: bool = False
) -> dict[str, Any]:
    """The recipe of a fine-tuning: the teacher's own backbone, trained on labels alone."""
    trusted = {"trust_remote_code": True} if trust else {}
    return {
        "name": "finetune",
        "description": "Fine-tunes a teacher on a labelled task.",
        "teacher": {"model": model, **trusted},
        "student": {"model": "teacher", "lora": lora, **trusted},
        "task": {"type": kind, "path": str(task), "encode": encode},
        "method": {"name": "task"},
        "train": {"schedule": {"name": "linear", "warmup": 0.1}, "max_grad_norm": 1.0, "precision": "fp32"},
        "evaluation": {},
    }


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
    max_length: Annotated[int, option("Tokens that either model reads of a text, special ones included.", min=1)] = 512,
    json_file: JsonFile = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Share of two models' tokens that can be paired one to one, on texts: the mapping rates of EMO's table 6.

    For each file: the per cent of the teacher's and of the student's tokens in a pair, in brackets with special tokens.
    """
    from itertools import islice

    check_model(teacher, "--teacher")
    check_model(student, "--student")
    for path in texts:
        check_input(path, "--texts")
    check_outputs([("--json", json_file)], texts)

    from distilvec.alignment.align import Aligner
    from distilvec.alignment.coverage import measure_mapping, unicode_texts
    from distilvec.cli.terminal import show_table
    from distilvec.config.schema import SourceSection
    from distilvec.core.log import progress
    from distilvec.data.sources import read_source, source_files
    from distilvec.models.load import load_tokenizer

    found = []
    with named_options(_ALIGN):
        sources = [SourceSection(path=path, column=column or None) for path in texts]
        for position, source in enumerate(sources):
            source_files(source, position)
        ours = load_tokenizer(student, "--student", trust_remote_code=trust_remote_code)
        theirs = load_tokenizer(teacher, "--teacher", trust_remote_code=trust_remote_code)
        aligner = Aligner(ours, max_length, theirs, max_length, kind)
        for position, (path, source) in enumerate(zip(texts, sources, strict=True)):
            read = list(islice(unicode_texts(read_source(source, position), source), limit))
            with progress(f"aligning {source.label}", len(read), "texts") as advance:
                measured = measure_mapping(aligner, read, advance)
            found.append({"name": source.label, "file": str(path), **measured})
    content = {"teacher": teacher, "student": student, "kind": kind, "max_length": max_length, "texts": found}
    write_result(json_file, content)
    rows = []
    for row in found:
        shares = [f"{row[f'{one}_rate_ordinary']:.2f} ({row[f'{one}_rate']:.2f})" for one in ("teacher", "student")]
        rows.append([row["name"], *shares, f"{row['pairs']:,}", f"{row['texts_per_second']:,.0f}"])
    show_table(["texts", "teacher %", "student %", "pairs", "texts/s"], rows)


def transplant(
    teacher: Model,
    out: Annotated[Path, option("The new model's folder.")],
    texts: Annotated[list[str] | None, option("A file or folder of texts, or LANGUAGE=FILE; may be repeated.")] = None,
    max_length: Annotated[int | None, option("Tokens read of a text; as before by default.", min=1)] = None,
    column: TextColumns = None,
    limit: TextLimit = None,
    rank: Annotated[int | None, option("Numbers per token: a factorized table (ELECTRA's layout).", min=2)] = None,
    budget: Annotated[str | None, option("Parameters in all, such as 5M: chooses rank and tokens.")] = None,
    budget_mb: Annotated[float | None, option("The same in megabytes of weights, 4 bytes a parameter.")] = None,
    overwrite: Annotated[bool, option("Replace a model of distilvec's; other files stay.", "--overwrite")] = False,
    trust_remote_code: TrustRemoteCode = False,
    kind: Annotated[
        Literal["trim", "hybrid", "bpe", "unigram", "wordpiece"],
        option("Tokens that the texts use (trim), with the target language's own (hybrid), or trained on the texts."),
    ] = "trim",
    vocab_size: Annotated[
        int | None, option("Tokens in all, or as near as the texts allow; with trim by default all that they use.")
    ] = None,
    tokenizer: Annotated[
        str | None, option("An existing tokenizer instead: a folder, hub id, tokenizer.json or .model file.")
    ] = None,
    target: Annotated[str | None, option("With hybrid: the language that gets its own tokens.")] = None,
    share: Annotated[int | None, option("With hybrid: how many, or as many as its texts give.")] = None,
    letters: Annotated[
        Literal["all", "seen"] | None,
        option(
            "Keep all letters of the old alphabet, or those seen in the texts; by default all that leave half the size."
        ),
    ] = None,
    compose: Annotated[
        Literal["mean", "weighted", "first", "last"], option("How new embeddings are made from the old pieces'.")
    ] = "mean",
    keep_norm: Annotated[
        bool, option("Scale composed embeddings to the mean norm of their pieces.", "--keep-norm")
    ] = False,
) -> None:
    """Give a model another vocabulary: embeddings are composed of the old ones, every other weight stays."""
    from distilvec.config.recipe import section_of
    from distilvec.config.student import VocabularySection

    check_model(teacher, "teacher")
    with named_options(_TRANSPLANT):
        values = {
            "kind": kind,
            "size": vocab_size,
            "tokenizer": tokenizer,
            "target": target,
            "share": share,
            "letters": letters,
            "compose": compose,
            "keep_norm": keep_norm,
        }
        section = section_of(VocabularySection, "student.vocabulary", values)

        from distilvec.cli.terminal import show_tokenizers
        from distilvec.core.errors import DistilvecError
        from distilvec.core.extras import require_extra
        from distilvec.pipeline.budget import parameter_budget
        from distilvec.pipeline.transplant import (
            distance_line,
            read_texts,
            rows_line,
            stated_languages,
            transplant_folder,
        )

        if sum(one is not None for one in (rank, budget, budget_mb)) > 1:
            raise DistilvecError("--budget", "found several of --rank, --budget and --budget-mb.", "Give one.")
        if budget_mb is not None:
            check_positive(budget_mb, "--budget-mb")
        parameters = parameter_budget(budget) if budget else int(budget_mb * 1e6 / 4) if budget_mb else None
        if section.tokenizer is not None and section.tokenizer.endswith(".model"):
            require_extra("sentencepiece", "--tokenizer")
        sources = read_texts(texts or [], column, limit)
        found = transplant_folder(
            teacher, section, sources, out, max_length, overwrite=overwrite, trust_remote_code=trust_remote_code,
            rank=rank, budget=parameters, languages=stated_languages(texts or []),
        )  # fmt: skip
    show_tokenizers(found["compared"])
    print(f"{out}: {rows_line(found)}")
    if line := distance_line(found):
        print(line)


def export(
    model: Model,
    to: Annotated[
        Literal["onnx", "onnx-fp16", "onnx-int8", "openvino", "projected", "router"],
        option("A form of docs/export.md; projected, router: of RUN/student, with what its run has."),
    ] = "onnx",
    out: Annotated[
        Path | None, option("The file or folder: MODEL/onnx/model.onnx or alike, RUN/projected, RUN/router.")
    ] = None,
    suite: Annotated[Path | None, option("Suite whose retrieval task compares the form with PyTorch.")] = None,
    force: Annotated[bool, option("Keep a form that is out of tolerance.", "--force")] = False,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Write a model as ONNX or OpenVINO, compared with PyTorch; it runs without Python code.

    A form that is out of tolerance is refused with the numbers.

    With --to projected: write a run's student behind the projection into the teacher's space that its method trained
    (talas, distilcse_ckd), as a model folder.

    With --to router: write a run's student and its teacher as one model folder of sentence-transformers, which sends
    queries to the student and documents to the teacher.
    """
    check_model(model, "model")
    check_input(suite, "suite")

    from distilvec.cli.terminal import show_export
    from distilvec.pipeline.export import export_model

    show_export(export_model(model, to, out, trust_remote_code, suite, force))


def push(
    model: Annotated[Path, argument("A model's folder, such as RUN/student.")],
    repo_id: Annotated[str, argument("OWNER/NAME on the hub.")],
    public: Annotated[bool, option("A public repository; private by default.", "--public")] = False,
    license: Annotated[str | None, option("Its id, such as apache-2.0, if the model card has none.")] = None,
    revision: Annotated[str | None, option("A branch; main by default.")] = None,
    message: Annotated[str | None, option("The commit's message.")] = None,
    update: Annotated[bool, option("Push into a repository that exists.", "--update")] = False,
) -> None:
    """Upload a model's folder with its card to the Hugging Face hub, into a private repository.

    The token is that of HF_TOKEN or of `hf auth login`. Pickles, states of training and hidden files stay here.
    """
    check_input(model, "model")

    from distilvec.cli.terminal import print_result
    from distilvec.pipeline.push import push_model

    found = push_model(model, repo_id, public, license, revision, message, update)
    print_result(f"{len(found.files)} files, {'private' if found.private else 'public'}: {found.url}")
