"""Names of methods, and methods in the user's own files: their local imports, loading, file and line in errors."""

from __future__ import annotations

import ast
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import itertools
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

from distilvec.core.errors import DistilvecError, about, first_line, nearest, system_failure
from distilvec.core.hashing import checksum, combine

PACKAGE = Path(__file__).parents[1]
_RELATIVE = "A relative path begins in the recipe's folder; on the command line in the current one."
_LOGITS = " A student's logits come from add_task_head(), a teacher's from a model with classes (distilvec finetune)."
_loaded: dict[Path, tuple[str, ModuleType]] = {}  # by method file: the hash it was loaded at, and the module
_sources: set[str] = set()  # all files of loaded method files


def method_names() -> list[str]:
    """Return the methods that ship with distilvec: the files in methods/."""
    return sorted(path.stem for path in (PACKAGE / "methods").glob("*.py") if path.stem != "__init__")


def check_method_name(name: str) -> None:
    """Refuse a name that is neither a method of the package nor a file."""
    if is_file(name):
        method_path(name)
        return
    names = method_names()
    if name not in names:
        is_here = f"{name}.py" in [path.name for path in Path.cwd().glob("*.py")]
        hint = f"; did you mean the file ./{name}.py?" if is_here else nearest(name, names) or "."
        problem = f"no method '{name}'{hint} Known: {', '.join(names)}, or a path to a .py file."
        raise DistilvecError(problem, key="method.name")


def is_file(name: str) -> bool:
    """Return whether method.name is a path, not the name of a method in the package."""
    return name.endswith(".py")


def short_name(name: str) -> str:
    """Return the name that tables and cards show: of a user's file its stem, without the folders of this machine.

    A file that is called like a method of the package keeps its ending.
    """
    if not is_file(name):
        return name
    path = Path(name)
    return path.name if path.stem in method_names() else path.stem


def method_path(name: str) -> Path:
    """Return the file that method.name leads to; DistilvecError if there is none."""
    path = Path(name).expanduser().absolute()
    if not path.is_file():
        raise DistilvecError(f"no such file: {path}.", _RELATIVE, key="method.name")
    return path


def method_code(name: str) -> str | None:
    """Return a hash of a method file and its local imports; None for a method of the package.

    Imports are found by reading the files, never by running them, so modules imported by a string and data files do
    not count. Errors: DistilvecError if there is no such file.
    """
    if not is_file(name):
        return None
    path = method_path(name)
    with about("method.name", path):
        return combine((module, checksum(file)) for module, file in method_files(path).items())


def method_files(path: Path) -> dict[str, Path]:
    """Return a method file and all local files that it imports, directly or not, sorted by name; packages whole."""
    files = {path.name: path}
    seen = {"distilvec", *sys.stdlib_module_names}
    unread = [path]
    while unread:
        modules = _imports(unread.pop()) - seen
        seen |= modules
        for module in sorted(modules):
            for name, file in _local(module, path.parent).items():
                if file != path:
                    files[name] = file
                    unread.append(file)
    return dict(sorted(files.items()))


def load_method_file(name: str) -> ModuleType:
    """Return the module of a method file, which may import modules of its folder. An unchanged file is loaded once.

    Errors: DistilvecError for a file that is missing or cannot be imported, with file and line.
    """
    path, code = method_path(name), method_code(name)
    assert code is not None
    if path in _loaded and _loaded[path][0] == code:
        return _loaded[path][1]
    files = method_files(path)
    _sources.update(map(str, files.values()))
    imported = {name.removesuffix(".py").split("/")[0] for name, file in files.items() if file != path}
    for module_name in list(sys.modules):
        if module_name.split(".")[0] in imported:
            del sys.modules[module_name]  # may be another method file's, or an earlier version of this one's
    loader = _SourceLoader(f"distilvec_method_{path.stem}", str(path))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None, "a loader of files has a specification"
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for the types of their fields
    finder = _SourceFinder(imported)
    sys.path.append(str(path.parent))
    sys.meta_path.insert(0, finder)
    try:
        with attribute_errors_to(path):
            loader.exec_module(module)
    finally:
        sys.meta_path.remove(finder)
        sys.path.remove(str(path.parent))
    _loaded[path] = code, module
    return module


def file_of(method: type) -> Path | None:
    """Return the method file that defines a class; None for a method of the package."""
    for path, (_, module) in _loaded.items():
        if any(value is method for value in vars(module).values()):
            return path
    return None


class _SourceLoader(importlib.machinery.SourceFileLoader):
    """Compiles a module's source each time.

    Python keeps byte code by the size of the source and the whole second of its change: code that changed twice within
    a second would count as the new version, and run as the old one.
    """

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


