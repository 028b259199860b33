"""The command `distilvec push`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from distilvec.cli.options import (
    argument,
    check_input,
    option,
)


def push(
    model: Annotated[Path, argument("A model's folder, such as RUN/student.")],
    repo_id: Annotated[str, argument("OWNER/NAME on the hub.")],
    public: Annotated[bool, option("Make the repository public; private by default.", "--public")] = False,
    license: Annotated[
        str | None, option("The license id, such as apache-2.0, if the model card has no license.")
    ] = None,
    revision: Annotated[str | None, option("A branch; main by default.")] = None,
    message: Annotated[str | None, option("The commit's message.")] = None,
    update: Annotated[bool, option("Push into an existing repository.", "--update")] = False,
) -> None:
    """Upload a model with its card to the Hugging Face hub.

    The repository is private by default. The token comes from HF_TOKEN or `hf auth login`. Pickles, training states and
    hidden files are not uploaded.
    """
    check_input(model, "model")

    from distilvec.cli.terminal import print_result
    from distilvec.verbs.push.push import push_model

    pushed = push_model(model, repo_id, public, license, revision, message, update)
    print_result(f"{len(pushed.files)} files, {'private' if pushed.private else 'public'}: {pushed.url}")
