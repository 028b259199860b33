"""The command `distilvec push`."""

from __future__ import annotations

import shlex
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
    dry_run: Annotated[bool, option("List the files and the license; nothing is sent.", "--dry-run")] = False,
    out: Annotated[Path | None, option("A new folder for the files with the card of the hub; nothing is sent.")] = None,
) -> None:
    """Upload a model with its card to the Hugging Face hub.

    The repository is private by default. The token comes from HF_TOKEN or `hf auth login`. Pickles, training states and
    hidden files are not uploaded.
    """
    check_input(model, "model")

    from distilvec.cli.terminal import print_result, show_table
    from distilvec.verbs.push.push import planned_files, planned_license, prepare_push, push_model

    if dry_run or out is not None:
        files = planned_files(model, repo_id)
        show_table(["file", "MB"], [[name, f"{size / 1e6:.2f}"] for name, size in files.items()])
        visibility, branch = "public" if public else "private", revision or "main"
        print_result(f"{repo_id} ({visibility}), branch {branch}: {sum(files.values()) / 1e6:.1f} MB")
        print_result(planned_license(model, license))
        if out is not None:
            prepare_push(model, repo_id, out, files, license, revision)
            print_result(f"ready: hf upload {shlex.join([repo_id, str(out)])}")
        return
    pushed = push_model(model, repo_id, public, license, revision, message, update)
    print_result(f"{len(pushed.files)} files, {'private' if pushed.private else 'public'}: {pushed.url}")
    print_result(planned_license(model, license))
