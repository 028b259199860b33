"""`distilvec demo`: a run's student in the browser."""

from __future__ import annotations

import shlex
import threading
import webbrowser
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated

from distilvec.cli.options import argument, check_input, option
from distilvec.core.errors import Interrupted
from distilvec.core.log import log


def demo(
    run: Annotated[Path, argument("The folder of a finished run.")],
    out: Annotated[
        Path | None,
        option("The page's folder, RUN/demo by default; an earlier demo in it is replaced, other files stay."),
    ] = None,
    open_page: Annotated[
        bool, option("Serve the page on this machine and open it in a browser; Ctrl-C ends it.", "--open")
    ] = False,
    documents: Annotated[int, option("Most documents in the page.", min=1)] = 2000,
    texts: Annotated[Path | None, option("Your own documents; by default from the run's first retrieval task.")] = None,
    queries: Annotated[Path | None, option("Prepared queries; by default the task's, with --texts no queries.")] = None,
    runtime: Annotated[Path | None, option("A copy of the JavaScript libraries, instead of npm.")] = None,
) -> None:
    """Write a page that searches in the browser.

    The student searches, next to the teacher's results. The teacher embeds documents and prepared queries now, and does
    not run in the browser. npm fetches transformers.js and onnxruntime-web once, into the cache; the page itself needs
    no network.
    """
    check_input(run, "run")
    check_input(texts, "--texts")
    check_input(queries, "--queries")
    from distilvec.cli.terminal import print_result
    from distilvec.core.extras import require_extra

    require_extra("onnx", "demo")
    from distilvec.verbs.demo.demo import write_demo

    folder = out or run / "demo"
    sizes = write_demo(run, folder, documents, texts, queries, runtime)
    print_result(", ".join(f"{part} {size:.1f} MB" for part, size in sizes.items()))
    if open_page:
        print_result(f"{folder}: {sum(sizes.values()):.1f} MB")
        serve_page(folder)
        return
    print_result(f"{folder}: {sum(sizes.values()):.1f} MB. Open http://localhost:8000 after:")
    print_result(shlex.join(["python", "-m", "http.server", "--bind", "127.0.0.1", "--directory", str(folder)]))


class _Files(SimpleHTTPRequestHandler):
    """Gives the files of a folder, without a line for every request."""

    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing."""


def serve_page(folder: Path) -> None:
    """Serve a folder at a free port of this machine and open it in a browser, until SIGINT or SIGTERM."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Files, directory=str(folder))) as server:
        address = f"http://127.0.0.1:{server.server_port}/"
        log(f"serving {address}; Ctrl-C ends it")
        # in a thread: a browser of the terminal returns when it is closed
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
        with suppress(Interrupted, KeyboardInterrupt):
            server.serve_forever()
