"""`distilvec doctor`: whether this machine can do the work, and how fast. Nothing is installed or left behind."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import typer

from distilvec.cli.options import JsonFile, check_outputs
from distilvec.cli.output import write_result
from distilvec.core.errors import first_line
from distilvec.core.extras import PACKAGES, install_command, missing_packages
from distilvec.core.files import folder_bytes, user_cache
from distilvec.teachers.indexes.stores import STORES

CheckState = Literal["ok", "note", "broken"]
GIB = 2**30
FEWEST_BYTES = 1 * GIB  # below this hardly any run fits: weights, checkpoint, cache
FEW_BYTES = 10 * GIB
LITTLE_MEMORY = 2 * GIB
SECONDS = 3.0  # for an answer of the hub
ENVIRONMENT = ("OMP_NUM_THREADS", "HF_HOME", "HF_HUB_OFFLINE", "HF_ENDPOINT", "DISTILVEC_CACHE", "CUDA_VISIBLE_DEVICES")


@dataclass(frozen=True)
class Check:
    """One line of the diagnosis. A "note" costs speed or a feature; with "broken" no run works until `fix` is done."""

    name: str
    value: str
    state: CheckState = "ok"
    fix: str = ""


def diagnose() -> list[Check]:
    """Return all checks, in the order in which they are shown; a check that fails itself is broken."""
    parts: dict[str, Callable[[], list[Check]]] = {
        "packages": check_packages,
        "processor": check_processor,
        "gpu": check_gpu,
        "memory": check_memory,
        "cache": check_cache,
        "temporary files": check_temporary_folder,
        "extras": check_extras,
        "hub": check_hub,
        "environment": list_environment,
    }
    checks = []
    for name, part in parts.items():
        try:
            checks += part()
        except Exception as error:  # a broken installation fails in ways that cannot be listed
            problem = f"{type(error).__name__}: {first_line(error)}"
            checks.append(Check(name, problem, "broken", "Install distilvec again in a new environment."))
    return checks


def check_packages() -> list[Check]:
    """Compare the installed versions with those that distilvec requires."""
    import platform

    import sentence_transformers
    import torch
    import transformers

    from distilvec import __version__

    checks = [
        Check("distilvec", f"{__version__}, Python {platform.python_version()}, {Path(__file__).parents[1]}"),
        Check("torch", torch.__version__),
        Check("transformers", f"{transformers.__version__}, sentence-transformers {sentence_transformers.__version__}"),
    ]
    problems = wrong_versions()
    if problems:
        fix = "Install distilvec again: pip installs the versions that it needs."
        checks.append(Check("requirements", "; ".join(problems), "broken", fix))
    return checks


def wrong_versions() -> list[str]:
    """Return what is missing or has another version than distilvec's installed metadata asks for."""
    import importlib.metadata

    from packaging.requirements import Requirement

    try:
        lines = importlib.metadata.requires("distilvec") or []
    except importlib.metadata.PackageNotFoundError:  # run from a checkout that was never installed
        return []
    problems = []
    for requirement in map(Requirement, lines):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            problems.append(f"{requirement.name} is missing")
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            problems.append(f"{requirement.name} is {version}, needed is {requirement.specifier}")
    return problems


def check_processor() -> list[Check]:
    """Describe the processor, what speeds up matrix products on it, and the threads that torch uses."""
    import torch

    from distilvec.core.device import fast_bf16
    from distilvec.evaluation.memory import machine_info

    machine = machine_info()
    bf16 = "bf16 in hardware" if fast_bf16("cpu") else "no bf16: fp32 is faster"
    checks = [
        Check("processor", f"{machine['processor']}, {machine['system']}"),
        Check("instructions", f"{torch.backends.cpu.get_cpu_capability()}, {bf16}"),
    ]
    threads, cores = machine["threads"], machine["cores"]
    value = f"{threads} of {cores} cores"
    if cores and threads < cores // 2:
        fix = "Unset OMP_NUM_THREADS, or set it to the number of cores."
        return [*checks, Check("threads", value, "note", fix)]
    return [*checks, Check("threads", value)]


def check_gpu() -> list[Check]:
    """Describe every GPU; a machine without one works, and trains more slowly."""
    import torch

    from distilvec.core.device import fast_bf16

    if torch.cuda.is_available():
        bf16 = "bf16" if fast_bf16("cuda") else "no bf16"
        names = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
        return [Check("gpu", f"{gpu.name}, {gpu.total_memory / GIB:.0f} GB, {bf16}") for gpu in names]
    if torch.backends.mps.is_available():
        return [Check("gpu", "Apple GPU (mps)")]
    if shutil.which("nvidia-smi") is not None and torch.version.cuda is None:
        fix = "Install a CUDA build of torch: https://pytorch.org/get-started/locally."
        return [Check("gpu", "there is an NVIDIA driver, and torch is built for the CPU", "note", fix)]
    return [Check("gpu", "none: everything runs on the processor")]


