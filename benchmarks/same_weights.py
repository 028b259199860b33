"""Whether two checkouts train the same weights: a short run of every method and of quickstart in both.

    git clone -q . /tmp/before && git -C /tmp/before checkout -q COMMIT
    python -m benchmarks.same_weights /tmp/before . [--only "redact;emo"] [--json FILE]

Each checkout runs its own recipes in a process of its own: tiny models, 4 steps on the CPU in fp32 with one thread, so
that runs can be repeated to the bit. Teachers with a head are trained once, in the first checkout, and used by both.
The table has the tensors of each student's folder: equal, or the largest difference. Exit status 1 if any differs.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from benchmarks.markdown import markdown_table
from benchmarks.texts import COMMON

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))  # its tiny models and labelled tasks

STEPS = 4
BATCH = 8
TEXTS = 1500  # of each language
TRAIN = {
    "train.max_steps": STEPS,
    "train.batch_size": BATCH,
    "train.device": "cpu",
    "train.precision": "fp32",
    "train.compile": False,
}


@dataclass(frozen=True)
class Case:
    """A run: a recipe below recipes/, its variant, and the folder of its teacher in the workspace.

    `student` is a folder there, or "teacher"; `task` is the kind of a labelled task, None for texts. `changes` come
    after the changes that every case needs.
    """

    name: str
    recipe: str
    teacher: str = "teacher"
    student: str = "student"
    variant: str | None = None
    task: str | None = None
    changes: dict[str, Any] = field(default_factory=dict)


# Of byte-level BPE: the library `tokenizers` trains other WordPiece and Unigram vocabularies in every process
HYBRID = {"kind": "hybrid", "target": "tr", "size": 290, "share": 20, "compose": "mean"}
# In order: the students of the first two are the teachers of later ones
CASES = (
    Case("task", "baselines/task", student="teacher", task="classification"),
    Case("task, pairs", "baselines/task", student="teacher", task="pair"),
    Case("quickstart", "quickstart", student="teacher", changes={"student.layers": [0, 2, 5]}),
    Case("redact", "redact"),
    Case("redact, own layers", "redact", student="teacher", changes={"student.layers": 2}),
    Case("redact_scores", "redact", variant="scores"),
    Case("talas", "talas"),
    Case(
        "offline_cosine", "offline_cosine", teacher="dense", student="teacher", changes={"student.vocabulary": HYBRID}
    ),
    Case("emo", "emo", teacher="task", student="other", task="classification"),
    Case("distillmoe", "distillmoe", teacher="task, pairs", student="other", task="pair"),
    *(
        Case(name, f"baselines/{name}", teacher="task", student="other", task="classification")
        for name in ("cdm", "dskd", "mined", "multilevel_ot", "uld")
    ),
    *(
        Case(name, f"baselines/{name}")
        for name in ("distilbert", "distilcse_ckd", "distillcse", "jasper", "minilm", "rkd", "simcse", "tinybert")
    ),
)


@dataclass(frozen=True)
class Result:
    """A case in both checkouts. `problem` names a run that failed; else `difference` is the largest of all tensors.

    `tensor` is where it is, or the first one that only one of both has, or whose shape differs: then `difference` is
    infinite.
    """

    case: str
    tensors: int = 0
    difference: float = 0.0
    tensor: str = ""
    problem: str = ""

    @property
    def is_equal(self) -> bool:
        """Whether both runs gave the same numbers."""
        return not self.problem and self.difference == 0

    def cell(self) -> str:
        """Return what the table says."""
        if self.problem:
            return self.problem
        return "equal" if self.is_equal else f"{self.difference:.2g} in {self.tensor}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="a checkout")
    parser.add_argument("after", type=Path, help="another one")
    parser.add_argument("--only", default="", help="names of cases, separated by semicolons")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--workspace", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    cases = chosen_cases(arguments.only)

    if arguments.workspace:  # in the process of one checkout
        run_cases(cases, arguments.before, arguments.workspace, arguments.workspace / arguments.after.name)
        return

    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder)
        write_inputs(workspace)
        problems = {}
        for name, checkout in (("before", arguments.before), ("after", arguments.after)):
            problems[name] = start(checkout.resolve(), name, workspace, arguments.only)
        results = [compare(case, workspace, problems) for case in cases]

    print(table(results))
    if arguments.json:
        rows = {result.case: result.cell() for result in results}
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if not all(result.is_equal for result in results):
        raise SystemExit(1)


def chosen_cases(only: str) -> list[Case]:
    """Return the cases to run, those whose students are their teachers included."""
    if not only:
        return list(CASES)
    names = set(only.split(";"))
    names |= {case.teacher for case in CASES if case.name in names}
    return [case for case in CASES if case.name in names]


# -- the inputs --------------------------------------------------------------------------------------------------------


def write_inputs(workspace: Path) -> None:
    """Write tiny models, texts of two languages and two labelled tasks into the workspace."""
    import architectures  # type: ignore[import-not-found]
    from labelled import write_task  # type: ignore[import-not-found]

    teacher = architectures.bert(workspace / "teacher-backbone", num_hidden_layers=6)
    student = architectures.bert(workspace / "student-backbone", seed=1, num_hidden_layers=3)
    other = architectures.roberta(workspace / "other-backbone", seed=2, num_hidden_layers=3)
    architectures.sentence_transformer(workspace / "teacher", teacher)
    dense = architectures.roberta(workspace / "dense-backbone", seed=3)
    architectures.sentence_transformer(workspace / "dense", dense, "mean dense:48 dense:32 normalize")
    architectures.sentence_transformer(workspace / "student", student)
    architectures.sentence_transformer(workspace / "other", other)

    for shift, language in enumerate(("en", "tr")):
        texts = [" ".join([COMMON[(i * 7 + j + shift) % len(COMMON)] for j in range(2 + i % 9)]) for i in range(TEXTS)]
        lines = [f"{text} {language} {number}\n" for number, text in enumerate(texts)]
        (workspace / f"{language}.txt").write_text("".join(lines), encoding="utf-8")
    for kind in ("classification", "pair"):
        write_task(workspace / f"{kind}.jsonl", kind, 10 * BATCH, 10)


def changes_of(case: Case, workspace: Path, output: Path) -> dict[str, Any]:
    """Return the changes that turn a recipe into its short run."""
    teacher = workspace / case.teacher
    if case.teacher in {other.name for other in CASES}:
        teacher = student_folder(workspace / "before" / case.teacher)
    changes: dict[str, Any] = {
        "teacher": {"model": str(teacher), "max_length": 32},
        "student.model": case.student if case.student == "teacher" else str(workspace / case.student),
        "student.layers": None,
        "student.max_length": 32,
        "cache.root": str(output / "cache"),
        "evaluation": {"parts": []},
        **TRAIN,
    }
    if case.task is None:
        names = ("en", "tr")
        changes["corpus.sources"] = [{"path": str(workspace / f"{name}.txt"), "language": name} for name in names]
    else:
        task = {"type": case.task, "path": str(workspace / f"{case.task}.jsonl"), "name": "marks"}
        changes["task"] = {**task, "encode": "joint"} if case.task == "pair" else task
    return changes | case.changes


# -- in the process of one checkout ------------------------------------------------------------------------------------


def start(checkout: Path, name: str, workspace: Path, only: str) -> dict[str, str]:
    """Run the cases with the package of a checkout; what went wrong by case."""
    line = [sys.executable, "-m", "benchmarks.same_weights", str(checkout), name]
    line += ["--only", only, "--workspace", str(workspace)]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{checkout / 'src'}{os.pathsep}{ROOT}",
        "DISTILVEC_CACHE": str(workspace / name / "cache"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }
    (workspace / name).mkdir()
    done = subprocess.run(line, cwd=workspace, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    if done.returncode:
        raise SystemExit(f"{checkout}: {done.stderr.decode(errors='replace')[-4000:]}")
    problems: dict[str, str] = json.loads((workspace / name / "problems.json").read_text(encoding="utf-8"))
    return problems


def run_cases(cases: list[Case], checkout: Path, workspace: Path, output: Path) -> None:
    """Run the cases one after the other; a failure is noted and the next one begins."""
    import distilvec

    if not Path(distilvec.__file__).is_relative_to(checkout):
        raise SystemExit(f"distilvec was imported from {distilvec.__file__}, not from {checkout}")
    torch.set_num_threads(1)
    name = "out" if "out" in inspect.signature(distilvec.run).parameters else "output_dir"
    problems = {}
    for case in cases:
        options: dict[str, Any] = {name: output / case.name}
        recipe = checkout / "recipes" / f"{case.recipe}.yaml"
        try:
            distilvec.run(recipe, case.variant, changes_of(case, workspace, output), **options)
        except Exception as error:
            problems[case.name] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    (output / "problems.json").write_text(json.dumps(problems), encoding="utf-8")


# -- the comparison ----------------------------------------------------------------------------------------------------


def compare(case: Case, workspace: Path, problems: dict[str, dict[str, str]]) -> Result:
    """Compare the tensors of a case's two students."""
    for name, failures in problems.items():
        if case.name in failures:
            return Result(case.name, problem=f"failed {name}: {failures[case.name]}")
    before = weights(student_folder(workspace / "before" / case.name))
    after = weights(student_folder(workspace / "after" / case.name))
    for tensor in sorted(before.keys() ^ after.keys()):
        return Result(case.name, len(before), float("inf"), tensor)

    largest, place = 0.0, ""
    for tensor, values in before.items():
        if values.shape != after[tensor].shape:
            return Result(case.name, len(before), float("inf"), tensor)
        difference = float((values.double() - after[tensor].double()).abs().max()) if values.numel() else 0.0
        if not difference <= largest:  # a difference that is not a number counts
            largest, place = difference, tensor
    return Result(case.name, len(before), largest, place)


def student_folder(run: Path) -> Path:
    """Return the folder of a run's student, of any version."""
    return next(path for path in (run / "student", *run.glob("**/student")) if path.is_dir())


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Return all tensors below a folder by file and name."""
    tensors = {}
    for path in sorted(folder.rglob("*.safetensors")):
        for name, values in load_file(path).items():
            tensors[f"{path.relative_to(folder)}: {name}"] = values
    return tensors


def table(results: list[Result]) -> str:
    """Return a line for each case, as Markdown."""
    rows = [[result.case, str(result.tensors), result.cell()] for result in results]
    equal = sum(result.is_equal for result in results)
    return f"{markdown_table(['run', 'tensors', 'weights'], rows, columns='lrl')}\n\n{equal} of {len(results)} equal"


if __name__ == "__main__":
    main()
