"""A static page that runs a run's student in the browser, and searches documents that the teacher embedded.

    index.html  app.js  engine.js  demo.css  page.css    the page (report/demo/)
    demo.json                       names, the query prompt, the prepared queries
    documents.json                  the first characters of every document
    vectors.bin                     the teacher's vectors of documents, then of prepared queries, at length 1 where
                                    they are compared by cosine: float32 [rows] scales, then int8 [rows, dim]
    model/                          the student as transformers.js reads it, int8
    runtime/                        transformers.js and onnxruntime-web

All requests of the page stay in this folder, so any server of files will do, without a network.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import shlex
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer

from distilvec.config.schema import Recipe, Role
from distilvec.core.artifacts import ArtifactStore, open_or_build
from distilvec.core.errors import DistilvecError, about, set_by
from distilvec.core.escape import shortened
from distilvec.core.files import check_output_folder, remove, remove_scratch, scratch, write_json
from distilvec.core.hashing import combine
from distilvec.core.info import UNLIMITED
from distilvec.core.log import log
from distilvec.core.similarity import Similarity
from distilvec.core.vectors import Array
from distilvec.evaluation.evaluator import EmbeddingCache
from distilvec.evaluation.parity import sample_task
from distilvec.evaluation.tasks import RetrievalTask
from distilvec.formats.replace import real
from distilvec.models.parts import max_length
from distilvec.pipeline.finished_run import FinishedRun
from distilvec.pipeline.resolve import cache_root, with_local_tables
from distilvec.pipeline.student import load_saved
from distilvec.pipeline.texts import load_tasks
from distilvec.report.record import RunRecord
from distilvec.teachers.open import open_teacher
from distilvec.verbs.export.export import FORMS, export_model
from distilvec.verbs.transplant.transplant import readers_by_language

ABOUT = "demo.json"
QUERIES, DOCUMENTS = 50, 2000
PARTS = ("model", "runtime", "documents", "page")
_SHOWN = 300  # characters of a document
_MODEL_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True)
class DemoTexts:
    """Documents and prepared queries; `role` chooses the prompt of queries."""

    origin: str
    role: Role
    documents: list[str]
    queries: list[str]


def write_demo(
    run: Path, out: Path, documents: int = DOCUMENTS, texts: Path | None = None, queries: Path | None = None,
    runtime: Path | None = None,
) -> dict[str, float]:  # fmt: skip
    """Write the page of a finished run as the folder `out`, and return the megabytes of its PARTS.

    Args:
        documents: At most this many; all that are relevant for the prepared queries come first.
        texts: A file of documents; by default those of the run's first retrieval task.
        queries: A file of prepared queries; by default those of the task, and none with `texts`.
        runtime: A folder with the JavaScript libraries; by default npm fetches them into the cache.
    """
    finished = FinishedRun.open(run, key="demo")
    model = _demo_model_folder(finished)
    with about("--out", out):
        check_output_folder(out)
    if out.is_dir() and any(out.iterdir()) and not (out / ABOUT).is_file():
        raise DistilvecError(f"{out} exists and is no demo.", "Choose a new or empty folder.", key="--out")
    store = ArtifactStore(cache_root(finished.recipe))
    recipe = with_local_tables(finished.recipe, store.root)
    demo_texts = _demo_texts(recipe, store, documents, texts, queries)
    libraries = find_runtime(store, runtime)
    weights = _int8(model)
    scales, rows = quantized(*_embed_documents(recipe, demo_texts))
    target = real(out)
    remove_scratch(target.parent)
    folder = scratch(target)
    try:
        with about("--out", out):
            _write_page(folder, libraries)
            onnx = folder / "model" / "onnx"
            onnx.mkdir(parents=True)
            shutil.copyfile(weights, onnx / weights.name)
            for name in _MODEL_FILES:
                shutil.copyfile(model / name, folder / "model" / name)
            (folder / "vectors.bin").write_bytes(scales.astype("<f4").tobytes() + rows.tobytes())
            beginnings = [shortened(" ".join(text.split()), _SHOWN) for text in demo_texts.documents]
            write_json(folder / "documents.json", beginnings)
            write_json(folder / ABOUT, _about(demo_texts, finished.record, load_saved(model)))
            sizes = megabytes(folder)
            _move_parts(target, folder)
    finally:
        remove(folder)
    return sizes


def _move_parts(target: Path, folder: Path) -> None:
    """Move a demo's files into a folder; in that of an earlier demo they replace those of the same names alone.

    ABOUT comes last: a folder without it is refused as no demo's.
    """
    if not (target / ABOUT).is_file():
        remove(target)  # an empty folder
        folder.rename(target)
        return
    for path in sorted(folder.iterdir(), key=lambda path: path.name == ABOUT):
        remove(target / path.name)
        path.rename(target / path.name)


def megabytes(folder: Path) -> dict[str, float]:
    """Return the size of a demo's parts in 10^6 bytes."""
    sizes = dict.fromkeys(PARTS, 0.0)
    for path in folder.rglob("*"):
        name = path.relative_to(folder).parts[0]
        if name in ("documents.json", "vectors.bin"):
            name = "documents"
        elif name not in PARTS:
            name = "page"
        if path.is_file():
            sizes[name] += path.stat().st_size / 1e6
    return sizes


