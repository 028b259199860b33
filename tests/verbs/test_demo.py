"""`distilvec demo`: the page in headless Chromium over a real server, its files, and transformers.js as a client."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import threading
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from urllib.request import urlopen

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from architectures import bert, sentence_transformer
from refusals import refused
from samples import make_texts
from sentence_transformers import SentenceTransformer

from distilvec.__main__ import run_command
from distilvec.core.artifacts import ArtifactStore
from distilvec.core.errors import DistilvecError
from distilvec.core.files import acquire_lock, write_json
from distilvec.core.run_folder import RunFolder
from distilvec.evaluation import parity
from distilvec.evaluation.search import top_k
from distilvec.formats.sentence_transformers import save_student
from distilvec.verbs.demo import demo
from distilvec.verbs.demo.demo import PACKAGES, find_runtime, megabytes, quantized, write_demo

pytest.importorskip("onnxruntime")
CACHE = Path.home() / ".cache" / "distilvec" / "tests"
CHROMIUM = Path("/usr/bin/chromium")
CONTRAST = (Path(__file__).parents[1] / "report" / "contrast.js").read_text(encoding="utf-8")
MARKUP = "<img src=x onerror=alert(1)> <b>river</b> & letters"
TEXTS = [*make_texts(39), MARKUP]
EMBED = """
import { readFileSync } from "node:fs";
import { env, pipeline } from "@huggingface/transformers";
Object.assign(env, { allowRemoteModels: false, allowLocalModels: true, localModelPath: process.argv[1] });
const extract = await pipeline("feature-extraction", "student", { dtype: "q8" });
const vectors = [];
for (const text of JSON.parse(readFileSync(0))) vectors.push((await extract(text, { pooling: "mean", normalize: true })).tolist()[0]);
process.stdout.write(JSON.stringify(vectors));
"""  # noqa: E501


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """The folder of a run whose student is its teacher, with a suite: find a text by its first half."""
    folder, patch = tmp_path_factory.mktemp("demo"), pytest.MonkeyPatch()
    wide = {"num_hidden_layers": 2, "intermediate_size": 256, "initializer_range": 0.1}
    plain = sentence_transformer(folder / "plain", bert(folder / "bert", **wide))
    model = SentenceTransformer(str(plain), device="cpu", prompts={"query": "find ", "document": ""})
    save_student(model, folder / "run" / "student", {"format": 1, "name": "tiny"}, "")
    task = folder / "task"
    task.mkdir()
    rows = [{"id": f"d{number:02}", "title": "", "text": text} for number, text in enumerate(TEXTS)]
    asked = [{"id": f"q{number:02}", "text": text[: len(text) // 2]} for number, text in enumerate(TEXTS)]
    for name, lines in (("corpus", rows), ("queries", asked)):
        (task / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    judged = "".join(f"q{number:02}\td{number:02}\t1\n" for number in range(len(rows)))
    (task / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)
    (folder / "suite.yaml").write_text("- {name: halves, type: retrieval, path: task}\n")
    recipe = {
        "name": "tiny",
        "teacher": {"model": str(plain), "prompts": {"query": "find ", "document": ""}},
        "student": {"model": "teacher", "layers": 2},
        "corpus": {"sources": [{"path": str(folder / "suite.yaml")}]},
        "method": {"name": "redact"},
        "evaluation": {"suite": str(folder / "suite.yaml")},
    }
    (folder / "run" / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    record = {"name": "tiny", "teacher": {"name": "plain"}, "student": {}, "teacher_compatible": True}
    RunFolder(folder / "run").make()
    write_json(RunFolder(folder / "run").record, record, sealed=True)
    patch.setattr(parity, "TIMING", parity.Timing(1, 5, 1.0))
    patch.setenv("DISTILVEC_CACHE", str(folder / "cache"))
    yield SimpleNamespace(run=folder / "run", model=model, texts=TEXTS, recipe=recipe)
    patch.undo()


@pytest.fixture(scope="module")
def libraries():
    """The JavaScript libraries, fetched by npm into the user's cache: once a machine."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("npm_config_fetch_retries", "0")
            return find_runtime(ArtifactStore(CACHE))[0].parent
    except DistilvecError as error:
        if "npm pack" in str(error):
            pytest.skip(f"no network: {error}")
        raise


@pytest.fixture
def copy(tmp_path):
    """A folder with the names of the libraries, without their content."""
    folder = tmp_path / "copy"
    folder.mkdir()
    for package in PACKAGES:
        for name in package.files:
            (folder / name).write_bytes(name.encode())
    return folder


