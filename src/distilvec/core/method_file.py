"""Methods in files of the user's own: what they consist of, how they are loaded, and how their errors are told."""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
import importlib.util
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from distilvec.core.errors import DistilvecError, explain, explained, first_line
from distilvec.core.hashing import checksum, combine

OURS = Path(__file__).parents[1]
_loaded: dict[Path, tuple[str, ModuleType]] = {}  # by method file: the hash it was loaded at, and the module
_blamed: set[str] = set()  # the files that these modules consist of


def is_file(name: str) -> bool:
    """Whether a recipe's method.name is a path, not the name of a method in the package."""
    return name.endswith(".py")


def method_code(name: str) -> str | None:
    """A hash of a method file and of all that it imports from outside the installed packages; None for the package's own methods.

    Imports are found by reading the files, never by running them: a module that a string names, or a data file, does not count.
    Errors: DistilvecError where there is no such file.
    """
    if not is_file(name):
        return None
    path = method_path(name)
    with explained("method.name", path):
        return combine((module, checksum(file)) for module, file in method_files(path).items())


def method_path(name: str) -> Path:
    """The file that method.name leads to; DistilvecError where there is none."""
    path = Path(name).expanduser().absolute()
    if not path.is_file():
        raise DistilvecError(f"[method.name] no such file: {path}. Relative paths start where the command runs.")
    return path


def method_files(path: Path) -> dict[str, Path]:
    """A method file and, transitively, its local imports, by name in order; of a package all its .py files."""
    found, seen, waiting = {path.name: path}, {"distilvec", *sys.stdlib_module_names}, [path]
    while waiting:
        tops = _imports(waiting.pop()) - seen
        seen |= tops
        files = {name: file for top in sorted(tops) for name, file in _local(top, path.parent).items() if file != path}
        waiting += files.values()
        found |= files
    return dict(sorted(found.items()))


def load_method_file(name: str) -> ModuleType:
    """The module of a method file, which may import modules of its folder. A file that has not changed is loaded once.

    Errors: DistilvecError for a file that is missing or cannot be imported; it names file and line.
    """
    path, code = method_path(name), method_code(name)
    assert code is not None
    if path in _loaded and _loaded[path][0] == code:
        return _loaded[path][1]
    files = method_files(path)
    _blamed.update(map(str, files.values()))
    imported = {name.removesuffix(".py").split("/")[0] for name, file in files.items() if file != path}
    for known in [known for known in sys.modules if known.split(".")[0] in imported]:
        del sys.modules[known]  # another method file's module of that name, or an earlier state of this one's
    spec = importlib.util.spec_from_file_location(f"distilvec_method_{path.stem}", path)
    assert spec is not None and spec.loader is not None, "a file that ends in .py has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.path.append(str(path.parent))
    try:
        with blamed(path):
            spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    _loaded[path] = code, module
    return module


@contextmanager
def blamed(path: Path | None = None) -> Iterator[None]:
    """An error inside that comes from a method file is a DistilvecError which names the file and the line.

    With `path` every error does, whether or not that file is where it came from. What `errors.explain` knows (no memory, say)
    is left to it.
    """
    try:
        yield
    except (DistilvecError, KeyboardInterrupt):
        raise
    except (Exception, SystemExit) as error:
        place = _place(error) or (str(path) if path is not None else None)
        if place is None or explain(error) is not None:
            raise
        raise DistilvecError(
            f"[method.name] {place}: {type(error).__name__}: {first_line(error).rstrip('.')}. Correct that file."
        ) from error


def _place(error: BaseException) -> str | None:
    """The last line of a method file that an error went through."""
    if isinstance(error, SyntaxError) and error.filename in _blamed:
        return f"{error.filename}, line {error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in _blamed]
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else None


def _imports(path: Path) -> set[str]:
    """The first names of all modules that a file imports; none where it cannot be read as Python, which loading it will tell."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError):
        return set()
    found = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    found |= {
        node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module and not node.level
    }
    return {name.split(".")[0] for name in found}


def _local(top: str, folder: Path) -> dict[str, Path]:
    """The files of a module or package as Python would find it for a method in `folder`; none where it is installed or not found."""
    importlib.invalidate_caches()
    spec = importlib.machinery.PathFinder.find_spec(top, [*sys.path, str(folder)])
    if spec is None:
        return {}
    if spec.submodule_search_locations is None:
        origin = Path(spec.origin or "")
        return {f"{top}.py": origin} if origin.is_file() and not _installed(origin) else {}
    folders = [place for place in map(Path, spec.submodule_search_locations) if not _installed(place)]
    return {f"{top}/{file.relative_to(place).as_posix()}": file for place in folders for file in place.rglob("*.py")}


def _installed(place: Path) -> bool:
    """Whether a module lies among installed packages, or in this one."""
    place = place.resolve()
    return (
        bool({"site-packages", "dist-packages"} & {*place.parts})
        or place.is_relative_to(OURS)
        or any(place.parent.glob("*.dist-info"))
    )
