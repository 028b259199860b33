"""Hooks of mkdocs: pages made while the site is built, links that leave docs/, figures in the page's colors, equations.

python -m mkdocs build        (from the repository's root; `make docs` does it, with KaTeX in its folder)
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

from docs.site import katex, method_pages, reference_pages
from docs.site.links import PAGES, ROOT, folder_page, relink, site_uri
from experiments.readme import marks

_SVG = re.compile(r'<img alt="([^"]*)" src="([^"]*?figures/[^"]+\.svg)" ?/?>')
_CODE = re.compile(r"<code>.*?</code>", re.DOTALL)
_OPTION = re.compile(r"(?<![\w-])--?[a-zA-Z][\w-]*(?![^<>]*>)")  # in code; not inside of a tag
_PART = re.compile(r"<!-- part: (\S+)#(\w+) -->")  # a made part of another page
_TASKS = re.compile(r"\| you have \| command \| you get \|\n\|[-|]+\n((?:\|.*\n)+)")  # a table that becomes cards
_made: dict[str, str] = {}  # pages made from other files, by address


def on_config(config: Any) -> Any:
    """Add the methods' pages to the navigation."""
    section = next(part["Methods"] for part in config["nav"] if "Methods" in part)
    if len(section) == 1:
        section += [{name: f"methods/{name}.md"} for name in method_pages.names()]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add made pages, copies of linked files and KaTeX's style sheet."""
    if not (katex.FOLDER / "katex.js").exists():
        raise PluginError("KaTeX is missing. Run: make .katex/installed")
    _made.clear()
    linked: set[str] = set()
    for source, uri in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        _made[uri], found = relink(text, source, uri)
        linked |= found
    _made.update(reference_pages.pages())
    for page in files.documentation_pages():
        linked |= relink(page.content_string, f"docs/{page.src_uri}", page.src_uri)[1]
    for uri in [uri for uri in _made if files.get_file_from_path(uri)]:
        raise PluginError(f"docs/{uri} would be hidden by a page that is made. Rename one of them.")
    for name in method_pages.names():
        linked |= {f"src/distilvec/methods/{name}.py"}
    listed = {path for path in linked if (ROOT / path).is_dir()}
    for path in sorted(listed):
        _made[site_uri(path)], found = folder_page(path)
        linked |= found
    for uri, text in _made.items():
        files.append(File.generated(config, uri, content=text))
    copies = {site_uri(path): ROOT / path for path in linked - listed}
    for uri, file in {**copies, **katex.assets()}.items():
        files.append(File.generated(config, uri, abs_src_path=str(file)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links that leave docs/ into links of the site; complete a method's page."""
    uri = page.file.src_uri
    text = markdown if uri in _made else relink(markdown, f"docs/{uri}", uri)[0]
    text = _PART.sub(lambda match: part(match[1], match[2], uri), text)
    text = _TASKS.sub(lambda match: cards(match[1]), text)
    if uri.startswith("methods/"):
        return method_pages.completed(uri.removeprefix("methods/").removesuffix(".md"), text)
    return text


def part(source: str, name: str, uri: str) -> str:
    """Return the part of a file that experiments/pages made, for the page `uri`."""
    begin, end = marks(name)
    text = (ROOT / source).read_text(encoding="utf-8").split(begin)[1].split(end)[0]
    return relink(text, source, uri)[0]


def cards(rows: str) -> str:
    """Return a card for each row of a table of links, commands and results: a phone has no room for its columns."""
    made = []
    for row in rows.strip().splitlines():
        link, command, result = (cell.strip() for cell in row.strip("|").split(" | "))
        title, words = link[:2].upper() + link[2:], result[:1].upper() + result[1:]
        made.append(f"-   **{title}**\n\n    {words}\n\n    ```bash\n    {command.strip('`')}\n    ```\n")
    return '<div class="grid cards" markdown>\n\n' + "\n".join(made) + "\n</div>\n"


def on_post_build(config: Any, **_: Any) -> None:
    """Write llms.txt: the pages by tab, with the first sentence of each, for programs that read documentation."""
    lines = [f"# {config['site_name']}", "", f"> {config['site_description']}", ""]
    for tab in config["nav"]:
        for title, entries in tab.items():
            lines += [f"## {title}", ""]
            lines += [_listed(uri, config) for uri in _pages_of(entries)] + [""]
    (Path(config["site_dir"]) / "llms.txt").write_text("\n".join(lines), encoding="utf-8")


def _pages_of(entries: Any) -> list[str]:
    """Return the addresses of the pages below an entry of the navigation, in order."""
    if isinstance(entries, str):
        return [entries]
    if isinstance(entries, dict):
        entries = list(entries.values())
    return [uri for entry in entries for uri in _pages_of(entry)]


def _listed(uri: str, config: Any) -> str:
    """Return a line of llms.txt: link, title and first sentence of a page."""
    file = ROOT / "docs" / uri
    text = _made[uri] if uri in _made else file.read_text(encoding="utf-8")
    heading, _, body = text.partition("\n")
    without_code = re.sub(r"```.*?```", "", body, flags=re.DOTALL)
    paragraphs = (part.strip() for part in without_code.split("\n\n"))
    first = next((part for part in paragraphs if part[:1].isalpha()), "")
    sentence = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(first.split())).split(". ")[0].rstrip(".:")
    title = heading.removeprefix("# ").strip()
    return f"- [{title}]({uri.removesuffix('.md')}.html)" + (f": {sentence}" if sentence else "")


def on_post_page(html: str, **_: Any) -> str:
    """Name the theme's search dialog and its lists of pages, which it leaves without a name."""
    titles = dict(
        re.findall(r'<label class="md-nav__title" for="__nav_([\d_]+)">.*?</span>\s*(.*?)\s*</label>', html, re.S)
    )

    def named(match: re.Match[str]) -> str:
        return f'aria-label="{titles[match[1]]}"' if titles.get(match[1]) else match[0]

    html = re.sub(r'aria-labelledby="__nav_([\d_]+)_label"', named, html)
    return html.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    )


def on_page_content(html: str, page: Any, config: Any, **_: Any) -> str:
    """Put SVG figures into the page, where they take its colors, set equations, and keep options in one piece."""

    def inline(match: re.Match[str]) -> str:
        path = ROOT / "docs" / "figures" / match[2].rsplit("/", 1)[1]
        text = path.read_text(encoding="utf-8")
        if "currentColor" not in text:
            return match[0].replace("<img ", '<img class="plate" ')
        text = re.sub(r"<\?xml.*?\?>|<style>.*?</style>|<title>.*?</title>", "", text, flags=re.DOTALL)
        return text.replace("<svg ", f'<svg class="figure" role="img" aria-label="{match[1]}" ', 1)

    def unbroken(match: re.Match[str]) -> str:
        return _OPTION.sub(lambda option: f'<span class="option">{option[0]}</span>', match[0])

    html = _CODE.sub(unbroken, html)  # a browser breaks a line after every hyphen
    try:
        return katex.typeset(_SVG.sub(inline, html))
    except ValueError as error:
        raise PluginError(f"{page.file.src_uri}: {error}") from error
