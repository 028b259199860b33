"""The hosts that a key may be sent to."""

from __future__ import annotations

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