def check_memory() -> list[Check]:
    """Show the memory of the machine and what is free of it."""
    import psutil

    memory = psutil.virtual_memory()
    value = f"{memory.available / GIB:.1f} of {memory.total / GIB:.1f} GB free"
    if memory.available < LITTLE_MEMORY:
        return [Check("memory", value, "note", "Close other programs, or set a smaller train.batch_size.")]
    return [Check("memory", value)]


def check_cache() -> list[Check]:
    """Show the folder that runs share with its size, and the free space of its disk; it has to be writable."""
    folder = user_cache()
    size = f"{folder_bytes(folder) / GIB:.1f} GB" if folder.is_dir() else "not made yet"
    try:
        with tempfile.TemporaryFile(dir=existing_folder(folder)):
            pass
    except OSError as error:
        fix = "Make the folder writable, or set DISTILVEC_CACHE to another one."
        return [Check("cache", f"{folder}: {first_line(error)}", "broken", fix)]

    free = shutil.disk_usage(existing_folder(folder)).free
    disk = f"{free / GIB:.1f} GB free for the cache"
    state: CheckState = "ok"
    if free < FEWEST_BYTES:
        state = "broken"
    elif free < FEW_BYTES:
        state = "note"
    fix = "" if state == "ok" else "Free some space (docs/run_folder.md lists what may go), or move DISTILVEC_CACHE."
    return [Check("cache", f"{folder}, {size}"), Check("disk", disk, state, fix)]


def check_temporary_folder() -> list[Check]:
    """Check that temporary files can be written: exports and the measurement of memory need them."""
    try:
        folder = Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        return [Check("temporary files", first_line(error), "broken", "Set TMPDIR to a folder that can be written.")]
    return [Check("temporary files", str(folder))]


def existing_folder(path: Path) -> Path:
    """Return the path, or the nearest of its parents that exists."""
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())


def check_extras() -> list[Check]:
    """List the optional packages that are installed, and for the others the command that installs them."""
    required = PACKAGES | {store.name: (store.package,) for store in STORES if store.package}
    missing = {extra: missing_packages(needed) for extra, needed in required.items()}
    installed = [extra for extra, packages in missing.items() if not packages]
    checks = [Check("extras", ", ".join(installed) or "none")]
    for extra, packages in missing.items():
        if packages:
            checks.append(Check(f"extra {extra}", "not installed", "note", install_command(extra)))
    return checks


def check_hub() -> list[Check]:
    """Ask the hub for an answer; a machine that is offline works with models in folders and in the hub's cache."""
    from huggingface_hub import constants, get_session

    cached = f"Models in folders and in {constants.HF_HUB_CACHE} can be used."
    if constants.HF_HUB_OFFLINE:
        return [Check("hub", "offline, by HF_HUB_OFFLINE", "note", cached)]
    try:
        status = get_session().head(constants.ENDPOINT, timeout=SECONDS).status_code
    except Exception as error:  # networks fail in many ways, and none of them is an error here
        problem = f"{constants.ENDPOINT} cannot be reached ({type(error).__name__})"
        return [Check("hub", problem, "note", cached)]
    return [Check("hub", f"{constants.ENDPOINT} answers ({status})")]


def list_environment() -> list[Check]:
    """Show the variables that change where files go or how fast the work is, if any is set."""
    variables = [f"{name}={os.environ[name]}" for name in ENVIRONMENT if name in os.environ]
    return [Check("environment", ", ".join(variables))] if variables else []


def doctor(json_file: JsonFile = None) -> None:
    """Check this machine for what a run needs.

    Versions, processor, GPU, memory, disk, cache, optional packages, the hub. The exit status is 1 if something that
    every run needs is broken. Notes cost only speed or a feature.
    """
    check_outputs([("--json", json_file)])

    from dataclasses import asdict

    from distilvec.cli.terminal import print_result, show_table
    from distilvec.verbs.doctor import diagnose

    checks = diagnose()
    broken = [check for check in checks if check.state == "broken"]
    write_result(json_file, {"healthy": not broken, "checks": [asdict(check) for check in checks]})

    show_table(["", "this machine"], [[check.name, check.value] for check in checks])
    noted = [check for check in checks if check.state == "note"]
    if noted:
        print_result()
    for check in noted:
        print_result(f"{check.name}: {check.fix}")
    for check in broken:
        print_result(f"distilvec: [{check.name}] {check.value}. {check.fix}", error=True)
    if broken:
        raise typer.Exit(1)
