"""Run by test_push.py with HF_ENDPOINT of a stub: `python push_commands.py JOBS.json ANSWERS.json`.

A job has `arguments` of the command line and `environment`; its answer is the exit status with both outputs.
huggingface_hub reads the endpoint when it is imported, so that it needs a process of its own.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from pathlib import Path

from distilvec.__main__ import run_command

if __name__ == "__main__":
    answers = []
    for job in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
        os.environ.update(job["environment"])
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = run_command(job["arguments"])
        answers.append({"status": status, "out": out.getvalue(), "err": err.getvalue()})
    Path(sys.argv[2]).write_text(json.dumps(answers), encoding="utf-8")
