"""The screenshots of the documentation, taken of finished runs: docs/figures/screen-NAME.webp.

    distilvec distill all-MiniLM-L6-v2 documents.txt --size 5M --out runs/first
    distilvec demo runs/first --out demo
    python -m experiments.screenshots --report runs/first --comparison runs/methods --demo demo
    python -m experiments.screenshots --terminal "distill all-MiniLM-L6-v2 documents.txt --size 5M --out runs/terminal"

Each option makes its own picture; the others stay. --terminal runs the command in a terminal of 80 columns. Needs
chromium and the packages of the tests.
"""

from __future__ import annotations

import argparse
import io
import os
import pty
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
CHROMIUM = "/usr/bin/chromium"
WIDTH, HEIGHT = 1280, 860  # CSS pixels
COLUMNS = 80
MOST_BYTES = 150_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report", type=Path, help="the folder of a finished run")
    parser.add_argument("--comparison", type=Path, help="the folder of a sweep, or a comparison's page")
    parser.add_argument("--demo", type=Path, help="a folder that `distilvec demo` wrote")
    parser.add_argument("--terminal", help="arguments of distilvec; the command is run")
    arguments = parser.parse_args()
    with browser_page() as page:
        if arguments.report:
            page.goto((arguments.report / "report.html").absolute().as_uri())
            save(page, "report")
        if arguments.comparison:
            path = arguments.comparison
            page.goto((path / "comparison.html" if path.is_dir() else path).absolute().as_uri())
            save(page, "comparison")
        if arguments.demo:
            with served(arguments.demo) as address:
                page.goto(address)
                page.wait_for_selector("#query:not([disabled])")
                page.select_option("#prepared", index=2)  # of a prepared query the teacher's results are there, too
                page.wait_for_selector("#teacher li")
                save(page, "demo")
        if arguments.terminal:
            page.set_viewport_size({"width": 760, "height": 100})
            page.set_content(terminal_html(arguments.terminal))
            save(page, "terminal", whole=True)


@contextmanager
def browser_page() -> Iterator[Any]:
    """A page in chromium, sharp enough for a screen of twice the pixels."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=600_000)
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, device_scale_factor=1.5)
        page.set_default_timeout(600_000)  # ms
        yield page
        browser.close()


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on this machine, and yield its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def save(page: Any, name: str, whole: bool = False) -> None:
    """Write what the page shows as WebP, in the best quality that is small enough."""
    from PIL import Image

    image = Image.open(io.BytesIO(page.screenshot(full_page=whole))).convert("RGB")
    path = FIGURES / f"screen-{name}.webp"
    for quality in (85, 70, 55, 40):
        image.save(path, quality=quality, method=6)
        if path.stat().st_size <= MOST_BYTES:
            break
    print(f"{path}: {path.stat().st_size:,} bytes")


def terminal_html(arguments: str) -> str:
    """Run distilvec, and return its command line and what the terminal shows at the end as a page."""
    from rich.console import Console
    from rich.terminal_theme import MONOKAI
    from rich.text import Text

    with tempfile.TemporaryFile("w+") as sink:
        console = Console(width=COLUMNS, file=sink, record=True, color_system="truecolor", force_terminal=True)
        console.print(f"$ distilvec {arguments}", markup=False, highlight=False)
        for line in screen_lines(run_in_terminal(arguments)):
            console.print(Text.from_ansi(line), overflow="fold")
        style = "margin: 0; padding: 18px 20px; font: 14px/1.45 'DejaVu Sans Mono', monospace"
        return console.export_html(
            theme=MONOKAI,
            inline_styles=True,
            code_format=f'<body style="margin: 0; color: {{foreground}}; background: {{background}}">'
            f'<style>a {{{{ color: inherit }}}}</style><pre style="{style}">{{code}}</pre></body>',
        )


def run_in_terminal(arguments: str) -> str:
    """Return all that `distilvec ARGUMENTS` writes to a terminal."""
    primary, secondary = pty.openpty()
    words = [sys.executable, "-m", "distilvec", *shlex.split(arguments)]
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    process = subprocess.Popen(words, stdin=secondary, stdout=secondary, stderr=secondary, env=environment)
    os.close(secondary)
    parts = []
    while True:
        try:
            part = os.read(primary, 65536)
        except OSError:  # Linux ends a terminal with an error
            break
        if not part:
            break
        parts.append(part)
    process.wait()
    return b"".join(parts).decode(errors="replace")


def screen_lines(text: str) -> list[str]:
    """Return the lines that stay on the screen: a bar is drawn over the one before it."""
    lines: list[str] = []
    for line in text.replace("\r\n", "\n").split("\n"):
        last = line.split("\r")[-1]
        ups = line.count("\x1b[1A")
        if ups:
            del lines[-ups:]
        for code in ("\x1b[1A", "\x1b[2K", "\x1b[?25l", "\x1b[?25h"):
            last = last.replace(code, "")
        lines.append(last)
    return lines


if __name__ == "__main__":
    main()
