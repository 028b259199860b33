"""Equations set by KaTeX while the site is built: pages need its style sheet and fonts, no script and no other host.

Beside it lies iframe-worker's script, with which a browser searches pages that are opened from disk.
"""

from __future__ import annotations

import functools
import html
import json
import re
import subprocess
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".katex"  # `make .katex/installed` fills it
_FORMULA = re.compile(r'<(span|div) class="arithmatex">(?:\\\((.*?)\\\)|\\\[(.*?)\\\])</\1>', re.DOTALL)
_SCRIPT = """
const katex = require(process.argv[1]);
const set = ([text, displayMode]) => katex.renderToString(text, {displayMode, strict: 'error', throwOnError: true});
require('readline').createInterface({input: process.stdin}).on('line', (line) => {
  let made;
  try { made = JSON.parse(line).map(set); } catch (error) { made = String(error); }
  console.log(JSON.stringify(made));
});
"""


@functools.cache
def _katex() -> subprocess.Popen[str]:
    """Return the process that sets a line of formulas at a time; it ends with this one."""
    line = ["node", "-e", _SCRIPT, str(FOLDER / "katex.js")]
    return subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def typeset(page: str) -> str:
    """Replace every formula of a page's HTML by KaTeX's HTML and MathML. Errors: ValueError with KaTeX's message."""
    found = list(_FORMULA.finditer(page))
    if not found:
        return page
    formulas = [(html.unescape(match[2] or match[3]), match[2] is None) for match in found]
    process = _katex()
    print(json.dumps(formulas), file=process.stdin, flush=True)
    made = json.loads(process.stdout.readline() or '"KaTeX has ended"')  # type: ignore[union-attr]
    if isinstance(made, str):
        raise ValueError(f"KaTeX: {made}")
    equations = iter(made)
    return _FORMULA.sub(lambda match: f'<{match[1]} class="equation">{next(equations)}</{match[1]}>', page)


def assets() -> dict[str, Path]:
    """Files of the site by address: the style sheet with its fonts, and the script of the search."""
    fonts = sorted((FOLDER / "fonts").glob("*.woff2"))
    paths = [FOLDER / "katex.min.css", FOLDER / "iframe-worker" / "index.js", *fonts]
    return {f"katex/{path.relative_to(FOLDER).as_posix()}": path for path in paths}
