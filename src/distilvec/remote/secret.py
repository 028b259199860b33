"""A key in every spelling in which servers repeat it, and the hosts that it may be sent to."""

from __future__ import annotations

import base64
import html
import re
from urllib.parse import urlsplit

from distilvec.config.endpoint import EndpointSection, is_this_machine
from distilvec.core.errors import DistilvecError

# Variables that belong to a service begin with this, and go to hosts that end in one of these
_SERVICES = {
    "AWS_": ("amazonaws.com", "aws"),
    "AZURE_": ("azure.com", "windows.net"),
    "GITHUB_": ("github.com", "githubcopilot.com", "github.ai"),
    "GH_": ("github.com",),
    "GITLAB_": ("gitlab.com",),
    "GOOGLE_": ("googleapis.com", "google.com"),
    "HF_": ("huggingface.co", "hf.space", "huggingface.cloud"),
    "HUGGING_FACE_": ("huggingface.co", "hf.space", "huggingface.cloud"),
    "HUGGINGFACE_": ("huggingface.co", "hf.space", "huggingface.cloud"),
    "OPENAI_": ("openai.com", "azure.com"),
    "ANTHROPIC_": ("anthropic.com",),
    "COHERE_": ("cohere.com", "cohere.ai"),
    "VOYAGE_": ("voyageai.com",),
    "MISTRAL_": ("mistral.ai",),
    "WANDB_": ("wandb.ai",),
    "NPM_": (),
    "PYPI_": (),
    "TWINE_": (),
    "DOCKER_": (),
    "SSH_": (),
    "PGPASS": (),  # PGPASSWORD and PGPASSFILE; PGVECTOR_KEY may be anybody's
    "POSTGRES": (),
    "MYSQL_": (),
    "REDIS_": (),
    "DATABASE_": (),
    "STRIPE_": (),
    "SLACK_": (),
}
_NAMED = {'"': "quot", "&": "amp", "'": "apos", "<": "lt", ">": "gt", "+": "plus", "/": "sol", "=": "equals"}


def hide(text: str, secret: str) -> str:
    """The text with *** for the secret: as it is, with escapes of JSON, URLs and HTML, in base64 and in hex."""
    if not secret:
        return text
    for form in (secret, *_base64_forms(secret), secret.encode().hex()):
        text = re.sub("".join(map(_spellings, form)), "***", text, flags=0 if form == secret else re.IGNORECASE)
    return text


def _spellings(letter: str) -> str:
    """A pattern of the ways to write one letter; percent signs and backslashes may be escaped themselves.

    Repeats are bounded: without a bound the time grows with the square of a run of backslashes.
    """
    number = ord(letter)
    names = [f"&{name};" for name in [_NAMED.get(letter)] if name]
    ways = [
        rf"\\{{0,8}}{re.escape(letter)}",
        rf"\\{{1,8}}(?i:u00{number:02x}|x{number:02x})",
        rf"%(?:25){{0,4}}(?i:{number:02x})",
        rf"&(?:amp;)?\#0{{0,8}}{number};",
        rf"&(?:amp;)?\#[xX]0{{0,8}}(?i:{number:x});",
        *map(re.escape, {*names, html.escape(letter)} - {letter}),
    ]
    return f"(?:{'|'.join(ways)})"


def _base64_forms(secret: str) -> list[str]:
    """What stands in base64 of any text around the secret: three positions, of the usual and the URL's letters."""
    forms = []
    for offset in range(3):
        data = b"\0" * offset + secret.encode()
        coded = base64.b64encode(data).decode().rstrip("=")
        # Letters at both ends share bits with the neighbours
        inner = coded[(0, 2, 3)[offset] : None if len(data) % 3 == 0 else -1]
        if len(inner) >= 6:
            forms += [inner, inner.replace("+", "-").replace("/", "_")]
    return list(dict.fromkeys(forms))


def check_destination(section: EndpointSection, key: str) -> None:
    """Raise DistilvecError where a key would leave this machine without TLS, or go to a host of another service.

    `trusted` allows both.
    """
    variable = section.key_variable
    if variable is None or section.trusted or is_this_machine(section.host):
        return
    fix = f"If that is right, set {key}.trusted=true (a server that is named by its address: DISTILVEC_API_TRUSTED=1)."
    if urlsplit(section.base_url).scheme == "http":
        problem = f"the key in {variable} would be sent to {section.host} in the clear (http)."
        raise DistilvecError(problem, f"Use https. {fix}", key=f"{key}.base_url")
    for beginning, hosts in _SERVICES.items():
        belongs = any(section.host == host or section.host.endswith(f".{host}") for host in hosts)
        if variable.startswith(beginning) and not belongs:
            problem = f"{variable} would be sent to {section.host}, which is another service."
            raise DistilvecError(problem, f"Name the key of that host. {fix}", key=f"{key}.key_variable")
