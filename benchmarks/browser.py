"""A run's demo page in headless Chromium: milliseconds a query, seconds to load, page weight in MB by part.

    python -m benchmarks.browser --json FILE [--run RUN] [--loads 5]

Without --run a student of three layers of all-MiniLM-L6-v2 is trained for a few steps: the values of its weights change
no time. Every load is a fresh browser context over a server of files on 127.0.0.1; no other address can be reached.
A query is its tokens, the student in WebAssembly (one thread) and the search among all documents. `cpu_milliseconds` is
the processor time of the page's process, which other processes of the machine do not lengthen as they do the others.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil

from benchmarks.stopwatch import machine
from distilvec.core.files import write_json

CHROMIUM = Path("/usr/bin/chromium")
OPEN = """async () => {
  window.demo = await (await import("./engine.js")).openDemo();
  await window.demo.encode("warm-up");
}"""
TIMES = """async () => {
  const demo = window.demo, times = { query: [], student: [], search: [] };
  for (const text of demo.about.queries) {
    const began = performance.now(), vector = await demo.encode(text), between = performance.now();
    demo.search(vector);
    const ended = performance.now();
    times.query.push(ended - began); times.student.push(between - began); times.search.push(ended - between);
  }
  return times;
}"""
SMALL = {  # a run of minutes
    "corpus.sources": [{"builtin": "python-docstrings", "role": "document", "limit": 1500}],
    "train.max_steps": 20,
    "evaluation.parts": [],
    "evaluation.columns": ["student"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--run", type=Path, default=None)
    parser.add_argument("--runtime", type=Path, default=None, help="a copy of the JavaScript libraries")
    parser.add_argument("--loads", type=int, default=5)
    arguments = parser.parse_args()
    result = measure(arguments)
    write_json(arguments.json, result)
    print(json.dumps(result, indent=1))


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Write the page, load it several times, and time every prepared query in each."""
    import distilvec
    from distilvec.verbs.demo.demo import write_demo

    with tempfile.TemporaryDirectory() as scratch:
        run = arguments.run
        if run is None:
            run = Path(scratch) / "run"
            distilvec.run("quickstart", overrides=SMALL, output_dir=run)
        folder = Path(scratch) / "demo"
        sizes = write_demo(run, folder, runtime=arguments.runtime)
        about = json.loads((folder / "demo.json").read_text(encoding="utf-8"))
        loads = []
        for _ in range(arguments.loads):
            with opened(folder) as page:
                loads.append(timed(page))
                shown, browser = page.inner_text("#versions"), page.context.browser.version
    times = {
        name: [value for load in loads for value in load["times"][name]] for name in ("query", "student", "search")
    }
    return {
        "machine": machine(),
        "chromium": browser,
        "libraries": shown,
        **{key: about[key] for key in ("name", "parameters", "documents", "dim")},
        "queries": len(about["queries"]),
        "loads": len(loads),
        "load_seconds": round(statistics.median(load["seconds"] for load in loads), 2),
        "milliseconds": {name: summary(values) for name, values in times.items()},
        "cpu_milliseconds": round(statistics.median(load["cpu_milliseconds"] for load in loads), 2),
        "megabytes": {**{part: round(size, 2) for part, size in sizes.items()}, "all": round(sum(sizes.values()), 2)},
    }


def timed(page: Any) -> dict[str, Any]:
    """Seconds that the page took to load, milliseconds of every prepared query, and processor time a query."""
    seconds = float(page.inner_text("#load"))
    page.evaluate(OPEN)
    before = processor_seconds()
    times = page.evaluate(TIMES)
    return {
        "seconds": seconds,
        "times": times,
        "cpu_milliseconds": 1e3 * (processor_seconds() - before) / len(times["query"]),
    }


def summary(values: list[float]) -> dict[str, float]:
    """Median and 95th percentile."""
    return {"median": round(statistics.median(values), 2), "p95": round(statistics.quantiles(values, n=20)[-1], 2)}


def processor_seconds() -> float:
    """Processor time of the browser's pages, which are children of this process."""
    found = 0.0
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has just ended
            if "--type=renderer" in child.cmdline():
                found += sum(child.cpu_times()[:2])
    return found


@contextmanager
def opened(folder: Path, width: int = 1400, asked: list[str] | None = None, said: Any = None) -> Iterator[Any]:
    """A demo's folder as a page of headless Chromium, when it is ready; `asked` gets requests, `said` messages."""
    from playwright.sync_api import sync_playwright

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *arguments: Any) -> None:
            if asked is not None:
                asked.append(str(arguments[1]))

    rules = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(
                    executable_path=CHROMIUM, args=["--no-sandbox", rules], timeout=600_000
                )
                page = browser.new_page(viewport={"width": width, "height": 900})
                page.set_default_timeout(600_000)  # ms; the default, 30 s, is short where other work runs
                if said is not None:
                    page.on("console", lambda message: said.append(message.text))
                    page.on("pageerror", lambda error: said.append(str(error)))
                page.goto(f"http://127.0.0.1:{server.server_address[1]}/")
                page.wait_for_selector("html[data-ready]")
                yield page
                browser.close()
        finally:
            server.shutdown()


if __name__ == "__main__":
    main()
