"""The JavaScript libraries of a demo page: pinned files of npm packages, or a copy that the user has."""

from __future__ import annotations

import base64
import gzip
import hashlib
import shlex
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distilvec.core.artifacts import ArtifactStore, open_or_build
from distilvec.core.errors import DistilvecError
from distilvec.core.hashing import combine
from distilvec.core.log import log

_COPY = "or name a folder that has them with --runtime"
_SECONDS = 600  # for one package


@dataclass(frozen=True)
class Package:
    """An npm package: version, integrity as in npm's lock files, and the files that a page needs."""

    name: str
    version: str
    integrity: str
    files: tuple[str, ...]

    @property
    def spec(self) -> str:
        """Return name and version, as `npm pack` takes them."""
        return f"{self.name}@{self.version}"


PACKAGES = (  # onnxruntime-web is the version that this version of transformers.js depends on
    Package(
        "@huggingface/transformers",
        "4.3.1",
        "sha512-5+voSeUCFK6PCKlY15dPhNOKq3/zOTxDN7oC+Wy9dFb1QZ0TSQomZRRy7URRK8YRuUoE9fGMQTTPC5d/pWBJhA==",
        ("transformers.web.min.js",),
    ),
    Package(
        "onnxruntime-web",
        "1.31.0-dev.20260914-8d85527a0",
        "sha512-Iy7rtadoBgxS/LLvDr3QW38DB1PNXRnr0GJMcL0TAt7c9qjgVQl83UlGCVyeAnK2InpmW8Uc3PL8XIuqtDeF6g==",
        ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm"),
    ),
)


def find_runtime(store: ArtifactStore, copy: Path | None = None) -> list[Path]:
    """Return the files of PACKAGES: of `copy`, else of the cache, which `npm pack` fills the first time.

    `copy` has the files themselves (as the `runtime` of another demo), or the `node_modules` of npm install.
    Errors: DistilvecError for a copy without a file, and if npm is missing, fails, or gives other bytes.
    """
    if copy is not None:
        return [_in_copy(copy, package, name) for package in PACKAGES for name in package.files]
    key = combine((package.spec, package.integrity) for package in PACKAGES)

    def load(folder: Path) -> list[Path]:
        return [folder / name for package in PACKAGES for name in package.files]

    folder = store.folder("runtimes", f"web-{key[:16]}")
    return open_or_build(folder, key, "JavaScript runtime", 100_000_000, _fetch_all, load)


def packed(path: Path) -> bytes:
    """Return a file's bytes in gzip, the same for the same content."""
    return gzip.compress(path.read_bytes(), mtime=0)


def _in_copy(copy: Path, package: Package, name: str) -> Path:
    """Find a file of a package in a copy, packed or not."""
    places = [copy / name, copy / f"{name}.gz", copy / "node_modules" / package.name / "dist" / name]
    for place in places:
        if place.is_file():
            return place
    command = shlex.join(["npm", "install", "--ignore-scripts", "--prefix", str(copy), PACKAGES[0].spec])
    raise DistilvecError(
        f"{copy} has no {name} of {package.spec}, nor a node_modules with it.", f"Fill it: {command}", key="--runtime"
    )


def _fetch_all(folder: Path) -> dict[str, Any]:
    """Fill a folder with the files of every package."""
    npm = shutil.which("npm")
    if npm is None:
        names = " and ".join(package.spec for package in PACKAGES)
        raise DistilvecError(f"npm was not found, which fetches {names}.", f"Install Node.js, {_COPY}.", key="demo")
    for package in PACKAGES:
        log(f"fetching {package.spec} with npm, once")
        _fetch(npm, package, folder)
    return {"packages": [package.spec for package in PACKAGES]}


def _fetch(npm: str, package: Package, folder: Path) -> None:
    """Pack one package with npm, compare its bytes with the pinned ones, and take its files out."""
    command = [npm, "pack", package.spec, "--loglevel=error", "--ignore-scripts", "--prefer-offline"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, encoding="utf-8", timeout=_SECONDS)
        problem = "" if done.returncode == 0 else f"exit status {done.returncode} {done.stderr.strip()[-200:]}"
    except subprocess.TimeoutExpired:
        problem = f"no end after {_SECONDS} s"
    archive = next(iter(folder.glob("*.tgz")), None)
    if problem or archive is None:
        raise DistilvecError(f"npm pack {package.spec} failed: {problem}.", f"Check the network, {_COPY}.", key="demo")
    found = "sha512-" + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if found != package.integrity:
        raise DistilvecError(
            f"npm gave other bytes for {package.spec} than expected: {found}.",
            f"Check npm's registry, {_COPY}.",
            key="demo",
        )
    with tarfile.open(archive) as content:
        for name in package.files:
            member = content.extractfile(f"package/dist/{name}")
            assert member is not None, f"{package.spec} has no {name}"  # the bytes are the pinned ones
            (folder / name).write_bytes(member.read())
    archive.unlink()