@contextmanager
def opened(folder, requests, messages):
    """A demo's folder as a page of headless Chromium, when it is ready."""
    from playwright.sync_api import sync_playwright

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            requests.append(str(arguments[1]))

    rules = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(
                    executable_path=CHROMIUM, args=["--no-sandbox", rules], timeout=600_000
                )
                page = browser.new_page(viewport={"width": 400, "height": 900})
                page.set_default_timeout(600_000)  # ms; the default, 30 s, is short where other work runs
                page.on("console", lambda message: messages.append(message.text))
                page.on("pageerror", lambda error: messages.append(str(error)))
                page.goto(f"http://127.0.0.1:{server.server_address[1]}/")
                page.wait_for_selector("html[data-ready]")
                yield page
                browser.close()
        finally:
            server.shutdown()


@pytest.fixture(scope="module")
def page(world, libraries, tmp_path_factory):
    """A demo, opened in Chromium over a server of files; no other address can be reached."""
    pytest.importorskip("playwright.sync_api")
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is not installed")
    folder = tmp_path_factory.mktemp("page") / "demo"
    write_demo(world.run, folder, runtime=libraries)
    asked, said = [], []
    with opened(folder, asked, said) as shown:
        yield SimpleNamespace(page=shown, folder=folder, asked=asked, said=said)


def test_the_page_searches_in_the_browser(page, world):
    shown, about = page.page, json.loads((page.folder / "demo.json").read_text())
    assert shown.get_attribute("html", "data-ready") == "yes" and page.said == [] and len(page.asked) > 10
    script = "async (texts) => { const demo = await (await import('./engine.js')).openDemo();"
    script += " return Promise.all(texts.map(async (text) => Array.from(await demo.encode(text)))); }"
    queries = about["queries"]
    found, expected = np.array(shown.evaluate(script, queries[:8])), world.model.encode_query(queries[:8])
    assert (found * expected).sum(axis=1).min() > 0.98 and found.shape == expected.shape
    exact = top_k(world.model.encode_query(queries[:1]), world.model.encode_document(world.texts), 10)[0][0]
    ids = sorted(range(len(TEXTS)), reverse=True)  # the task's order of documents
    listed = shown.locator("#teacher li p:last-child").all_inner_texts()
    documents = json.loads((page.folder / "documents.json").read_text())
    assert documents == [TEXTS[row] for row in ids] and len({*listed} & {TEXTS[row] for row in exact}) >= 9
    assert float(shown.inner_text("#overlap")) > 85 and 0 < float(shown.inner_text("#speed")) < 1000
    weight = sum(path.stat().st_size for path in page.folder.rglob("*") if path.is_file()) / 1e6
    assert abs(float(shown.inner_text("#weight")) - weight) < 0.06 and weight < 6


def test_a_text_of_ones_own_has_the_students_results_alone(page):
    shown = page.page
    shown.fill("#query", MARKUP)
    shown.keyboard.press("Enter")
    shown.wait_for_selector("#teacher-note:not([hidden])")
    assert shown.locator("#teacher li").count() == 0 and shown.locator("#student li").count() == 10
    assert shown.locator("#student img, #student b").count() == 0
    assert any(MARKUP in text for text in shown.locator("#student li").all_inner_texts())
    shown.select_option("#prepared", index=3)
    shown.wait_for_selector("#teacher-note", state="hidden")
    assert shown.locator("#teacher li").count() == 10


@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1400, "light")])
def test_the_page_is_legible_and_accessible(page, width, scheme):
    shown = page.page
    shown.set_viewport_size({"width": width, "height": 900})
    shown.emulate_media(color_scheme=scheme)
    found = shown.evaluate(CONTRAST)
    assert len(found) > 40 and [entry for entry in found if entry["ratio"] < 4.5] == []
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    package = importlib.util.find_spec("axe_playwright_python")
    if package is not None:
        shown.evaluate(Path(package.origin).with_name("axe.min.js").read_text(encoding="utf-8"))
        faults = shown.evaluate("axe.run()")["violations"]
        assert [(fault["id"], [node["html"][:120] for node in fault["nodes"]]) for fault in faults] == []


