"""Methods in files of the user's own: an edit changes the fingerprints, local imports work from any folder, errors name
file and line.
"""

from __future__ import annotations

import os
import py_compile
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from contexts import make_context
from refusals import refused

from distilvec.config import recipe as recipes
from distilvec.core.errors import DistilvecError
from distilvec.core.method_file import method_code, method_files, method_names
from distilvec.core.objective import check_terms
from distilvec.core.options import check_options
from distilvec.core.outputs import ModelOutputs
from distilvec.core.registry import build_objective, method_class
from distilvec.core.run_folder import RunFolder
from distilvec.pipeline.job import training_fingerprint
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.run import run
from distilvec.train.stages import training_stages
from experiments.shootout import mark_of, read_rows

CONTEXT = make_context(student_hidden_size=32, student_layers=2, teacher_dim=24)
METHOD = """from distilvec.core.objective import Objective
{imports}

class Mine(Objective):
    def __init__(self, context, weights, scale: float = 2.0):
        super().__init__(context, weights, {{'mine': scale}})

    def forward(self, batch, student, teacher):
        return {{'mine': (student.embedding - teacher.embedding).abs().sum(-1)}}
"""
TREE = {
    "name": "tiny",
    "teacher": {"model": "t"},
    "student": {"model": "teacher", "layers": 2},
    "corpus": {"sources": [{"path": "texts.txt"}]},
    "method": {"name": "redact", "options": {"distance": "mse"}},
    "train": {"epochs": 1},
}
STAGES = [{"name": "a", "set": {"method.name": "rkd", "method.options": {}}}, {"name": "b"}]


def write(path: Path, imports: str = "") -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(METHOD.format(imports=imports))
    return str(path)


def fingerprint(**changes) -> str:
    recipe = recipes.validate({**TREE, **changes})
    return training_fingerprint(
        recipe, tuple(training_stages(recipe, RunFolder(Path("run")))), "vectors", "corpus", "student"
    )


def test_methods_of_the_package_have_no_code_that_counts():
    assert {method_code(name) for name in method_names()} == {None}


@pytest.mark.parametrize(
    "edited", ["mine.py", "helper.py", "deep.py", "package/__init__.py", "package/inner/part.py", "lazy.py"]
)
def test_an_edit_of_any_file_counts(tmp_path, edited):
    """The method, what it imports, what that imports, all of a package, an import inside a function."""
    name = write(tmp_path / "mine.py", "import helper\nfrom package import inner\n\n\ndef late():\n    import lazy\n")
    (tmp_path / "package" / "inner").mkdir(parents=True)
    for other in (
        "deep.py",
        "lazy.py",
        "unused.py",
        "package/__init__.py",
        "package/inner/__init__.py",
        "package/inner/part.py",
    ):
        (tmp_path / other).write_text("x = 1\n")
    (tmp_path / "helper.py").write_text("import deep\nimport helper\n")
    staged = [{"name": "a"}, {"name": "b", "set": {"method.name": name, "method.options": {}}}]
    method = {"name": name}

    def all_marks():
        marks = (mark_of(recipes.validate({**TREE, **changes})) for changes in ({"method": method}, {"stages": staged}))
        return fingerprint(method=method), fingerprint(stages=staged), *marks

    before = all_marks()
    (tmp_path / "unused.py").write_text("y = 2\n")
    assert all_marks() == before
    path = tmp_path / edited
    path.write_text(path.read_text() + "# edited\n")
    assert all(now != then for now, then in zip(all_marks(), before, strict=True))


