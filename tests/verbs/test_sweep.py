"""Sweeps: what they expand to, whole ones on tiny models, resume, failures."""

from __future__ import annotations

import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from refusals import refused

import distilvec
from distilvec.__main__ import run_command
from distilvec.config import recipe as recipes
from distilvec.config.builtin import recipe_files
from distilvec.core.errors import Busy, DistilvecError
from distilvec.core.files import acquire_lock
from distilvec.core.run_folder import FORMAT, RunFolder
from distilvec.pipeline.claim import own_folder
from distilvec.pipeline.run import run
from distilvec.teachers.model_embedder import ModelEmbedder
from distilvec.train.trainer import Trainer
from distilvec.verbs.compare.compare import compare_runs
from distilvec.verbs.run.sweep import expand_sweep, load_runs, read_sweep, run_sweep

RECIPE = """
name: mini
teacher: {model: ./teacher}
student: {model: teacher}
corpus: {seed: 5, sources: [{path: data/texts.txt}]}
method: {name: redact}
variants:
  long: {student.max_length: 512}
  short: {student.max_length: 32}
sweep:
  grid: {train.batch_size: [16, 32], student.pooling: [mean, cls]}
  variants: [long, short]
  seeds: [0, 1, 2]
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mini.yaml"
    path.write_text(RECIPE)
    return path


@pytest.fixture
def sweep_of(tiny_recipe):
    """The members of a sweep on the tiny recipe, with no part of the report beside the scores."""

    def make(sweep, **changes):
        return expand_sweep({**tiny_recipe(evaluation__parts=[], **changes).model_dump(mode="json"), "sweep": sweep})

    return make


GRID = {"grid": {"student.pooling": ["mean", "cls"]}, "seeds": [0, 1]}


# -- expanding -------------------------------------------------------------------------------------------------------


def test_members_are_the_product(file, tmp_path):
    members = expand_sweep(file, ["train.epochs=2"])
    assert len(members) == 2 * 2 * 2 * 3 == len({member.name for member in members})
    by_name = {member.name: member for member in members}
    one = by_name["short,batch_size=32,pooling=cls,seed=1"]
    assert one.group == "short,batch_size=32,pooling=cls"
    recipe = one.recipe
    assert (recipe.student.max_length, recipe.train.batch_size, recipe.student.pooling, recipe.train.seed) == (
        32,
        32,
        "cls",
        1,
    )
    assert recipe.train.epochs == 2 and recipe.corpus.seed == 5
    assert recipe.name == "mini-short,batch_size=32,pooling=cls,seed=1"
    assert recipe.corpus.sources[0].path == tmp_path / "data" / "texts.txt" and recipe.teacher.model == str(
        tmp_path / "teacher"
    )
    plain = {"name", "train", "student"}
    assert recipe.model_dump(exclude=plain) == recipes.load(_without_sweep(file), "short").model_dump(exclude=plain)


def _without_sweep(file: Path) -> Path:
    path = file.with_name("plain.yaml")
    path.write_text(RECIPE.partition("sweep:")[0])
    return path


def test_groups_differ_by_seed_only(file):
    groups: dict[str, list] = {}
    for member in expand_sweep(file):
        tree = member.recipe.model_dump(mode="json")
        tree.pop("name")
        groups.setdefault(member.group, []).append((tree["train"].pop("seed"), tree))
    assert len(groups) == 8
    for members in groups.values():
        assert [seed for seed, _ in members] == [0, 1, 2] and all(tree == members[0][1] for _, tree in members)


def test_one_variant_or_another_sweep_by_override(file):
    assert {member.recipe.student.max_length for member in expand_sweep(file, variant="long")} == {512}
    assert [member.name for member in expand_sweep(file, ["sweep={seeds: [3, 4]}"])] == ["seed=3", "seed=4"]
    assert {member.group for member in expand_sweep(file, ["sweep={seeds: [3, 4]}"])} == {"mini"}
    assert {member.recipe.train.seed for member in expand_sweep(file, ["sweep.seeds=[7]"])} == {7}


def test_names_are_safe_short_and_distinct(file):
    grid = {
        "method.options": [{"distance": "l2"}, {"distance": "mse"}],
        "student.model": ["a/b", "a b", "A/B", "x" * 300],
        "student.layers": [[0, 2, 5], None],
        "train.schedule.name": ["constant"],
        "teacher.name": ["t"],
        "corpus.sources.0.limit": [10],
        "train.learning_rate": [1e-5],
    }
    names = [member.name for member in expand_sweep(file, [f"sweep={json.dumps({'grid': grid})}"])]
    assert len(names) == 16 == len({name.casefold() for name in names})
    assert all(len(name.encode()) < 200 and not set(name) & set('/\\:*?"<>| \n') for name in names)
    assert (
        names[0]
        == "options=option1,student.model=a-b,layers=0-2-5,schedule.name=constant,teacher.name=t,sources.0.limit=10,learning_rate=1e-05"  # noqa: E501
    )
    assert names[1].replace("null", "0-2-5") == names[0]


def test_no_run_is_named_like_the_sweeps_own_folder(file):
    file.write_text(RECIPE.replace("long", "Details"))
    names = [member.name for member in expand_sweep(file, ["sweep={variants: [Details, short]}"])]
    assert names == ["Details-2", "short"]


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        ({"grid": {"train.batch_sise": [1]}}, r"^\[train.batch_sise\] unknown key; did you mean 'batch_size'"),
        ({"grid": {"trian.batch_size": [1]}}, r"\[trian\] unknown key; did you mean 'train'"),
        (
            {"grid": {"train.batch_size": [8, 0]}},
            r"^\[train.batch_size\] .*greater than 0; found 0\. In .*batch_size=0\.$",
        ),
        ({"grid": {"corpus.sources.3.limit": [1]}}, r"\[corpus.sources.3.limit\] cannot be set.*number within it"),
        ({"grid": {"name.x": [1]}}, r"'name' holds a value"),
        ({"grid": {"train.batch_size": []}}, r"\[sweep.grid.train.batch_size\] .*at least 1 item"),
        ({"grid": {"train.batch_size": 8}}, r"\[sweep.grid.train.batch_size\] .*list; found 8"),
        ({"seeds": []}, r"\[sweep.seeds\] .*at least 1 item"),
        ({"variants": []}, r"\[sweep.variants\] .*at least 1 item"),
        ({"seeds": [2**63]}, r"\[sweep.seeds.0\] .*less than"),
        ({"grid": {"train.epochs": [1, True]}}, r"\[train.epochs\] .*not a boolean"),
        ({"seeds": [-1]}, r"\[sweep.seeds.0\] .*greater than or equal to 0"),
        ({"variants": ["lnog"]}, r"no variant 'lnog'; did you mean 'long'"),
        ({"sed": [1]}, r"\[sweep.sed\] unknown key; did you mean 'seeds'"),
        ({}, r"varies nothing"),
        ({"grid": {"train.seed": [1]}}, r"list its values under 'seeds'"),
        ({"seeds": [1, 2, 1]}, r"seeds lists 1 twice"),
        ({"grid": {"train.epochs": list(range(1, 102))}, "seeds": list(range(10))}, r"1,010 .* at most 1,000"),
        ([1], r"valid dictionary|mapping"),
    ],
)
def test_mistakes_are_named(file, sweep, message):
    with pytest.raises(DistilvecError, match=message):
        expand_sweep(file, [f"sweep={json.dumps(sweep)}"])


def test_a_recipe_without_a_sweep_and_overrides_that_fight_it(file):
    single = load_runs(_without_sweep(file))
    assert not single.is_sweep and [member.recipe for member in single.members] == [recipes.load(_without_sweep(file))]
    assert load_runs(file).members == expand_sweep(file) and load_runs(file).is_sweep
    assert load_runs(_without_sweep(file), ["sweep.seeds=[1]"]).is_sweep
    with refused("sweep"):
        expand_sweep(_without_sweep(file))
    for override in ("train.batch_size=8", "train.seed=3", "student={model: teacher}"):
        with pytest.raises(DistilvecError, match=r"the sweep varies (train|student)"):
            expand_sweep(file, [override])
    with pytest.raises(DistilvecError, match="key=value"):
        expand_sweep(file, ["train.epochs"])


def test_a_variant_may_change_the_sweep(file):
    """Also one that makes a recipe without a sweep a sweep, or one with a sweep a single run."""
    variants = "variants:\n  few: {sweep.seeds: [8, 9], student.max_length: 16}\n  single: {sweep: null}\n"
    plain = _without_sweep(file)
    for path in (plain, file):
        path.write_text(path.read_text().replace("variants:\n", variants, 1))
    runs = load_runs(plain, variant="few")
    assert runs.is_sweep and [member.recipe.train.seed for member in runs.members] == [8, 9]
    assert {(member.recipe.student.max_length, member.recipe.sweep) for member in runs.members} == {(16, None)}
    assert [member.recipe.train.seed for member in load_runs(plain, ["sweep.seeds=[3]"], "few").members] == [3]
    assert not load_runs(file, variant="single").is_sweep and not load_runs(file, ["sweep=null"]).is_sweep
    with refused("sweep.seeds", "few"):
        load_runs(file, ["sweep.variants=[long, few]"])
    plain.write_text(plain.read_text().replace("sweep.seeds: [8, 9]", "sweep.variants: [long, short]"))
    with refused("sweep.variants", "few"):
        load_runs(plain, variant="few")


@pytest.mark.parametrize(
    ("changes", "override"),
    [
        ({"method.name": "rkd"}, "method.name=redact"),
        ({"method.options.distance": "l2"}, "method.options={distance: mse}"),
        ({"method.options": {"distance": "l2"}}, "method.options.distance=mse"),
    ],
)
def test_no_override_or_grid_undoes_what_a_listed_variant_sets(file, changes, override):
    """Its run would be named after a change that it does not have. The only variant of a sweep may be replaced."""
    tree = yaml.safe_load(file.read_text())
    tree["variants"]["other"] = changes
    tree["sweep"] = {"variants": ["long", "other"]}
    file.write_text(yaml.safe_dump(tree))
    key = override.split("=")[0]
    with refused(key, "other"):
        expand_sweep(file, [override])
    assert len(expand_sweep(file, [override, "sweep.variants=[other]"])) == 1
    value = yaml.safe_load(override.split("=")[1])
    with refused(key, "other"):
        expand_sweep(file, [f"sweep.grid={json.dumps({key: [value]})}"])
    assert len(expand_sweep(file, ["train.epochs=1"])) == 2


def test_a_section_of_a_variant_leaves_other_keys_open(file):
    tree = yaml.safe_load(file.read_text())
    tree["variants"] = {"long": {"train.seed": 5}, "deep": {"student": {"model": "teacher", "layers": 2}}}
    tree["sweep"] = {"variants": ["long", "deep"]}
    file.write_text(yaml.safe_dump(tree))
    assert {member.recipe.student.max_length for member in expand_sweep(file, ["student.max_length=64"])} == {64}


@pytest.mark.parametrize(
    "path", [path for path in recipe_files() if "sweep" in recipes.read_tree(path)], ids=lambda path: path.stem
)
def test_built_in_sweeps_expand(path):
    members = expand_sweep(path)
    assert len(members) >= 2 and path.stem == recipes.read_tree(path)["name"]
    held_out = {
        repr(recipe.task) if recipe.corpus is None else recipe.corpus.validation_rows
        for recipe in (member.recipe for member in members)
    }
    assert len(held_out) == 1, "the hold-out must not change within a sweep"


# -- running ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_whole_sweep_shares_what_it_can_and_resumes(sweep_of, tmp_path, monkeypatch, figures):
    members, out = sweep_of(GRID, train__max_steps=4), tmp_path / "out"
    embedded: list[str] = []
    batches = ModelEmbedder.batches

    def batches_of(self, texts, *arguments, **options):
        if self.files.model.name == members[0].recipe.teacher.model:  # students are read by it as well
            embedded.extend(texts)
        return batches(self, texts, *arguments, **options)

    monkeypatch.setattr(ModelEmbedder, "batches", batches_of)
    told: list[tuple[str, int, int]] = []

    def killed_at_the_third(recipe, folder):
        if folder.name == members[2].name:
            raise KeyboardInterrupt
        run(recipe, folder)

    with pytest.raises(KeyboardInterrupt):
        run_sweep(members, out, killed_at_the_third, lambda *progress: told.append(progress))
    assert [entry["state"] for entry in read_sweep(out)] == ["finished", "finished", "running", "pending"]
    assert told == [(members[place].name, place, 4) for place in range(3)]
    weights = {
        name: (out / name / "student" / "model.safetensors").read_bytes() for name in (members[0].name, members[1].name)
    }

    steps: list[Path] = []
    step = Trainer._step
    monkeypatch.setattr(Trainer, "_step", lambda self, *a: steps.append(self.folder.path) or step(self, *a))
    entries = run_sweep(members, out)
    assert [entry["state"] for entry in entries] == ["finished"] * 4 == [entry["state"] for entry in read_sweep(out)]
    trained = {folder.parent for folder in steps}
    assert trained == {out / members[2].name, out / members[3].name}, "finished members are not trained again"
    assert all(
        (out / name / "student" / "model.safetensors").read_bytes() == content for name, content in weights.items()
    )
    assert len(embedded) == len(set(embedded)) == 200, "the teacher sees each text once in the whole sweep"
    cache = tmp_path / "cache"
    assert [len(list((cache / name).glob("[!.]*"))) for name in ("corpora", "tokens", "teachers")] == [1, 1, 1]

    comparison = compare_runs([out])
    assert {row.run: row.seeds for row in comparison.rows} == {"pooling=mean": 2, "pooling=cls": 2}
    assert all(row.distance_std > 0 and row.steps == 4 for row in comparison.rows)
    assert comparison.tasks == [] and "overlap@10" in comparison.notes[0]
    best, next_best = (row.overlap_alone for row in comparison.rows)
    assert best.low <= best.mean <= best.high and best.std is not None and best.mean >= next_best.mean
    of_seeds = [distilvec.result(folder).verdict.overlap_alone for folder in comparison.rows[0].folders]
    assert best.mean == pytest.approx(np.mean(of_seeds))
    assert "overlap@10 alone" in repr(comparison) and "(overlap@10 alone)" in comparison.verdict
    assert all(row.overlap_alone is not None for row in comparison.baselines)


OWN_METHOD = """
from distilvec import Objective
from distilvec.losses.distance import l2_distance