def test_transformers_js_reads_an_exported_folder(world, libraries):
    from distilvec.verbs.export.export import export_model

    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    place = CACHE / f"node-{PACKAGES[0].version}"
    place.mkdir(parents=True, exist_ok=True)
    with acquire_lock(place / "lock", str(place), wait=True):
        if not (place / "done").is_file():
            line = "npm install --ignore-scripts --no-audit --no-fund --prefer-offline".split()
            done = subprocess.run([*line, PACKAGES[0].spec], cwd=place, capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"no network: npm install gave {done.stderr[-300:]}")
            (place / "done").touch()
    if not (world.run / "student" / "onnx" / "model_quantized.onnx").is_file():
        export_model(str(world.run / "student"), "onnx-int8", force=True)
    done = subprocess.run(
        ["node", "--input-type=module", "-e", EMBED, str(world.run)],
        cwd=place, input=json.dumps(TEXTS), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert (np.array(json.loads(done.stdout)) * world.model.encode(TEXTS)).sum(axis=1).min() > 0.9


def test_the_files_of_a_demo(world, copy, tmp_path, capsys):
    out = tmp_path / "demo"
    assert run_command(["demo", str(world.run), "--out", str(out), "--runtime", str(copy), "--documents", "20"]) == 0
    sizes = megabytes(out)
    assert list(sizes) == list(demo.PARTS) and f"model {sizes['model']:.1f} MB" in capsys.readouterr().out
    about = json.loads((out / "demo.json").read_text())
    assert about["prompt"] == "find " and about["max_length"] == 128 and about["texts"] == "halves"
    rows, data = about["documents"] + len(about["queries"]), (out / "vectors.bin").read_bytes()
    scales = np.frombuffer(data, "<f4", rows)
    stored = scales[:, None] * np.frombuffer(data, np.int8, rows * about["dim"], 4 * rows).reshape(rows, -1)
    texts = json.loads((out / "documents.json").read_text())
    expected = [*world.model.encode_document(texts), *world.model.encode_query(about["queries"])]
    assert np.abs(stored - np.array(expected)).max() < 0.005
    (out / "runtime" / "stale").touch()
    (out / "app.js").write_text("of an earlier version")
    (out / "notes.txt").write_text("mine")
    (out / "sketches").mkdir()
    names = {path.name for path in out.iterdir()}
    write_demo(world.run, out, runtime=out / "runtime")  # a demo's own libraries are a copy
    assert not (out / "runtime" / "stale").exists() and "earlier version" not in (out / "app.js").read_text()
    assert (out / "notes.txt").read_text() == "mine" and (out / "sketches").is_dir()
    assert {path.name for path in out.iterdir()} == names
    assert [path.name for path in tmp_path.iterdir() if path != copy] == ["demo"]


def test_a_demo_is_served_and_opened_until_it_is_interrupted(tmp_path, monkeypatch, capsys, loopback):
    """At a free port, from the run's own folder."""
    seen = []

    def browse(address):
        with urlopen(address) as answer:
            seen.append(answer.read().decode())
        os.kill(os.getpid(), signal.SIGINT)

    def write(run, folder, *rest):
        folder.mkdir()
        (folder / "index.html").write_text("the page")
        return {"page": 1.0}

    monkeypatch.setattr(demo, "write_demo", write)
    monkeypatch.setattr("webbrowser.open", browse)
    (tmp_path / "run").mkdir()
    assert run_command(["demo", str(tmp_path / "run"), "--open"]) == 0
    assert seen == ["the page"] and "serving http://127.0.0.1:" in capsys.readouterr().err


def test_texts_of_ones_own(world, copy, tmp_path):
    (tmp_path / "mine.txt").write_text("one river\n\ntwo stones\none river\n" + "long " * 200)
    (tmp_path / "asked.txt").write_text("river?\n")
    write_demo(world.run, tmp_path / "demo", texts=tmp_path / "mine.txt", runtime=copy)
    about = json.loads((tmp_path / "demo" / "demo.json").read_text())
    assert (about["documents"], about["queries"], about["texts"]) == (3, [], "mine.txt")
    long = json.loads((tmp_path / "demo" / "documents.json").read_text())[2]
    assert len(long) <= 300 and long.endswith("long…")
    write_demo(
        world.run, tmp_path / "demo", 2, texts=tmp_path / "mine.txt", queries=tmp_path / "asked.txt", runtime=copy
    )
    about = json.loads((tmp_path / "demo" / "demo.json").read_text())
    assert (about["documents"], about["queries"]) == (2, ["river?"])


def test_the_column_of_texts_of_ones_own_can_be_mended_in_the_file(world, copy, tmp_path):
    (tmp_path / "mine.csv").write_text("inhalt,kind\none river,a\ntwo stones,b\n")
    with refused("--texts", "'text'"):
        write_demo(world.run, tmp_path / "demo", texts=tmp_path / "mine.csv", runtime=copy)
    (tmp_path / "mine.csv").write_text("text,kind\none river,a\ntwo stones,b\n")
    write_demo(world.run, tmp_path / "demo", texts=tmp_path / "mine.csv", runtime=copy)


def test_a_table_of_vectors_is_searched_as_it_is(world, copy, tmp_path):
    texts = make_texts(80, seed=3)
    vectors = world.model.encode_document(texts)
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    pq.write_table(pa.table({"text": texts, "embedding": column}), tmp_path / "table.parquet")
    run = tmp_path / "run"
    shutil.copytree(world.run, run)
    changed = {"teacher": {"vectors": str(tmp_path / "table.parquet")}, "evaluation": {"stored": 12}}
    recipe = {**world.recipe, **changed, "student": {"model": world.recipe["teacher"]["model"], "layers": 2}}
    (run / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    write_demo(run, tmp_path / "demo", runtime=copy)
    about = json.loads((tmp_path / "demo" / "demo.json").read_text())
    assert about["prompt"] == "" and len(about["queries"]) == 12 and set(about["queries"]) < set(texts)
    data, rows = (tmp_path / "demo" / "vectors.bin").read_bytes(), about["documents"] + 12
    stored = np.frombuffer(data, np.int8, rows * about["dim"], 4 * rows).reshape(rows, -1)
    shown = [*json.loads((tmp_path / "demo" / "documents.json").read_text()), *about["queries"]]
    expected = vectors[[texts.index(text) for text in shown]]
    assert np.abs(stored - 127 * expected / np.abs(expected).max(axis=1, keepdims=True)).max() <= 0.51


def test_int8_rows_keep_their_direction():
    vectors = np.random.default_rng(0).normal(size=(50, 96)) * np.logspace(-3, 3, 50)[:, None]
    scales, rows = quantized(np.concatenate([vectors, np.zeros((1, 96))]))
    assert rows.dtype == np.int8 and np.abs(rows[:-1]).max(axis=1).tolist() == [127] * 50 and not rows[-1].any()
    restored = (scales[:, None] * rows)[:-1]
    assert (restored * vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).sum(axis=1).min() > 0.9999


def test_int8_rows_that_are_searched_by_product_keep_their_lengths():
    vectors = np.random.default_rng(0).normal(size=(50, 96)) * np.logspace(-3, 3, 50)[:, None]
    scales, rows = quantized(vectors, "dot")
    assert np.abs(scales[:, None] * rows - vectors).max(axis=1) == pytest.approx(
        0, abs=float(np.abs(vectors).max()) / 250
    )
    np.testing.assert_allclose(
        np.linalg.norm(scales[:, None] * rows, axis=1), np.linalg.norm(vectors, axis=1), rtol=0.01
    )


def test_what_cannot_be_shown_is_refused_before_the_work(world, copy, tmp_path, monkeypatch):
    def refuse(match, run=world.run, out=tmp_path / "demo", **options):
        with pytest.raises(DistilvecError, match=match):
            write_demo(run, out, **{"runtime": copy, **options})
        assert not (tmp_path / "demo").exists()

    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").touch()
    refuse(r"^\[demo\] .* is no finished run", tmp_path / "mine")
    refuse(r"^\[--out\] .* is no demo", out=tmp_path / "mine")
    (tmp_path / "empty.txt").touch()
    refuse(r"^\[--texts\] .* no texts", texts=tmp_path / "empty.txt")
    refuse(r"^\[--runtime\] .* has no transformers.web.min.js", runtime=tmp_path / "mine")
    other = tmp_path / "other"
    shutil.copytree(world.run, other)
    record = json.loads(RunFolder(other).record.read_text()) | {"teacher_compatible": False}
    write_json(RunFolder(other).record, record, sealed=True)
    refuse(r"^\[demo\] .* not in its teacher's space.* --to projected", other)
    write_json(RunFolder(other).record, record | {"teacher_compatible": True}, sealed=True)
    (other / "recipe.yaml").write_text(yaml.safe_dump(world.recipe | {"evaluation": {}}))
    refuse(r"^\[demo\] the run has no retrieval task", other)
    far = {**world.recipe, "teacher": {**world.recipe["teacher"], "similarity": "euclidean"}}
    (other / "recipe.yaml").write_text(yaml.safe_dump(far))
    refuse(r"^\[demo\] plain compares vectors by their distance", other)
    monkeypatch.setattr(demo.shutil, "which", lambda name: None)
    refuse(r"^\[demo\] npm was not found.*--runtime", runtime=None)


def test_npm_that_fails_or_gives_other_bytes(tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    npm = folder / "npm"
    npm.write_text("#!/bin/sh\necho 'npm error network' >&2\nexit 1\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    with refused("demo", "npm error network"):
        find_runtime(ArtifactStore(tmp_path / "cache"))
    npm.write_text("#!/bin/sh\necho other > package.tgz\n")
    with refused("demo", "other bytes"):
        find_runtime(ArtifactStore(tmp_path / "cache"))
    assert not list((tmp_path / "cache").rglob("*.tgz"))
