"""`distilvec demo`: a run's student in the browser."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from distilvec.cli.options import argument, check_input, option


def demo(
    run: Annotated[Path, argument("The folder of a finished run.")],
    out: Annotated[Path, option("The page's folder; an earlier demo in it is replaced, other files stay.")],
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

    sizes = write_demo(run, out, documents, texts, queries, runtime)
    print_result(", ".join(f"{part} {size:.1f} MB" for part, size in sizes.items()))
    print_result(f"{out}: {sum(sizes.values()):.1f} MB. Open http://localhost:8000 after:")
    print_result(shlex.join(["python", "-m", "http.server", "--bind", "127.0.0.1", "--directory", str(out)]))
