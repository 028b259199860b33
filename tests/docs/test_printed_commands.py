"""What a run prints to be tried next runs as it is printed: code and commands of page, card and terminal."""

from __future__ import annotations

import html
import json
import re
import shlex
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from blocks import check_command, commands
from labelled import write_task
from refusals import refused
from samples import make_texts

from distilvec.__main__ import run_command
from distilvec.cli.terminal import show_end
from distilvec.config import recipe as recipes
from distilvec.core.artifacts import ArtifactStore
from distilvec.core.errors import DistilvecError
from distilvec.core.run_folder import RunFolder
from distilvec.evaluation.speed import measure_speed
from distilvec.pipeline.run import run
from distilvec.teachers.cache.journal import JOURNAL, read_journal
from distilvec.teachers.cache.store import TeacherCache
from distilvec.verbs.demo import demo
from distilvec.verbs.demo.demo import find_runtime
from distilvec.verbs.run.sweep import expand_sweep, run_sweep

CODE = re.compile(r"<pre id=\"code-(?:load-the-student|predict|next)\"[^>]*><code>(.*?)</code></pre>", re.DOTALL)
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a space in its name, where everything is run."""
    folder = tmp_path / "my work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def suite(folder):
    texts = make_texts(40, seed=5)
    rows = [
        {"sentence1": first, "sentence2": second, "score": number % 6, "split": "test"}
        for number, (first, second) in enumerate(zip(texts[::2], texts[1::2], strict=True))
    ]
    (folder / "sts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "my suite.yaml").write_text("- {name: sts, type: sts, path: sts.jsonl}\n")
    return "my suite.yaml"


def check_snippets(snippets):
    """Run code, and check that a command is parsed; return the commands as words."""
    found = []
    for code in snippets:
        if code.startswith("distilvec "):
            found += commands(code)
        else:
            exec(compile(code, "printed", "exec"), {"__name__": "printed"})
    return found


@pytest.mark.slow
def test_a_run_with_a_suite(tiny_model, folder, suite, capsys, monkeypatch):
    """The teacher is a folder, which was printed by its last part."""
    (folder / "texts.txt").write_text("\n".join(make_texts(200)))
    status = run_command(
        [
            *("run", "redact", "--variant", "local", f"teacher.model={tiny_model}"),
            *("teacher.max_length=null", "student.layers=2"),
            *("corpus.sources=[{path: texts.txt}]", "corpus.validation_rows=16", "train.max_steps=2"),
            "train.keep_checkpoint=true",
            *(f"evaluation.suite={suite}", "evaluation.parts=[]", "--out", "runs/a b"),
        ]
    )
    out, problems = capsys.readouterr()
    assert status == 0, problems
    advised = re.findall(r"distilvec [a-z]+ [^()]*?(?= \(|\.$|$)", " ".join(out.split()))
    assert advised[-1] == out.splitlines()[-1].removeprefix("next: ")
    page = (folder / "runs" / "a b" / "report.html").read_text()
    found = check_snippets(map(html.unescape, CODE.findall(page)))
    assert [words[1] for words in found] == ["export", "evaluate", "speed"]
    assert str(tiny_model) in found[1] and str(tiny_model) in found[2]
    for words in [*found, *(commands(line)[0] for line in advised)]:
        check_command(words, folder)
    assert any(words[1] == "export" for words in found)
    monkeypatch.setattr("distilvec.evaluation.speed.measure_speed", partial(measure_speed, batch_sizes=[1]))
    for words in found[:2]:
        assert run_command([*words[1:], *(["--seconds", "0.001"] if words[1] == "speed" else [])]) == 0, words
    card = (folder / "runs" / "a b" / "student" / "README.md").read_text()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder / "runs" / "a b" / "student")
        check_snippets(PYTHON.findall(card))
    last = (RunFolder(folder / "runs" / "a b").last / "README.md").read_text()
    assert "finished training" in last and "has not finished" not in last


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classification", "pair", "sts"])
def test_a_run_of_a_labelled_task(kind, tiny_model, folder, capsys):
    write_task(folder / "rows.jsonl", kind, 60, 12)
    tree = {
        "name": "labels",
        "teacher": {"model": str(tiny_model)},
        "student": {"model": "teacher", "layers": 2},
        "task": {"type": kind, "path": str(folder / "rows.jsonl")},
        "method": {"name": "task"},
        "train": {"max_steps": 2, "batch_size": 8},
        "evaluation": {"parts": []},
    }
    result = run(recipes.validate(tree), folder / "runs" / "labels")
    show_end(result)
    (words,) = commands(capsys.readouterr().out.splitlines()[-1].removeprefix("next: "))
    check_command(words, folder)
    snippets = [html.unescape(code) for code in CODE.findall(result.page.read_text())]
    assert any("TaskModel" in code for code in snippets)
    for words in check_snippets(snippets):
        check_command(words, folder)
    card = (folder / "runs" / "labels" / "student" / "README.md").read_text()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder / "runs" / "labels" / "student")
        check_snippets(PYTHON.findall(card))


def test_saved_students_say_what_they_are(tiny_recipe, tmp_path):
    recipe = tiny_recipe(train__keep_students=2, train__max_steps=4)
    run(recipe, tmp_path / "run")
    cards = {path.parent.name: path.read_text() for path in (tmp_path / "run").rglob("README.md")}
    assert cards.keys() == {"student", "last", "step-2", "step-4"}
    assert not any("has not finished" in card for card in cards.values())
    assert "after step 2" in cards["step-2"] and "../../student" in cards["step-2"]


def test_a_damaged_cache_names_the_command_that_repairs_it(folder, monkeypatch, capsys):
    cache = Path("my cache")
    cache.mkdir()
    (cache / JOURNAL).write_text("{\n")
    with refused("cache.path") as caught:
        read_journal(cache)
    monkeypatch.setattr(TeacherCache, "verify_folder", lambda *words, **options: ["shard 0: damaged"])
    assert run_command(["cache", "verify", str(cache)]) == 2
    for text in (str(caught.value), " ".join(capsys.readouterr().err.split())):
        (words,) = commands(re.search(r"`(distilvec [^`]+)`", text)[1])
        assert words == ["distilvec", "cache", "verify", "my cache", "--repair"]
        check_command(words, folder)


def test_a_sweep_names_the_command_that_compares_its_other_runs(tiny_recipe, folder):
    members = expand_sweep({**tiny_recipe().model_dump(mode="json"), "sweep": {"seeds": [0, 1]}})

    def runner(recipe, place):
        if recipe.train.seed == 1:
            raise DistilvecError("failed.", key="train")

    with refused("sweep") as caught:
        run_sweep(members, Path("my sweep"), runner)
    (words,) = commands(re.search(r"distilvec compare .*", str(caught.value))[0])
    assert words == ["distilvec", "compare", "my sweep"]
    check_command(words, folder)


def test_the_commands_of_a_demo(folder, monkeypatch, capsys):
    monkeypatch.setattr(demo, "write_demo", lambda *words: {"page": 1.0})
    (folder / "run").mkdir()
    assert run_command(["demo", "run", "--out", "my demo"]) == 0
    assert shlex.split(capsys.readouterr().out.splitlines()[-1])[-2:] == ["--directory", "my demo"]

    with refused("--runtime") as caught:
        find_runtime(ArtifactStore(folder / "cache"), Path("my copy"))
    words = shlex.split(caught.value.fix.removeprefix("Fill it: "))
    assert words[:2] == ["npm", "install"] and words[words.index("--prefix") + 1] == "my copy"

    files = RunFolder(Path("my run"))
    record = SimpleNamespace(teacher_compatible=False)
    run_of_another_space = SimpleNamespace(record=record, files=files, folder=files.path, student_folder=files.student)
    with refused("demo") as caught:
        demo._demo_model_folder(run_of_another_space)
    (words,) = commands(re.search(r"distilvec export .*(?=\.)", caught.value.fix)[0])
    assert words == ["distilvec", "export", "my run/student", "--to", "projected"]
    check_command(words, folder)
