"""The verb serve: a model as an HTTP server."""

from __future__ import annotations

import os
from typing import Annotated

from distilvec.cli.options import ModelOrFile, TrustRemoteCode, check_model_path, option
from distilvec.core.errors import DistilvecError

KEY = "DISTILVEC_SERVE_KEY"


def serve(
    model: ModelOrFile,
    host: Annotated[str, option("The address to listen at; 0.0.0.0 also serves other machines.")] = "127.0.0.1",
    port: Annotated[int, option("The port; 0 takes a free port.", min=0, max=65535)] = 8000,
    name: Annotated[str | None, option("The model's name in requests; by default the folder's name.")] = None,
    max_batch: Annotated[int, option("Most texts that the model embeds together, of all requests.", min=1)] = 256,
    max_texts: Annotated[int, option("Most texts in a request.", min=1)] = 2048,
    max_body: Annotated[float, option("Most megabytes in a request.", min=0.001)] = 4,
    truncate: Annotated[bool, option("Cut texts that are too long instead of refusing them.", "--truncate")] = False,
    allow_host: Annotated[
        list[str] | None, option("A name of this server, or a site whose pages may use it. May be repeated.")
    ] = None,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Serve a model over HTTP, like OpenAI's API.

    /v1/embeddings, /health and /metrics; Ctrl-C or SIGTERM ends it. With the environment variable DISTILVEC_SERVE_KEY,
    requests to /v1 need that key. input_type, "query" or "document", chooses the model's prompt. Web pages of other
    sites are refused: by the header Origin and, if the server is for this machine only, by Host.
    """
    check_model_path(model, "model")
    from distilvec.core.extras import require_extra

    require_extra("serve", "serve")
    from distilvec.config.endpoint import is_this_machine
    from distilvec.verbs.serve.server import run_server, take_address

    key = os.environ.get(KEY)
    if key is not None and not key.strip():
        raise DistilvecError(
            "is set to nothing: requests would need no key.", "Set a key, or unset the variable.", key=KEY
        )
    with take_address(host, port) as place:
        from distilvec.core.device import return_memory
        from distilvec.core.log import log
        from distilvec.verbs.serve.app import Limits, make_app
        from distilvec.verbs.serve.model import ServedModel

        limits = Limits(body=int(max_body * 1e6), texts=max_texts, batch_texts=max_batch, truncate=truncate)
        return_memory()
        served = ServedModel(model, name, trust_remote_code=trust_remote_code)
        address = f"[{host}]" if ":" in host else host
        log(f"serving {served.name} ({served.dim} dims) at http://{address}:{place.getsockname()[1]}/v1/embeddings")
        if served.loses_space_unseen:
            log(
                f"{served.name} has a linear layer behind its pooling that keeps the {served.dim} dims: this server "
                "runs it; one that leaves it out would answer in another space, without an error (docs/clients.md)"
            )
        names = allow_host or []
        # A server that other machines use has names that it cannot know
        hosts = [host, *names] if is_this_machine(host) else None
        run_server(make_app(served, limits, None if key is None else key.strip(), hosts, origins=names), place)
        log(f"stopped serving {served.name}")
