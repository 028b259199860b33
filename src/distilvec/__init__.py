"""distilvec: distil large text-embedding models into small ones people can ship.

    run = distilvec.distill("all-MiniLM-L6-v2", "documents.txt", size="5M")
    run.student.encode(["a text"])

`distilvec.api` has the functions. Write a method of your own with `Objective`, `OutputSpec` and `ModelOutputs`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distilvec.api import cache_teacher as cache_teacher
    from distilvec.api import check as check
    from distilvec.api import classify as classify
    from distilvec.api import compare as compare
    from distilvec.api import distill as distill
    from distilvec.api import evaluate as evaluate
    from distilvec.api import export as export
    from distilvec.api import load as load
    from distilvec.api import load_recipe as load_recipe
    from distilvec.api import plan as plan
    from distilvec.api import predict as predict
    from distilvec.api import result as result
    from distilvec.api import run as run
    from distilvec.api import runs as runs
    from distilvec.api import transplant as transplant
    from distilvec.core.objective import Objective as Objective
    from distilvec.core.outputs import ModelOutputs as ModelOutputs
    from distilvec.core.outputs import OutputSpec as OutputSpec
    from distilvec.students.task_head import TaskModel as TaskModel

__version__ = "0.1.0"
_API = (
    "cache_teacher", "check", "classify", "compare", "distill", "evaluate", "export", "load_recipe", "plan",
    "predict", "result", "run", "runs", "transplant",
)  # fmt: skip
_MODULES = {"load": "models.load", "ModelOutputs": "core.outputs", "OutputSpec": "core.outputs"}
_MODULES |= {"Objective": "core.objective", "TaskModel": "students.task_head", **dict.fromkeys(_API, "api")}

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first used: torch is not loaded before."""
    if name not in _MODULES:
        raise AttributeError(f"module 'distilvec' has no attribute '{name}'")
    return getattr(import_module(f"distilvec.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