def quantized(vectors: Array, similarity: Similarity = "cosine") -> tuple[Array, Array]:
    """Return scales, float32 [rows], and int8 [rows, dim]: their products are the rounded vectors.

    For a search by cosine these have length 1, for one by inner product their own.
    """
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    rows = np.rint(vectors * (127 / np.where(largest > 0, largest, 1))).astype(np.int8)
    if similarity == "dot":
        return (largest[:, 0] / 127).astype(np.float32), rows
    lengths = np.linalg.norm(rows.astype(np.float32), axis=1)
    return (1 / np.maximum(lengths, 1)).astype(np.float32), rows


def _demo_model_folder(run: FinishedRun) -> Path:
    """Return the folder of the run's model whose vectors are in the teacher's space."""
    model = run.student_folder if run.record.teacher_compatible else run.files.projected
    if not model.is_dir():
        command = shlex.join(["distilvec", "export", str(run.student_folder), "--to", "projected"])
        raise DistilvecError(
            f"the student of {run.folder} is not in its teacher's space, so it cannot search the teacher's vectors.",
            f"Write it behind its projection: {command}.",
            key="demo",
        )
    missing = [name for name in _MODEL_FILES if not (model / name).is_file()]
    if missing:
        raise DistilvecError(
            f"{model} has no {', '.join(missing)}, which transformers.js reads.", "Save it again.", key="demo"
        )
    return model


def _int8(model: Path) -> Path:
    """Return the model's int8 file; export it if it is absent, or older than the weights."""
    path = model / FORMS["onnx-int8"].file
    weights = max((file.stat().st_mtime for file in model.rglob("*.safetensors")), default=0.0)
    if not path.is_file() or path.stat().st_mtime < weights:
        log(f"exporting {model} to onnx-int8")
        export_model(str(model), "onnx-int8")
    return path


def _demo_texts(
    recipe: Recipe, store: ArtifactStore, count: int, texts: Path | None, queries: Path | None
) -> DemoTexts:
    """Read documents and prepared queries."""
    stated_queries = _read_texts_file(queries, None, "--queries") if queries else None
    if texts:
        return DemoTexts(texts.name, "query", _read_texts_file(texts, count, "--texts"), stated_queries or [])
    tasks = load_tasks(recipe.evaluation, store, recipe.teacher)
    task = next((candidate for candidate in tasks if isinstance(candidate, RetrievalTask)), None)
    if task is None:
        raise DistilvecError("the run has no retrieval task.", "Give a file of documents with --texts.", key="demo")
    sample = sample_task(task, QUERIES, count)
    return DemoTexts(
        task.name,
        task.query_role,
        [text for text in sample.documents if text.strip()],
        stated_queries or sample.queries,
    )


def _embed_documents(recipe: Recipe, texts: DemoTexts) -> tuple[Array, Similarity]:
    """Return the teacher's vectors of documents, then of queries, float32 [rows, dim], and its similarity."""
    with about("teacher"), open_teacher(recipe.teacher, recipe.train.device) as teacher:
        similarity = teacher.similarity
        if similarity == "euclidean":
            raise DistilvecError(
                f"{teacher.name} compares vectors by their distance; the page searches by cosine or inner product.",
                "Show another run.",
                key="demo",
            )
        log(f"{teacher.name} embeds {len(texts.documents):,} documents and {len(texts.queries):,} queries")
        memo = EmbeddingCache()
        vectors = [memo.vectors(teacher, texts.documents, "document")]
        if texts.queries:
            vectors += [memo.vectors(teacher, texts.queries, texts.role)]
    return np.concatenate(vectors), similarity


def _read_texts_file(path: Path, limit: int | None, key: str) -> list[str]:
    """Read the distinct texts of a file."""
    with set_by({"corpus.sources": key}):
        texts = chain.from_iterable(read() for read in readers_by_language([str(path)]).values())
        distinct = list(islice(dict.fromkeys(texts), limit))
    if not distinct:
        raise DistilvecError(f"{path} has no texts.", "Give a file of texts.", key=key)
    return distinct


def _write_page(folder: Path, libraries: Sequence[Path]) -> None:
    """Copy the page and the libraries; the WebAssembly is packed, which is a quarter of its size."""
    (folder / "runtime").mkdir(parents=True)
    report = resources.files("distilvec.report")
    for page in (report / "page" / "page.css", *(report / "demo").iterdir()):
        (folder / page.name).write_bytes(page.read_bytes())
    for path in libraries:
        if path.suffix == ".wasm":
            (folder / "runtime" / f"{path.name}.gz").write_bytes(packed(path))
        else:
            shutil.copyfile(path, folder / "runtime" / path.name)


def _about(texts: DemoTexts, record: RunRecord, student: SentenceTransformer) -> dict[str, Any]:
    """Return the content of demo.json."""
    limit = max_length(student)
    return {
        "name": record.name,
        "teacher": None if record.teacher is None else record.teacher.name,
        "parameters": None if record.student is None else record.student.parameters,
        "texts": texts.origin,
        "dim": student.get_embedding_dimension(),
        "documents": len(texts.documents),
        "prompt": student.prompts.get(texts.role) or "",
        "max_length": limit if limit < UNLIMITED else None,
        "queries": texts.queries,
    }


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
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if integrity != package.integrity:
        raise DistilvecError(
            f"npm gave other bytes for {package.spec} than expected: {integrity}.",
            f"Check npm's registry, {_COPY}.",
            key="demo",
        )
    with tarfile.open(archive) as content:
        for name in package.files:
            member = content.extractfile(f"package/dist/{name}")
            assert member is not None, f"{package.spec} has no {name}"  # the bytes are the pinned ones
            (folder / name).write_bytes(member.read())
    archive.unlink()