class _SourceFinder(importlib.abc.MetaPathFinder):
    """Finds the modules that lie beside a method file, to be compiled from their source."""

    def __init__(self, modules: set[str]) -> None:
        self.modules = modules

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.split(".")[0] not in self.modules:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _SourceLoader(fullname, spec.loader.path)
        return spec


@contextmanager
def attribute_errors_to(path: Path | None = None) -> Iterator[None]:
    """Turn errors raised in a method file into a DistilvecError with file and line.

    With `path`, an error raised elsewhere inside the block is attributed to that file too. Errors that
    `errors.system_failure` knows (no memory, for example) pass through.
    """
    try:
        yield
    except (DistilvecError, KeyboardInterrupt):
        raise
    except (Exception, SystemExit) as error:
        line = _line(error) or (str(path) if path is not None else None)
        if line is None or system_failure(error) is not None:
            raise
        problem = f"{line}: {type(error).__name__}: {first_line(error)}."
        if absent := _absent_outputs(error):
            problem += f" The models gave no {', '.join(absent)}."
            fix = "Declare it in student_outputs or teacher_outputs."
            if any(name.endswith(".logits") for name in absent):
                fix += _LOGITS
            raise DistilvecError(problem, fix, key="method.name") from error
        raise DistilvecError(problem, "Correct that file.", key="method.name") from error


def _absent_outputs(error: BaseException) -> list[str]:
    """Return the outputs, as a method's code calls them, that it reads where it failed and that have no value.

    Those are the names in the source of the functions that the error went through, from the method file on.
    """
    from distilvec.core.outputs import ModelOutputs  # it imports torch, and this module is read by every command

    absent = []
    for frame in _frames_from_the_file(error):
        source = _source_of(frame)
        for name, value in frame.f_locals.items():
            if isinstance(value, ModelOutputs):
                unset = [field.name for field in fields(value) if _is_absent(getattr(value, field.name), error)]
                absent += [f"{name}.{field}" for field in unset if re.search(rf"\b{name}\.{field}\b", source)]
    return list(dict.fromkeys(absent))


def _frames_from_the_file(error: BaseException) -> list[FrameType]:
    """Return the calls that an error went through, from the first one into a method file on."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return list(itertools.dropwhile(lambda frame: frame.f_code.co_filename not in _sources, frames))


def _source_of(frame: FrameType) -> str:
    """Return the source of a called function; empty where there is none."""
    try:
        return inspect.getsource(frame.f_code)
    except OSError:
        return ""


def _is_absent(output: Any, error: BaseException) -> bool:
    """Whether a model gave no such output; of outputs by name, none at all or not the one that was asked for."""
    if not isinstance(output, dict):
        return output is None
    missing_name = error.args[0] if isinstance(error, KeyError) and error.args else None
    return not output or (missing_name is not None and missing_name not in output)


def _line(error: BaseException) -> str | None:
    """Return the last line of a method file that an error went through."""
    if isinstance(error, SyntaxError) and error.filename in _sources:
        return f"{error.filename}, line {error.lineno}"
    lines = [line for line in traceback.extract_tb(error.__traceback__) if line.filename in _sources]
    return f"{lines[-1].filename}, line {lines[-1].lineno}" if lines else None


def _imports(path: Path) -> set[str]:
    """Return the top names of all modules that a file imports; none if the file is not valid Python."""
    try:
        nodes = list(ast.walk(ast.parse(path.read_bytes())))
    except (SyntaxError, ValueError, RecursionError):
        return set()
    modules = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    modules += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level]
    return {name.split(".")[0] for name in modules}


def _local(top: str, folder: Path) -> dict[str, Path]:
    """Return the files of a module that a method in `folder` would import; none if it is installed or not found."""
    importlib.invalidate_caches()
    spec = importlib.machinery.PathFinder.find_spec(top, [*sys.path, str(folder)])
    if spec is None:
        return {}
    if spec.submodule_search_locations is None:
        origin = Path(spec.origin or "")
        return {f"{top}.py": origin} if origin.is_file() and not _installed(origin) else {}
    roots = [root for root in map(Path, spec.submodule_search_locations) if not _installed(root)]
    return {f"{top}/{file.relative_to(root).as_posix()}": file for root in roots for file in root.rglob("*.py")}


def _installed(path: Path) -> bool:
    """Return whether a module belongs to an installed package, or to this one."""
    path = path.resolve()
    packages = {"site-packages", "dist-packages"} & {*path.parts}
    return bool(packages) or path.is_relative_to(PACKAGE) or any(path.parent.glob("*.dist-info"))
