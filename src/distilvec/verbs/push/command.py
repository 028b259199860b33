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
    public: Annotated[bool, option("A public repository; private by default.", "--public")] = False,
    license: Annotated[str | None, option("Its id, such as apache-2.0, if the model card has none.")] = None,
    revision: Annotated[str | None, option("A branch; main by default.")] = None,
    message: Annotated[str | None, option("The commit's message.")] = None,
    update: Annotated[bool, option("Push into a repository that exists.", "--update")] = False,
) -> None:
    """Upload a model with its card to the Hugging Face hub.

    Into a private repository. The token is that of HF_TOKEN or of `hf auth login`. Pickles, states of training and
    hidden files stay here.
    """
    check_input(model, "model")

    from distilvec.cli.terminal import print_result
    from distilvec.verbs.push.push import push_model

    pushed = push_model(model, repo_id, public, license, revision, message, update)
    print_result(f"{len(pushed.files)} files, {'private' if pushed.private else 'public'}: {pushed.url}")
