"""The paths of a run folder: what a user looks at lies in the folder itself, everything else in its `details/`.

A sweep's folder has the same form: its page is `comparison.html`, and every run of the sweep has a folder in it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from distilvec.core.errors import DistilvecError

FORMAT = 3  # raised when a file of the folder moves, or is read in another way
DETAILS = "details"


@dataclass(frozen=True)
class TrainingFolder:
    """The files of one stage of a training."""

    path: Path

    @property
    def metrics(self) -> Path:
        """One JSON line for each logged step."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoint(self) -> Path:
        """The file from which an interrupted training goes on."""
        return self.path / "checkpoint" / "state.safetensors"

    @property
    def length(self) -> Path:
        """The number of steps of a training whose recipe leaves its length open."""
        return self.checkpoint.with_name("length.json")


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run or a sweep. Nothing has to exist; the properties are paths."""

    path: Path

    @classmethod
    def of_student(cls, model: Path) -> RunFolder | None:
        """Return the run folder whose `student` or `last` has this path, by the names alone; None for other paths."""
        for run in (cls(model.parent), cls(model.parent.parent)):
            if model in (run.student, run.last):
                return run
        return None

    # -- what a user looks at ----------------------------------------------------------------------------------------

    @property
    def readme(self) -> Path:
        """What is in the folder, in short."""
        return self.path / "README.txt"

    @property
    def report_page(self) -> Path:
        """The report for people."""
        return self.path / "report.html"

    @property
    def comparison_page(self) -> Path:
        """The page of a sweep."""
        return self.path / "comparison.html"

    @property
    def recipe(self) -> Path:
        """The recipe of the run, resolved."""
        return self.path / "recipe.yaml"

    @property
    def student(self) -> Path:
        """The model that ships: the best by validation."""
        return self.path / "student"

    @property
    def students(self) -> Path:
        """Models from along the way (train.keep_students), each in the folder of its step."""
        return self.path / "students"

    @property
    def saved_students(self) -> dict[int, Path]:
        """The folders in `students` by step, in order."""
        folders = {}
        for path in self.students.glob("step-*/"):
            if match := re.fullmatch(r"step-([0-9]+)", path.name):
                folders[int(match[1])] = path
        return dict(sorted(folders.items()))

    @property
    def projected(self) -> Path:
        """What `distilvec export --to projected` writes."""
        return self.path / "projected"

    @property
    def router(self) -> Path:
        """What `distilvec export --to router` writes."""
        return self.path / "router"

    # -- whose folder it is ------------------------------------------------------------------------------------------

    @property
    def details(self) -> Path:
        """The folder of everything below."""
        return self.path / DETAILS

    @property
    def marker(self) -> Path:
        """What makes the folder ours: format, id, time. A folder with other files and without it is refused."""
        return self.details / "marker.json"

    @property
    def lock(self) -> Path:
        """Held by the process that writes into the folder."""
        return self.details / "lock"

    # -- the training ------------------------------------------------------------------------------------------------

    @property
    def fingerprint(self) -> Path:
        """Changes when anything does that changes the trained weights."""
        return self.details / "train.fingerprint"

    @property
    def start(self) -> Path:
        """Weights that were fitted before the training (pipeline/start.py)."""
        return self.details / "start.safetensors"

    @property
    def vocabulary(self) -> Path:
        """The tokenizer that was chosen for the student."""
        return self.details / "vocabulary"

    @property
    def training(self) -> TrainingFolder:
        """The files of the last stage of the training, or of the only one."""
        return TrainingFolder(self.details)

    @property
    def metrics(self) -> Path:
        """The metrics of the last stage, or of the only one."""
        return self.training.metrics

    @property
    def checkpoint(self) -> Path:
        """The checkpoint of the last stage, or of the only one."""
        return self.training.checkpoint

    def stage(self, name: str) -> TrainingFolder:
        """Return where a stage before the last one writes."""
        return TrainingFolder(self.details / "stages" / name)

    @property
    def earlier_stages(self) -> list[TrainingFolder]:
        """The stages before the last one that have begun, by name."""
        return [TrainingFolder(path) for path in sorted((self.details / "stages").glob("*/"))]

    @property
    def last(self) -> Path:
        """The student of the last step."""
        return self.details / "last"

    @property
    def training_result(self) -> Path:
        """The steps of every stage, written when the training is finished."""
        return self.details / "training.json"

    def model(self, name: str) -> Path:
        """Return the folder of a model that a training saves: "student", "last" or "students/step-N"."""
        return self.last if name == "last" else self.path / name

    def objective(self, name: str) -> Path:
        """Return the file of the objective's parameters that were trained with such a model; it does not ship."""
        return self.details / f"{name}.objective.safetensors"

    # -- the results -------------------------------------------------------------------------------------------------

    @property
    def record(self) -> Path:
        """How the student was made, and its scores; with this file a run is finished."""
        return self.details / "record.json"

    @property
    def report(self) -> Path:
        """All numbers of the report."""
        return self.details / "report.json"

    @property
    def samples(self) -> Path:
        """What the scores were computed from, row by row."""
        return self.details / "samples.npz"

    @property
    def figures(self) -> Path:
        """The pictures of the page as files."""
        return self.details / "figures"

    @property
    def sweep(self) -> Path:
        """The runs of a sweep. Only a sweep's folder has this file."""
        return self.details / "sweep.json"

    # -- of `distilvec classify` -------------------------------------------------------------------------------------

    @property
    def labels(self) -> Path:
        """The labelled rows of each split."""
        return self.details / "data"

    @property
    def teacher(self) -> RunFolder:
        """The run in which the teacher learns the labels."""
        return RunFolder(self.details / "teacher")

    # ----------------------------------------------------------------------------------------------------------------

    def make(self) -> None:
        """Make the folder and its `details`."""
        self.details.mkdir(parents=True, exist_ok=True)

    def is_ours(self) -> bool:
        """Whether the folder has the marker of a run or a sweep, of any format."""
        marker = self._read_marker()
        return re.fullmatch(r"[0-9a-f]{32}", str(marker.get("id"))) is not None

    def check_format(self, key: str = "run folder") -> None:
        """DistilvecError with `key` for a folder that another version of distilvec wrote."""
        if not self.is_ours():
            return
        number = self._read_marker().get("format")
        if number != FORMAT:
            raise DistilvecError(
                f"{self.path} was written by another version of distilvec: its format is {number}, this version reads "
                f"{FORMAT}.",
                f"Use that version, or run {self.recipe} again into another folder.",
                key=key,
            )

    def _read_marker(self) -> dict[str, object]:
        """Read the marker; {} where there is none, or something else."""
        try:
            content = json.loads(self.marker.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}