def test_what_does_not_count(tmp_path, monkeypatch):
    """Installed packages, the standard library and distilvec itself; a module on sys.path outside of them does."""
    name = write(
        tmp_path / "mine.py", "import json, torch, queue, distilvec.losses, elsewhere, absent_module, installed"
    )
    (tmp_path / "queue.py").write_text("")
    for folder, module in (("lib", "elsewhere"), ("target", "installed")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{module}.py").write_text("")
        monkeypatch.syspath_prepend(str(tmp_path / folder))
    (tmp_path / "target" / "some-1.0.dist-info").mkdir()
    assert list(method_files(Path(name))) == ["elsewhere.py", "mine.py"]


def test_local_imports_work_from_any_folder_and_edits_are_loaded(tmp_path, monkeypatch):
    for folder, scale in (("one", 3.0), ("two", 4.0)):
        write(tmp_path / folder / "mine.py", "from helper import SCALE")
        (tmp_path / folder / "helper.py").write_text(f"SCALE = {scale}\n")
        text = (tmp_path / folder / "mine.py").read_text()
        (tmp_path / folder / "mine.py").write_text(text.replace("scale: float = 2.0", "scale: float = SCALE"))
    monkeypatch.chdir("/")
    before = list(sys.path)
    found = [
        build_objective(str(tmp_path / folder / "mine.py"), {}, {}, CONTEXT).weights["mine"]
        for folder in ("one", "two", "one")
    ]
    assert found == [3.0, 4.0, 3.0] and sys.path == before, "each its own helper"
    (tmp_path / "one" / "helper.py").write_text("SCALE = 5.25\n")
    assert build_objective(str(tmp_path / "one" / "mine.py"), {}, {}, CONTEXT).weights["mine"] == 5.25
    assert method_class(str(tmp_path / "one" / "mine.py")) is method_class(str(tmp_path / "one" / "mine.py"))


@pytest.mark.parametrize("edited", ["mine.py", "helper.py", "package/part.py"])
def test_an_edit_within_a_second_is_loaded(tmp_path, monkeypatch, edited):
    """Kept byte code is told from other code by the size and the whole second of its source."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    name = write(tmp_path / "mine.py", "import helper\nfrom package import part\nOWN = 1.0\n")
    (tmp_path / "package").mkdir()
    for path in ("helper.py", "package/__init__.py", "package/part.py"):
        (tmp_path / path).write_text("OWN = 1.0\n")
    source = (tmp_path / "mine.py").read_text()
    (tmp_path / "mine.py").write_text(source.replace("= 2.0", "= 100 * OWN + 10 * helper.OWN + part.OWN"))
    for file in tmp_path.rglob("*.py"):
        os.utime(file, (1e9, 1e9))
        py_compile.compile(str(file))
    assert build_objective(name, {}, {}, CONTEXT).weights["mine"] == 111
    path = tmp_path / edited
    path.write_text(path.read_text().replace("OWN = 1.0", "OWN = 2.0"))
    os.utime(path, (1e9, 1e9))
    expected = {"mine.py": 211, "helper.py": 121, "package/part.py": 112}
    assert build_objective(name, {}, {}, CONTEXT).weights["mine"] == expected[edited]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1\n\nclass Mine(:\n", r"mine.py, line 3: SyntaxError: invalid syntax"),
        ("x = '\0'\n", r"mine.py: SyntaxError: source code .*null bytes"),
        ("\nimport absent_module\n", r"mine.py, line 2: ModuleNotFoundError: No module named 'absent_module'"),
        ("import broken\n", r"broken.py, line 2: ZeroDivisionError: division by zero"),
        ("import unfinished\n", r"unfinished.py, line 1: SyntaxError: .* was never closed"),
        ("import sys\nsys.exit(3)\n", r"mine.py, line 2: SystemExit: 3"),
        ("x = 1\n", r"exactly one Objective"),
    ],
)
def test_a_file_that_cannot_be_loaded(tmp_path, source, message):
    (tmp_path / "mine.py").write_text(source)
    (tmp_path / "broken.py").write_text("x = 0\ny = 1 / x\n")
    (tmp_path / "unfinished.py").write_text("x = (1\n")
    with pytest.raises(DistilvecError, match=rf"(?s)^\[method.name\] .*{message}.*\.$"):
        method_class(str(tmp_path / "mine.py"))
    assert method_code(str(tmp_path / "mine.py"))


def test_a_file_may_have_a_dataclass_and_types_for_a_checker_alone(tmp_path):
    path = tmp_path / "mine.py"
    source = METHOD.format(imports="from dataclasses import dataclass\nfrom typing import TYPE_CHECKING\n")
    checked = "if TYPE_CHECKING:\n    from distilvec.core.objective import Context\n\n\n"
    source = source.replace("class Mine", f"{checked}class Mine")
    source = source.replace("\nif TYPE", "\n@dataclass(frozen=True)\nclass Rule:\n    power: float = 1.0\n\n\nif TYPE")
    source = source.replace("self, context, weights", "self, context: Context, weights")
    path.write_text("from __future__ import annotations\n\n" + source)
    assert build_objective(str(path), {"scale": 3.0}, {}, CONTEXT).weights["mine"] == 3
    with refused("method.options.scale"):
        build_objective(str(path), {"scale": "much"}, {}, CONTEXT)


def test_a_constructor_that_raises(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        METHOD.format(imports="").replace("{'mine': scale})", "{'mine': scale})\n        self.x = context.moon")
    )
    with refused("method.name", "mine.py, line 7"):
        build_objective(str(path), {}, {}, CONTEXT)
    path.write_text(METHOD.format(imports="").replace("self, context, weights, scale: float = 2.0", "self"))
    with pytest.raises(DistilvecError, match=r"^\[method.name\] .*mine.py: TypeError"):
        build_objective(str(path), {}, {}, CONTEXT)
    path.write_text(METHOD.format(imports="").replace("scale: float = 2.0", "scale: float"))
    with pytest.raises(DistilvecError, match=r"^\[method.options.scale\] is missing"):
        build_objective(str(path), {}, {}, CONTEXT)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("simcse", {"temperature": "warm"}, r"temperature\] found 'warm'; expected a number"),
        ("simcse", {"temperature": True}, r"temperature\] found True; expected a number"),
        ("simcse", {"temperature": None}, r"temperature\] found None; expected a number"),
        ("simcse", {"head": 3}, r"head\] found 3; expected one of none, mlp"),
        ("talas", {"anchored_layers": 1.5}, r"anchored_layers\] found 1.5; expected a whole number"),
        ("talas", {"include_embeddings": "yes"}, r"include_embeddings\] found 'yes'; expected true or false"),
        ("jasper", {"prefixes": 8}, r"prefixes\] found 8; expected a list of these: a whole number of at least 1"),
        ("jasper", {"prefixes": [8, "16"]}, r"prefixes\] found \[8, '16'\]; expected a list"),
        (
            "distillmoe",
            {"facets": "pointwise"},
            r"facets\] found 'pointwise'; expected a list of these: one of pointwise, contrastive, pairwise",
        ),
        (
            "cdm",
            {"distillation_weight": 1.5},
            r"distillation_weight\] found 1.5; expected a number of at least 0 and of at most 1",
        ),
        ("uld", {"student_temperature": 0}, r"student_temperature\] found 0; expected a number above 0"),
        ("jasper", {"prefixes": []}, r"prefixes\] found \[\]; .* of at least length 1"),
        ("distillmoe", {"manual": {"a": 1}}, r"manual\] found \{'a': 1\}; expected a list of these: a number or null"),
    ],
)
def test_options_of_another_type(method, options, message):
    with pytest.raises(DistilvecError, match=rf"^\[method.options.{message}"):
        build_objective(method, options, {}, CONTEXT)


def test_options_of_the_right_type():
    for kind, value in (
        (float, 1),
        (float, float("inf")),
        (tuple[int, ...], [1, 2]),
        (Sequence[float] | None, [1]),
        (dict[str, int], {"a": 1}),
    ):

        def constructor(self, context, weights, x):
            pass

        constructor.__annotations__ = {"x": kind}
        check_options("any", constructor, {"x": value})
    assert build_objective("jasper", {"prefixes": [8, 16]}, {}, CONTEXT).prefixes == [8, 16]


@pytest.mark.parametrize(
    "terms",
    [None, {}, {"other": torch.ones(3)}, {"mine": torch.tensor(1.0)}, {"mine": torch.ones(2)}, {"mine": 1.0}],
)
def test_terms_of_another_form(tmp_path, terms):
    objective = build_objective(write(tmp_path / "mine.py"), {}, {}, CONTEXT)
    with refused("method.name", "mine.py"):
        check_terms(objective, terms, {3, 6})
    check_terms(objective, {"mine": torch.ones(3)}, {3, 6})


TERMS = """from distilvec import Objective


class Mine(Objective):
    default_weights = {DEFAULTS}

    def forward(self, batch, student, teacher):
        gap = (student.embedding - teacher.embedding).square()
        return self.weighted_terms({TERMS})
"""


@pytest.mark.parametrize(
    ("defaults", "terms", "named"),
    [
        ({"cos": 1.0, "gram": 20.0}, ("cos", "grm"), "'grm', which has no weight; did you mean 'gram'?"),
        ({"cos": 1.0}, ("cos", "gram"), "'gram', which has no weight"),
        ({"cos": 1.0}, ("cosine",), "'cosine', which has no weight; did you mean 'cos'?"),
        ({"cos": 1.0, "gram": 20.0}, ("cos",), "left out the term 'gram', which has weight 20"),
    ],
)
def test_a_term_without_a_weight_and_a_weight_without_a_term(tiny_recipe, tmp_path, defaults, terms, named):
    """Neither trains without a word: the report would state a weight that nothing had."""
    path = tmp_path / "mine.py"
    computed = ", ".join(f"{name}=lambda: gap.mean(-1)" for name in terms)
    path.write_text(TERMS.replace("{DEFAULTS}", str(defaults)).replace("{TERMS}", computed))
    recipe = tiny_recipe(method__name=str(path), train__max_steps=2)
    with refused("method.name", named) as caught:
        run(recipe, tmp_path / "run")
    assert str(path) in str(caught.value)


def test_a_term_of_weight_0_is_left_out(tmp_path):
    path = tmp_path / "mine.py"
    defaults = {"cos": 1.0, "gram": 20.0}
    path.write_text(
        TERMS.replace("{DEFAULTS}", str(defaults)).replace("{TERMS}", "cos=lambda: gap.mean(-1), gram=lambda: 1 / 0")
    )
    objective = build_objective(str(path), {}, {"gram": 0.0}, CONTEXT)
    outputs = ModelOutputs(embedding=torch.ones(3, 24))
    assert list(objective(None, outputs, outputs)) == ["cos"]
    check_terms(objective, {"cos": torch.ones(3)}, {3})


INIT = "    def __init__(self, context, weights):\n        {}\n\n    def forward"


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ("self, batch, student, teacher", "self, student, teacher", "forward() takes 3 positional arguments"),
        ("self, batch, student", "self, batch, labels, student", "missing 1 required positional argument"),
        ("student.embedding -", "student.embedding.detach() -", "no term of the loss has a gradient"),
        ("return", "gap.sqrt_().abs_().add_(1).sqrt_().exp_().add_(1)\n        return", "inplace operation"),
        ("    def forward", INIT.format("pass"), "does not call super().__init__(context, weights)"),
    ],
)
def test_a_mistake_that_shows_outside_of_the_file_names_it(tiny_recipe, tmp_path, before, after, named):
    path = tmp_path / "mine.py"
    source = TERMS.replace("{DEFAULTS}", "{'l2': 1.0}").replace("{TERMS}", "l2=lambda: gap.mean(-1)")
    path.write_text(source.replace(before, after))
    with refused("method.name", named) as caught:
        run(tiny_recipe(method__name=str(path), train__max_steps=2), tmp_path / "run")
    assert str(path) in str(caught.value)


def test_a_term_of_labels_in_a_recipe_without_a_task(tiny_recipe, tmp_path):
    path = tmp_path / "mine.py"
    source = TERMS.replace("{DEFAULTS}", "{'l2': 1.0, 'task': 1.0}")
    source = source.replace("{TERMS}", "l2=lambda: gap.mean(-1), task=lambda: task_term(batch, student)")
    path.write_text(f"from distilvec.methods.base.terms import task_term\n{source}")
    with refused("method.name", "the recipe has no task"):
        run(tiny_recipe(method__name=str(path), train__max_steps=1), tmp_path / "run")


@pytest.mark.parametrize(
    ("value", "absent"),
    [
        ("(student.pooled_layers[-1] - teacher.pooled_layers[-1]).sum(-1)", "student.pooled_layers"),
        ("student.hidden_layers[-1].sum((1, 2)) * student.embedding.sum(-1)", "student.hidden_layers"),
        ("(teacher.logits / 2).sum(-1)", "teacher.logits"),
        ("student.second_view.sum(-1) + teacher.embedding.sum(-1)", "student.second_view"),
    ],
)
def test_an_output_that_was_not_declared_is_named(tiny_recipe, tmp_path, value, absent):
    path = tmp_path / "mine.py"
    path.write_text(TERMS.replace("{DEFAULTS}", "{'x': 1.0}").replace("{TERMS}", f"x=lambda: {value}"))
    with refused("method.name", absent) as caught:
        run(tiny_recipe(method__name=str(path), train__max_steps=1), tmp_path / "run")
    assert f"{path}, line" in str(caught.value) and "student_outputs" in caught.value.fix
    assert "embedding" not in str(caught.value)


def test_a_name_that_is_a_file_of_this_folder_and_a_file_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with refused("method.name", "did you mean 'mined'?"):
        method_class("mine")
    write(tmp_path / "mine.py")
    with refused("method.name", "did you mean the file ./mine.py?"):
        method_class("mine")
    with refused("method.name", "begins in the recipe's folder"):
        method_class("absent.py")


def test_a_record_has_the_code_that_was_trained_not_what_was_written_meanwhile(tiny_recipe, tmp_path, monkeypatch):
    path = tmp_path / "mine.py"
    trained = method_code(write(path))
    forward = method_class(str(path)).forward

    def edited(self, batch, student, teacher):
        path.write_text(path.read_text() + "# an idea, written while the training runs\n")
        return forward(self, batch, student, teacher)

    monkeypatch.setattr(method_class(str(path)), "forward", edited)
    recipe = tiny_recipe(method__name=str(path), train__max_steps=1)
    assert run(recipe, tmp_path / "run").record.method.code == trained != method_code(str(path))


def test_a_record_has_the_code_of_every_stage(tiny_recipe, tmp_path):
    """Runs whose first stage had other code are no repetitions of each other."""
    first = tmp_path / "first.py"
    stages = []
    for path in (first, tmp_path / "second.py"):
        stages.append({"name": path.stem, "set": {"method.name": write(path), "train.max_steps": 1}})
    before = run(tiny_recipe(stages=stages), tmp_path / "before").record.method.code
    assert before == run(tiny_recipe(stages=stages), tmp_path / "again").record.method.code
    first.write_text(first.read_text() + "# another idea\n")
    assert run(tiny_recipe(stages=stages), tmp_path / "after").record.method.code != before


def test_a_forward_that_raises_names_the_file_and_an_edit_trains_again(tiny_recipe, tmp_path):
    path = tmp_path / "mine.py"
    write(path)
    path.write_text(path.read_text().replace("student.embedding - ", "student.embedding[:, :3] - "))
    job = resolve(tiny_recipe(method__name=str(path), train__max_steps=2), tmp_path / "run")
    with refused("method.name", "RuntimeError"):
        run(job.recipe, job.folder)
    write(path)
    recipe = tiny_recipe(method__name=str(path), train__max_steps=2)
    run(recipe, tmp_path / "run")  # nothing was trained before, so the corrected file is taken
    path.write_text(path.read_text().replace(".abs()", ".square()"))
    with pytest.raises(DistilvecError, match="--restart"):
        run(recipe, tmp_path / "run")


@pytest.mark.parametrize("content", ["{", "[]", '{"rows": 3}', '{"rows": [{"run": "a"}]}', "{}"])
def test_a_damaged_file_of_a_shootout(tmp_path, content):
    (tmp_path / "shootout.json").write_text(content)
    with pytest.raises(DistilvecError, match=r"^\[shootout.json\] .*Move it away"):
        read_rows(tmp_path / "shootout.json")
