"""The command `distilvec speed`."""

from __future__ import annotations

from typing import Annotated

from distilvec.cli.options import (
    JsonFile,
    TrustRemoteCode,
    argument,
    check_model_path,
    check_outputs,
    check_positive,
    option,
)
from distilvec.cli.output import write_result
from distilvec.core.errors import about


def speed(
    models: Annotated[list[str], argument("SentenceTransformer folders or ids; the first is the reference.")],
    full: Annotated[bool, option("The papers' 20 warm-ups and 200 repeats of every setting.")] = False,
    seconds: Annotated[float, option("Seconds for each setting, without --full.")] = 2.0,
    trust_remote_code: TrustRemoteCode = False,
    json_file: JsonFile = None,
) -> None:
    """Measure latency, throughput and memory of models.

    By batch size and length, in PyTorch and ONNX Runtime.
    """
    check_outputs([("--json", json_file)], models)
    check_positive(seconds, "--seconds")
    for name in models:
        check_model_path(name, "models")

    from distilvec.cli.terminal import print_result
    from distilvec.core.log import progress
    from distilvec.evaluation.speed import Timing, measure_speed
    from distilvec.report.json_values import to_json
    from distilvec.report.sections.speed import speed_text
    from distilvec.teachers.open import open_model

    timing = Timing(20, 200, None if full else seconds)
    with about("models"):
        loaded = {name: open_model(name, device="cpu", trust_remote_code=trust_remote_code).model for name in models}
    with progress("speed", 100, "%") as advance:

        def note(what: str, done: int, total: int) -> None:
            advance(100 * done // max(1, total), what)

        report = measure_speed(loaded, timing=timing, progress=note)
    write_result(json_file, to_json(report, defaults=True))
    print_result(speed_text(report))
