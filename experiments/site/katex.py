"""Equations set by KaTeX while the site is built: pages need its style sheet and fonts, no script and no other host."""

from __future__ import annotations

import html
import json
import re
import subprocess
from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".katex"  # `make .katex/installed` fills it
_FORMULA = re.compile(r'<(span|div) class="arithmatex">(?:\\\((.*?)\\\)|\\\[(.*?)\\\])</\1>', re.DOTALL)
_SCRIPT = """
const katex = require(process.argv[1]);
const formulas = JSON.parse(require('fs').readFileSync(0, 'utf8'));
const set = ([text, displayMode]) => katex.renderToString(text, {displayMode, strict: 'error', throwOnError: true});
process.stdout.write(JSON.stringify(formulas.map(set)));
"""


def typeset(page: str) -> str:
    """Replace every formula of a page's HTML by KaTeX's HTML and MathML. Errors: ValueError with KaTeX's message."""
    found = list(_FORMULA.finditer(page))
    if not found:
        return page
    formulas = [(html.unescape(match[2] or match[3]), match[2] is None) for match in found]
    done = subprocess.run(
        ["node", "-e", _SCRIPT, str(FOLDER / "katex.js")], input=json.dumps(formulas), capture_output=True, text=True
    )
    if done.returncode:
        problem = next((line for line in done.stderr.splitlines() if "Error" in line), done.stderr[-300:])
        raise ValueError(f"KaTeX: {problem}")
    made = iter(json.loads(done.stdout))
    return _FORMULA.sub(lambda match: f'<{match[1]} class="equation">{next(made)}</{match[1]}>', page)


def assets() -> dict[str, Path]:
    """Files of the site by address: the style sheet and its fonts."""
    fonts = sorted((FOLDER / "fonts").glob("*.woff2"))
    return {f"katex/{path.relative_to(FOLDER).as_posix()}": path for path in [FOLDER / "katex.min.css", *fonts]}