class Mine(Objective):
    \"\"\"l2: distance to the teacher.\"\"\"

    default_weights = {"l2": 1.0}
    needs_fixed_batch = True

    def forward(self, batch, student, teacher):
        return self.weighted_terms(l2=lambda: l2_distance(student.embedding, teacher.embedding))
"""


def test_a_method_of_ones_own_in_a_sweep_is_named_by_its_file(tiny_recipe, tmp_path, shared_cache):
    """As a variant beside others, and as the method of a second sweep; the paths begin at the recipe."""
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "mine.py").write_text(OWN_METHOD)
    tree = tiny_recipe(corpus__validation_rows=27).model_dump(mode="json", exclude_unset=True)
    tree["variants"] = {"redact": {}, "mine": {"method.name": "./mine.py"}}
    tree["sweep"] = {"variants": ["redact", "mine"]}
    recipe = tmp_path / "recipes" / "methods.yaml"
    recipe.write_text(yaml.safe_dump(tree))
    run_sweep(expand_sweep(recipe), tmp_path / "methods")
    second = ["sweep.variants=[redact]", f"method.name={tmp_path / 'recipes' / 'mine.py'}"]
    run_sweep(expand_sweep(recipe, second), tmp_path / "own")
    compared = compare_runs([tmp_path / "methods"])
    assert {row.run: row.method for row in compared.rows} == {"redact": "redact", "mine": "mine"}
    steps = {row.run: row.steps for row in compared.rows}
    assert steps == {"redact": 11, "mine": 10} and any("not full" in note for note in compared.notes)
    joined = compare_runs([tmp_path / "methods" / "redact", tmp_path / "own"])
    assert {row.run for row in joined.rows} == {"redact", "mine"}
    card = (tmp_path / "own" / "redact" / "student" / "README.md").read_text()
    assert "method `mine`" in card and str(tmp_path) not in card.replace(str(tmp_path / "own"), "")


@pytest.mark.parametrize("verb", ["run", "plan"])
@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"method.name": "./mine.py", "method.options.scal": 3}, "method.options.scal"),
        ({"method.name": "./broken.py"}, "method.name"),
        ({"method.name": "rdk"}, "method.name"),
        ({"stages": [{"name": "a", "set": {"method.options": {"distanse": "l2"}}}, {"name": "b"}]}, "method.options"),
    ],
)
def test_a_mistake_in_a_later_runs_method_is_told_before_the_first_begins(
    tiny_recipe, tmp_path, monkeypatch, capsys, verb, changes, key
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(OWN_METHOD)
    (tmp_path / "broken.py").write_text("x = 1\n")
    tree = tiny_recipe().model_dump(mode="json", exclude_unset=True)
    tree["variants"] = {"plain": {}, "later": changes}
    tree["sweep"] = {"variants": ["plain", "later"]}
    (tmp_path / "methods.yaml").write_text(yaml.safe_dump(tree))
    assert run_command([verb, "methods.yaml", "--out", "out"]) == 2
    told = capsys.readouterr().err
    assert f"[{key}" in told and "run later" in told
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_failing_member_does_not_stop_the_others(sweep_of, tmp_path, shared_cache):
    sweep = {"grid": {"corpus.sources.0.limit": [40, 200]}}  # 32 rows for validation are more than half of 40
    with refused("sweep", "sources.0.limit=40: [corpus.validation_rows]"):
        run_sweep(sweep_of(sweep, train__max_steps=2), tmp_path / "out")
    states = {entry["name"]: entry["state"] for entry in read_sweep(tmp_path / "out")}
    assert states == {"sources.0.limit=40": "failed", "sources.0.limit=200": "finished"}
    repaired = sweep_of(sweep, train__max_steps=2, corpus__validation_rows=16)
    with refused("sweep", "another recipe"):
        run_sweep(repaired, tmp_path / "out")
    assert {entry["name"]: entry["state"] for entry in read_sweep(tmp_path / "out")}["sources.0.limit=40"] == "finished"


@pytest.mark.parametrize(
    ("error", "listed"),
    [
        (TypeError("no such thing"), "[internal] unexpected TypeError: no such thing."),
        (MemoryError("full"), "[memory]"),
    ],
)
def test_neither_a_bug_nor_the_machine_stops_the_other_members(sweep_of, tmp_path, error, listed):
    members = sweep_of(GRID)

    def runner(recipe, folder):
        if folder.name == members[0].name:
            raise error

    with refused("sweep", listed) as caught:
        run_sweep(members, tmp_path / "out", runner)
    assert [entry["state"] for entry in read_sweep(tmp_path / "out")] == ["failed"] + ["finished"] * 3
    assert (caught.value.__cause__ is error) == isinstance(error, TypeError)


def test_a_run_that_another_process_writes_is_not_a_failure(sweep_of, tmp_path):
    def held(recipe, folder):
        folder.mkdir(parents=True)
        with (
            acquire_lock(folder / "lock", str(folder), wait=False),
            acquire_lock(folder / "lock", "", wait=False),
        ):
            pass

    with pytest.raises(Busy, match="is writing"):
        run_sweep(sweep_of(GRID), tmp_path / "out", held)
    assert [entry["state"] for entry in read_sweep(tmp_path / "out")] == ["running", "pending", "pending", "pending"]


def test_a_stop_asked_for_stops_the_sweep(sweep_of, tmp_path, monkeypatch, shared_cache):
    step = Trainer._step

    def stop(self, *arguments):
        os.kill(os.getpid(), signal.SIGTERM)
        return step(self, *arguments)

    monkeypatch.setattr(Trainer, "_step", stop)
    with pytest.raises(DistilvecError, match="stopped at step"):
        run_sweep(sweep_of(GRID), tmp_path / "out")
    assert [entry["state"] for entry in read_sweep(tmp_path / "out")] == ["running", "pending", "pending", "pending"]


def test_restart_moves_nothing_if_a_run_holds_an_input(sweep_of, tiny_model, tmp_path, shared_cache):
    out = tmp_path / "out"
    run_sweep(sweep_of({"seeds": [0, 1]}), out, lambda recipe, folder: own_folder(RunFolder(folder)))
    second = out / "seed=1"
    shutil.copytree(tiny_model, second / "student")
    members = sweep_of({"seeds": [0, 1]})
    teacher = members[0].recipe.teacher.model_copy(update={"model": str(second / "student")})
    members = [replace(member, recipe=member.recipe.model_copy(update={"teacher": teacher})) for member in members]
    with refused("--restart", "seed=1"):
        run_sweep(members, out, restart=True)
    assert not list(tmp_path.rglob("*.old-*")) and (second / "student").is_dir()


def test_restart_moves_aside_the_chosen_runs_alone(sweep_of, tmp_path, shared_cache):
    out, ran = tmp_path / "out", list[str]()

    def runner(recipe, folder):
        ran.append(folder.name)
        own_folder(RunFolder(folder))
        (folder / "result").write_text(str(len(ran)))

    run_sweep(sweep_of({"seeds": [0, 1]}), out, runner)
    run_sweep(sweep_of({"seeds": [1]}), out, runner, restart=True)
    kept, again = sorted(path for path in out.glob("*seed=[01]"))
    (aside,) = out.glob("*.old-*")
    assert [(folder / "result").read_text() for folder in (kept, again, aside)] == ["1", "3", "2"]
    assert not list(tmp_path.glob("out.old-*"))
    assert {entry["name"]: entry["state"] for entry in read_sweep(out)} == {
        kept.name: "finished",
        again.name: "finished",
    }


def test_a_grown_sweep_keeps_its_finished_members(sweep_of, tmp_path, shared_cache):
    ran: list[str] = []

    def runner(recipe, folder):
        ran.append(folder.name)

    run_sweep(sweep_of({"seeds": [0]}), tmp_path / "out", runner)
    run_sweep(sweep_of({"seeds": [1, 2]}), tmp_path / "out", runner)
    assert ran == ["seed=0", "seed=1", "seed=2"]
    assert {entry["name"] for entry in read_sweep(tmp_path / "out")} == {"seed=0", "seed=1", "seed=2"}


def test_two_commands_on_one_sweep_keep_each_others_runs(sweep_of, tmp_path, shared_cache):
    """As on two machines with a GPU each: the second one begins and ends while the first one trains."""
    out = tmp_path / "out"

    def runner(recipe, folder):
        if folder.name == "seed=0":
            run_sweep(sweep_of({"seeds": [2, 3]}), out, lambda recipe, folder: None)

    run_sweep(sweep_of({"seeds": [0, 1]}), out, runner)
    states = {entry["name"]: entry["state"] for entry in read_sweep(out)}
    assert states == {f"seed={seed}": "finished" for seed in range(4)}


def test_folders_that_hold_something_else(sweep_of, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").write_text("name: x")
    with pytest.raises(DistilvecError, match=r"^\[--out\].*no folder of a distilvec run"):
        run_sweep(sweep_of(GRID), tmp_path / "run")
    RunFolder(tmp_path / "run").make()
    RunFolder(tmp_path / "run").marker.write_text(json.dumps({"format": FORMAT, "id": 32 * "0"}))
    with pytest.raises(DistilvecError, match=r"^\[--out\].*holds a single run"):
        run_sweep(sweep_of(GRID), tmp_path / "run")
    assert read_sweep(tmp_path / "run") is None
    for content in ("{", "[]", '{"members": [{"name": "a"}]}'):
        RunFolder(tmp_path / "run").sweep.write_text(content)
        with refused("sweep.json"):
            read_sweep(tmp_path / "run")
