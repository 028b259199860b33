"""Links of the repository's Markdown as links of the site: files outside docs/ become pages or copies in the site."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
PAGES = {  # Markdown outside docs/, by its address in the site
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "recipes/suites/README.md": "reference/suites.md",
}
COPIES = "files"  # of the site: copies of linked files, pages with the content of linked folders
_LINK = re.compile(r"(\w[\w/.-]*\.md)?(?<!\\)\]\((?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?\)")
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def relink(text: str, source: str, page: str) -> tuple[str, set[str]]:
    """Return `text` of the repository's file `source` for the site's `page`, and the repository's paths it links to.

    Paths are those outside docs/ that are no page: files to copy, folders to list.
    """
    found: set[str] = set()

    def link(match: re.Match[str]) -> str:
        name, target, anchor = match[1] or "", match[2], match[3] or ""
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if path.startswith("docs/"):
            uri = path.removeprefix("docs/")
        elif path in PAGES:
            uri = PAGES[path]
        elif (ROOT / path).exists() and not path.startswith(".."):
            found.add(path)
            uri = site_uri(path)
        else:
            return match[0]  # a page of the site, or a mistake that the strict build reports
        return f"{title(path) if name.endswith(target.rpartition('/')[2]) else name}]({relative(uri, page)}{anchor})"

    parts = _CODE.split(text)
    code = [*_CODE.findall(text), ""]
    return "".join(_LINK.sub(link, part) + block for part, block in zip(parts, code, strict=True)), found


def title(path: str) -> str:
    """Return the first heading of a page of the repository; its path for a page that is made."""
    file = ROOT / path
    text = file.read_text(encoding="utf-8") if file.is_file() else f"# {path}"
    return text.partition("\n")[0].removeprefix("# ").strip()


def site_uri(path: str) -> str:
    """Return where the copy of a file, or the page about a folder, is in the site."""
    return f"{COPIES}/{path}/index.md" if (ROOT / path).is_dir() else f"{COPIES}/{path}"


def relative(uri: str, page: str) -> str:
    """Return the address of `uri` as seen from `page`, both relative to the site's root."""
    return posixpath.relpath(uri, PurePosixPath(page).parent.as_posix())


def folder_page(path: str) -> tuple[str, set[str]]:
    """Return a page that lists a folder's files, and their paths."""
    files = sorted(file for file in (ROOT / path).iterdir() if file.is_file())
    lines = [f"- [{file.name}](../{PurePosixPath(path).name}/{file.name})" for file in files]
    return f"# {path}\n\n" + "\n".join(lines) + "\n", {f"{path}/{file.name}" for file in files}
