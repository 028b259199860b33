"""Training in stages, and parts of the model that are trained: what changes, what does not, resuming, refusals."""

from __future__ import annotations

import copy
import json
import math
import shutil
from types import SimpleNamespace

import architectures
import pytest
import torch
import yaml
from jobs import train
from labelled import write_task
from refusals import refused
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer

from distilvec.config import recipe as recipes
from distilvec.core.errors import DistilvecError
from distilvec.core.run_folder import RunFolder
from distilvec.pipeline.evaluate import saved_students
from distilvec.pipeline.finished_run import FinishedRun
from distilvec.pipeline.objectives import make_objective, required_outputs
from distilvec.pipeline.parts import SavedStudent, margin_part
from distilvec.pipeline.prepare import prepare_data
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.run import run
from distilvec.pipeline.student import untrained_student
from distilvec.report.sections.training import STAGES as STAGE_COLUMNS
from distilvec.report.tables import make_table
from distilvec.students.encoder import Encoder
from distilvec.train.metrics import read_metrics
from distilvec.train.trainer import Trainer
from distilvec.verbs.plan.plan import make_plan
from distilvec.verbs.run.sweep import expand_sweep
from experiments.sharpness.landscape import Landscapes

pytestmark = pytest.mark.usefixtures("shared_cache")

HEAD, ALL = "encoder.model.2.", "encoder.model.0."
STAGES = [
    {"name": "head", "set": {"train.trainable": ["encoder.model.2"], "train.epochs": 1, "train.learning_rate": 3e-3}},
    {"name": "all", "set": {"train.epochs": 2}},
]


@pytest.fixture(scope="session")
def wide_model(tmp_path_factory):
    """A teacher of 48 dimensions, so that a student of 32 gets a linear layer."""
    import architectures

    folder = tmp_path_factory.mktemp("wide")
    return architectures.sentence_transformer(folder / "model", architectures.bert(folder / "backbone"), "cls dense:48")


@pytest.fixture
def staged(tiny_recipe, wide_model):
    """A recipe in two stages, the linear layer alone and then everything; call it with dotted changes."""

    def make(**changes):
        settings = {
            "teacher__model": str(wide_model),
            "student__start": "random",
            "stages": copy.deepcopy(STAGES),
            **changes,
        }
        return tiny_recipe(**settings)

    return make


@pytest.fixture
def whole(staged, common_folder):
    """The folder of a finished run in two stages, for tests that only look."""
    folder = common_folder / "whole-in-stages"
    if not RunFolder(folder).record.exists():
        run(staged(), folder)
    return folder


def trained(folder):
    """The weights of a finished training, or of one of its stages, by parameter."""
    tensors = load_file(folder.checkpoint)
    return {name.removeprefix("model/"): value for name, value in tensors.items() if name.startswith("model/")}


def assert_same(first, second, prefix=""):
    names = {name for name in first if name.startswith(prefix)}
    assert names and names == {name for name in second if name.startswith(prefix)}
    for name in names:
        assert torch.equal(first[name], second[name]), name


def interrupt_after(monkeypatch, steps):
    """Ask the loop to stop, as SIGTERM does, when so many steps were done since now, in whatever stage that is."""
    done, step = [0], Trainer._step

    def counting(self, batches, index):
        step(self, batches, index)
        done[0] += 1
        self.stop_asked = self.stop_asked or done[0] == steps

    monkeypatch.setattr(Trainer, "_step", counting)


def test_the_first_stage_trains_the_head_alone_and_the_second_goes_on_from_it(staged, tmp_path, monkeypatch):
    job, starts = resolve(staged(), tmp_path / "run"), []
    monkeypatch.setattr(
        Trainer,
        "run",
        lambda self, run=Trainer.run: (starts.append(copy.deepcopy(self.module.state_dict())), run(self))[1],
    )
    result = run(job.recipe, job.folder)
    untrained = {f"encoder.{name}": value for name, value in Encoder(untrained_student(job)).state_dict().items()}
    head, both = trained(RunFolder(tmp_path / "run").stage("head")), trained(RunFolder(tmp_path / "run"))
    assert_same(untrained, head, ALL)
    assert_same(starts[0], untrained)
    assert not torch.equal(head[f"{HEAD}linear.weight"], untrained[f"{HEAD}linear.weight"])
    assert_same(starts[1], head)
    assert not torch.equal(both[f"{HEAD}linear.weight"], head[f"{HEAD}linear.weight"])
    assert sum(not torch.equal(both[name], head[name]) for name in both if name.startswith(ALL)) > 20
    assert not any(
        (RunFolder(tmp_path / "run").stage("head").path / name).exists() for name in ("student", "last", "students")
    )
    kept = load_file(RunFolder(tmp_path / "run").stage("head").checkpoint)
    assert {name.split("|")[0] for name in kept if name.startswith("optimizer/")} == {f"optimizer/{HEAD}linear.weight"}
    lines = read_metrics(RunFolder(tmp_path / "run").stage("head").metrics)
    second = read_metrics(RunFolder(tmp_path / "run").metrics)
    assert second[0]["eval/distance"] == pytest.approx(lines[-1]["eval/distance"], abs=1e-7), (
        "begins where the first ended"
    )
    assert (
        result.validation["untrained_distance"]
        == lines[0]["eval/distance"]
        > second[0]["eval/distance"]
        > result.validation["distance"]
    )


def test_the_record_and_the_card_name_the_stages_and_the_student_loads(staged, whole):
    result = run(staged(), whole)
    training = json.loads(RunFolder(whole).record.read_text())["training"]
    head, both = training["stages"]
    assert (head["name"], head["method"], head["trained"], head["steps"]) == ("head", "redact", "encoder.model.2", 11)
    assert (both["name"], both["trained"], both["steps"], both["learning_rate"]) == ("all", "everything", 22, 1e-3)
    assert training["steps"] == 33 and training["texts"] == 3 * 168 == head["texts"] + both["texts"]
    assert training["epochs"] == 2 and result.record.training.stages[-1].steps == 22
    card = (whole / "student" / "README.md").read_text()
    assert "In 2 stages" in card and "| head | redact | encoder.model.2 | 0.003 | 11 | 168 |" in card
    rows = make_table("stages", "", training["stages"], STAGE_COLUMNS).rows
    assert [[cell.text for cell in row[:6]] for row in rows][1] == ["all", "redact", "everything", "0.001", "22", "336"]
    for folder in (RunFolder(whole).student, RunFolder(whole).last):
        assert SentenceTransformer(str(folder), device="cpu").encode(["a"]).shape == (1, 48)


STOPS = {"last step of a stage": (11,), "first stage, and twice in the second": (5, 9, 3)}


def test_the_last_checkpoint_has_the_number_of_the_last_stages_steps(whole):
    record = json.loads(RunFolder(whole).record.read_text())
    steps = [stage["steps"] for stage in record["training"]["stages"]]
    assert [*Landscapes(FinishedRun.open(whole), 32, 0, None).students] == [steps[-1]] != [sum(steps)]


def test_interrupted_equals_uninterrupted(staged, whole, tmp_path, monkeypatch):
    for name, stops in STOPS.items():
        for steps in stops:
            with (
                monkeypatch.context() as patch,
                pytest.raises(DistilvecError, match=r"stopped at step \d+ of \d+ of stage (head|all)"),
            ):
                interrupt_after(patch, steps)
                train(resolve(staged(), tmp_path / name))
        train(resolve(staged(), tmp_path / name))
        expected, resumed = RunFolder(whole), RunFolder(tmp_path / name)
        assert_same(trained(expected), trained(resumed))
        assert_same(trained(expected.stage("head")), trained(resumed.stage("head")))


def test_killed_between_the_stages(staged, whole, tmp_path, monkeypatch):
    """The first stage is finished and the second has not begun: it is not trained again, and the end is the same."""
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="killed"):
        patch.setattr(
            "distilvec.pipeline.train.take_over", lambda *arguments: (_ for _ in ()).throw(RuntimeError("killed"))
        )
        train(resolve(staged(), tmp_path / "parts"))
    before = RunFolder(tmp_path / "parts").stage("head").checkpoint.stat().st_mtime_ns
    train(resolve(staged(), tmp_path / "parts"))
    assert RunFolder(tmp_path / "parts").stage("head").checkpoint.stat().st_mtime_ns == before
    assert_same(trained(RunFolder(whole)), trained(RunFolder(tmp_path / "parts")))


def test_finished_stages_are_not_trained_again_and_restart_clears_them(staged, whole, tmp_path, monkeypatch):
    shutil.copytree(whole, tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", lambda *arguments: pytest.fail("trained again"))
        run(staged(), tmp_path / "run")
    changed = copy.deepcopy(STAGES)
    changed[0]["set"]["train.learning_rate"] = 1e-3
    with pytest.raises(DistilvecError, match=r"another recipe.*stages"):
        run(staged(stages=changed), tmp_path / "run")
    changed[0]["name"] = "linear"
    assert run(staged(stages=changed), tmp_path / "run", restart=True).record.training.steps
    assert [stage.path.name for stage in RunFolder(tmp_path / "run").earlier_stages] == ["linear"]


def test_the_fingerprint_covers_what_changes_the_weights_and_nothing_else(staged, tmp_path):
    def mark(**changes):
        return resolve(staged(**changes), tmp_path / "run").fingerprint

    logged, longer, single = (copy.deepcopy(STAGES) for _ in range(3))
    logged[0]["set"]["train.logging_steps"] = 1
    longer[1]["set"]["train.epochs"] = 3
    assert mark() == mark(stages=logged) != mark(stages=longer) != mark(stages=[])
    seeded = [{"name": stage["name"], "set": {**stage["set"], "train.seed": 1}} for stage in single]
    assert mark(stages=seeded) != mark(stages=seeded, train__seed=2), "the student is drawn from the recipe's own seed"


def test_the_objectives_parameters_go_on_where_the_method_is_the_same(staged, tmp_path, monkeypatch):
    """A method with a parameter of its own: kept from stage to stage, fresh under another method."""
    source = (
        "import torch\nfrom distilvec.losses.distance import l2_distance\nfrom distilvec.core.objective import "
        "Objective\n\n\n"
        "class Scaled(Objective):\n    default_weights = {'l2': 1.0}\n\n    def __init__(self, context, weights, "
        "outputs=1):\n"
        "        super().__init__(context, weights)\n"
        "        self.scale = torch.nn.Parameter(torch.ones(()))\n        self.shift = "
        "torch.nn.Parameter(torch.zeros(outputs))\n"
        "    def forward(self, batch, student, teacher):\n"
        "        return {'l2': l2_distance(student.embedding * self.scale + self.shift.sum(), teacher.embedding)}\n"
    )
    (tmp_path / "scaled.py").write_text(source)
    (tmp_path / "other.py").write_text(source)
    method = {"name": str(tmp_path / "scaled.py")}
    stages = [
        {"name": "own", "set": {"train.trainable": ["objective"], "train.epochs": 1}},
        {"name": "wider", "set": {"method.options": {"outputs": 2}, "train.max_steps": 2}},
        {"name": "other", "set": {"method.name": str(tmp_path / "other.py"), "train.max_steps": 2}},
    ]
    starts = []
    monkeypatch.setattr(
        Trainer,
        "run",
        lambda self, run=Trainer.run: (starts.append(copy.deepcopy(self.module.state_dict())), run(self))[1],
    )
    job = resolve(staged(method=method, stages=stages), tmp_path / "run")
    train(job)
    own, wider = trained(RunFolder(tmp_path / "run").stage("own")), trained(RunFolder(tmp_path / "run").stage("wider"))
    assert own["objective.scale"] != 1 and own["objective.shift"] != 0
    assert starts[1]["objective.scale"] == own["objective.scale"], "kept"
    assert starts[1]["objective.shift"].tolist() == [0, 0], "of another shape: its own start"
    assert starts[2]["objective.scale"] == 1 and starts[2]["objective.shift"].tolist() == [0]
    assert_same(starts[2], wider, "encoder.")
    assert_same(own, starts[0], "encoder.")


def two_stages(first_rate, second_rate, epochs=6):
    """A stage of some epochs, and one of a single epoch."""
    return [
        {"name": "first", "set": {"train.epochs": epochs, "train.learning_rate": first_rate}},
        {"name": "second", "set": {"train.epochs": 1, "train.learning_rate": second_rate}},
    ]


def test_a_last_stage_that_does_not_help_ships_the_student_before_it(tiny_recipe, tmp_path, no_pages):
    """It is not the student before all training: neither in its judgement nor in the sentence."""
    result = run(tiny_recipe(stages=two_stages(2e-3, 1e-12)), tmp_path / "run")
    record = result.record
    assert record.training.best_step == 0
    assert record.metrics["distance"] < 0.7 * record.metrics["untrained_distance"]
    assert [stage.dropped for stage in record.training.stages] == [False, True] and "second" in record.training.shipped
    assert result.verdict.reason is None, "the first stage has trained it"
    assert record.overlap.student != record.overlap.start
    assert record.overlap.cosine == pytest.approx(record.metrics["cosine"], abs=0.05)


def test_a_stage_that_made_the_student_worse_is_dropped(tiny_recipe, tmp_path, no_pages, capsys):
    """A whole copy of the teacher: no training brings it nearer."""
    stages = two_stages(0.05, 1e-12)
    result = run(tiny_recipe(student__layers=None, student__model="teacher", stages=stages), tmp_path / "run")
    assert "the next stage begins where this one began" in capsys.readouterr().err
    assert result.record.metrics["distance"] <= result.record.metrics["untrained_distance"] < 1e-2


def test_a_head_that_a_stage_has_trained_is_the_first_candidate_of_the_next(tiny_recipe, tmp_path, no_pages):
    write_task(tmp_path / "task.jsonl", "classification")
    recipe = tiny_recipe(
        corpus=None,
        task={"type": "classification", "path": str(tmp_path / "task.jsonl")},
        method={"name": "task"},
        stages=two_stages(2e-3, 0.5, epochs=20),
    )
    result = run(recipe, tmp_path / "run")
    accuracies = [line["eval/accuracy"] for line in read_metrics(result.files.metrics) if "eval/accuracy" in line]
    assert accuracies[-1] < accuracies[0] - 0.2, "the second stage made it worse"
    assert result.record.training.best_step == 0 and result.record.metrics["accuracy"] == accuracies[0]
    assert result.record.supervised.scores["student"]["accuracy"] > 0.9


def test_students_are_kept_in_the_last_stage_only(staged, tmp_path):
    job = resolve(staged(train__keep_students=2), tmp_path / "run")
    train(job)
    assert [kept.step for kept in saved_students(job)] == [11, 22]
    assert (
        len(
            [
                line
                for line in read_metrics(RunFolder(tmp_path / "run").stage("head").metrics)
                if "eval/distance" in line
            ]
        )
        == 2
    )


@pytest.mark.parametrize(
    ("train_keys", "first"),
    [
        ({"schedule": {"name": "cycles", "cycles": 2}, "epochs": 4}, [1, 3]),
        ({"schedule": {"name": "cycles", "cycles": 1}, "epochs": 3}, [1]),
        ({"schedule": {"name": "cycles", "cycles": 3}, "epochs": 3}, []),  # no epoch is at a lower rate
        ({"schedule": {"name": "cosine"}, "epochs": 3}, []),
    ],
)
def test_checkpoints_of_the_first_epoch_of_each_cycle(tiny_recipe, tmp_path, train_keys, first):
    """REDACT's footnote 5 through a training: two checkpoints an epoch, in its middle and at its end."""
    recipe = tiny_recipe(train={**train_keys, "batch_size": 8, "keep_students": 2 * train_keys["epochs"]})
    job = resolve(recipe, tmp_path / "run")
    train(job)
    saved = saved_students(job)
    steps_an_epoch = saved[-1].step / train_keys["epochs"]
    assert [kept.in_first_epoch for kept in saved] == [math.ceil(kept.step / steps_an_epoch) in first for kept in saved]
    assert sum(kept.in_first_epoch for kept in saved) == 2 * len(first)


def test_too_few_checkpoints_after_the_first_epochs_are_an_error_that_says_so(tmp_path):
    saved = [SavedStudent(step, 0.5, tmp_path, in_first_epoch=step < 30) for step in (10, 20, 30, 40)]
    models = SimpleNamespace(saved=saved, scores={"teacher": [{"task": "sts", "value": 80.0}]})
    with refused("train.keep_students", "2 of 4"):
        margin_part(models)


def test_a_training_that_ends_in_its_first_epoch_keeps_its_checkpoints(tiny_recipe, tmp_path):
    recipe = tiny_recipe(train={"epochs": 30, "max_steps": 3, "batch_size": 8, "keep_students": 3})
    job = resolve(recipe, tmp_path / "run")
    train(job)
    assert [kept.in_first_epoch for kept in saved_students(job)] == [False] * 3


def test_a_stage_that_changes_nothing_is_training_without_stages(staged, tmp_path):
    """Weights of a first stage that is the recipe itself are, to the bit, those of the recipe without stages."""
    stages = [{"name": "same"}, {"name": "short", "set": {"train.max_steps": 1}}]
    train(resolve(staged(stages=stages, train__max_steps=5), tmp_path / "staged"))
    train(resolve(staged(stages=[], train__max_steps=5), tmp_path / "plain"))
    assert_same(trained(RunFolder(tmp_path / "plain")), trained(RunFolder(tmp_path / "staged").stage("same")))
    assert not RunFolder(tmp_path / "plain").earlier_stages


def test_a_frozen_backbone_has_no_graph(staged, tmp_path):
    """Autograd records nothing below the first trained parameter."""
    job = resolve(staged(), tmp_path / "run")
    stage, model = job.stages[0], untrained_student(job)
    encoder = Encoder(model)
    objective = make_objective(stage, job.context)
    loop = Trainer(
        encoder,
        objective,
        prepare_data(job, model).training_data(required_outputs(objective, job.examples)),
        stage.recipe.train,
        stage.folder,
        "mark",
    )
    assert [name for name, p in loop.module.named_parameters() if p.requires_grad] == [f"{HEAD}linear.weight"]
    states = []
    model[0].auto_model.register_forward_hook(lambda module, inputs, output: states.append(output.last_hidden_state))
    loop.run()
    assert states and not any(state.requires_grad for state in states)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_upper_layers_alone(tiny_recipe, tmp_path, checkpointing):
    """The layers named change, also where activations are computed anew; the ones below stay."""
    changes = {
        "train__trainable": ["encoder.model.0.model.encoder.layer.1."],
        "train__gradient_checkpointing": checkpointing,
    }
    job = resolve(tiny_recipe(student__dropout=0.0, train__max_steps=4, **changes), tmp_path / "run")
    train(job)
    untrained = {f"encoder.{name}": value for name, value in Encoder(untrained_student(job)).state_dict().items()}
    changed = {
        name for name, value in trained(RunFolder(tmp_path / "run")).items() if not torch.equal(value, untrained[name])
    }
    assert len(changed) > 10 and all(name.startswith("encoder.model.0.model.encoder.layer.1.") for name in changed)


def test_layers_that_cannot_be_computed_again_are_named_before_any_work(tiny_recipe, tmp_path):
    teacher = architectures.sentence_transformer(tmp_path / "teacher", architectures.mpnet(tmp_path / "mpnet"))
    recipe = tiny_recipe(teacher__model=str(teacher), train__gradient_checkpointing=True)
    with refused("train.gradient_checkpointing", "MPNetModel"):
        run(recipe, tmp_path / "run")


def test_learning_rate_factors_may_name_what_a_stage_does_not_train(staged, tmp_path):
    recipe = staged(train__learning_rate_factors={ALL: 0.5, HEAD: 2.0}, train__max_steps=2)
    assert train(resolve(recipe, tmp_path / "run")).state.finished


def test_unknown_parameters_are_named_before_any_work(staged, tmp_path):
    stages = copy.deepcopy(STAGES)
    stages[1]["set"]["train.trainable"] = ["encoder.model.7"]
    expected = (
        r"^\[train.trainable\] no parameter's name starts with 'encoder.model.7'; did you mean 'encoder.model.[02]'\? "
    )
    with pytest.raises(DistilvecError, match=expected + r"Names start with encoder.model.0, encoder.model.2"):
        run(staged(stages=stages), tmp_path / "run")
    assert not RunFolder(tmp_path / "run").earlier_stages
    stages = [{"name": "a"}, {"name": "b", "set": {"method.options": {"distanse": "l2"}}}]
    with refused("method.options.distanse"):
        run(staged(stages=stages), tmp_path / "run")


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([{"name": "head"}], r"\[stages\] a single stage is not allowed: list at least two"),
        ([{"name": "a"}, {"name": "A"}], r"\[stages\] two stages are called 'a'"),
        ([{"name": "a"}, {"name": "../b"}], r"\[stages.1.name\]"),
        ([{"name": "a"}, {"name": "b", "sett": {}}], r"\[stages.1.sett\] unknown key; did you mean 'set'"),
        (
            [{"name": "a", "set": {"train.epochz": 1}}, {"name": "b"}],
            r"\[stages.a.train.epochz\] unknown key; did you mean 'epochs'",
        ),
        ([{"name": "a", "set": {"train.epochs": "x"}}, {"name": "b"}], r"\[stages.a.train.epochs\] .*found 'x'"),
        (
            [{"name": "a", "set": {"trian.epochs": 1}}, {"name": "b"}],
            r"\[stages.a.trian.epochs\] .*train only; did you mean 'train.epochs'",
        ),
        (
            [{"name": "a", "set": {"student.layers": 1}}, {"name": "b"}],
            r"\[stages.a.student.layers\] .*under method and train only",
        ),
        (
            [{"name": "a", "set": {"train": {"epochs": 1}}}, {"name": "b"}],
            r"\[stages.a.train\] a stage sets dotted keys",
        ),
        ([{"name": "a", "set": {"train.epochs.x": 1}}, {"name": "b"}], r"\[stages.a.train.epochs.x\] cannot be set"),
        (
            [{"name": "a", "set": {"train.device": "cpu"}}, {"name": "b"}],
            r"\[stages.a.train.device\] all stages run on one device",
        ),
        (
            [{"name": "a", "set": {"train.keep_students": 2}}, {"name": "b"}],
            r"\[stages.a.train.keep_students\] .*last stage only",
        ),
        ([{"name": "a", "set": {"train.trainable": []}}, {"name": "b"}], r"\[stages.a.train.trainable\]"),
        (
            [{"name": "a", "set": {"train.x": 1}}, {"name": "b", "set": {"method.y": 1}}],
            r"(?s)stages.a.train.x.*stages.b.method.y",
        ),
    ],
)
def test_stages_that_do_not_hold_together(tiny_recipe, stages, message):
    with pytest.raises(DistilvecError, match=message):
        tiny_recipe(stages=stages)


def test_overrides_reach_the_stages_and_their_own_settings_win(staged, tmp_path):
    file = tmp_path / "staged.yaml"
    tree = staged().model_dump(mode="json")
    tree["variants"] = {
        "three": {"stages": [{"name": name, "set": {"train.seed": seed}} for seed, name in enumerate("abc")]}
    }
    file.write_text(yaml.safe_dump(tree))
    found = recipes.stage_recipes(recipes.load(file, overrides=["train.epochs=9", "train.batch_size=8"]))
    assert [(name, r.train.epochs, r.train.batch_size) for name, r in found.items()] == [("head", 1, 8), ("all", 2, 8)]
    three = recipes.load(file, "three", ["train.epochs=4"])
    found = recipes.stage_recipes(three)
    assert [(name, r.train.epochs, r.train.seed) for name, r in found.items()] == [
        ("a", 4, 0),
        ("b", 4, 1),
        ("c", 4, 2),
    ]
    assert recipes.stage_recipes(recipes.load(file, overrides=["stages=[]"])) == {}
    (tmp_path / "resolved.yaml").write_text(recipes.dump(three))
    assert recipes.load(tmp_path / "resolved.yaml") == three


def test_members_of_a_sweep(staged, tmp_path):
    tree = staged().model_dump(mode="json")
    tree |= {"sweep": {"grid": {"train.weight_decay": [0.0, 0.1]}, "seeds": [3]}}
    members = expand_sweep(tree)
    assert [[r.train.weight_decay for r in recipes.stage_recipes(member.recipe).values()] for member in members] == [
        [0.0] * 2,
        [0.1] * 2,
    ]
    assert run(members[1].recipe, tmp_path / "member").record.training.stages[-1].steps == 22


def test_plan_sums_the_stages(staged, tmp_path):
    rows = dict(make_plan(resolve(staged(), tmp_path / "run")).lines)
    assert rows["training"].startswith("33 steps in 2 stages: about")
    assert rows["  head"].startswith("11 steps of 16 texts") and rows["  all"].startswith("22 steps of 16 texts")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("rate", [0.0, 0.1])
@pytest.mark.parametrize("name", ["simcse", "talas", "distillcse", "distillmoe", "jasper"])
def test_two_views_need_dropout(tiny_recipe, tmp_path, name, rate):
    """Methods with a SimCSE term are refused without dropout, also in a later stage."""
    method = {
        "distillmoe": {"options": {"simcse": True}, "weights": {"moe": 0, "diversity": 0, "dynamic_cka": 0}},
        "jasper": {"weights": {"simcse": 0.4}},
    }
    changes = {"method": {"name": name, **method.get(name, {})}, "student__dropout": rate}
    if rate:
        resolve(tiny_recipe(**changes), tmp_path / "run")
        return
    with pytest.raises(DistilvecError, match=r"^\[student.dropout\] .*rate above 0"):
        resolve(tiny_recipe(**changes), tmp_path / "run")
    if name == "simcse":
        late = [{"name": "a", "set": {"method.name": "redact"}}, {"name": "b"}]
        with pytest.raises(DistilvecError, match=r"^\[student.dropout\] .*rate above 0"):
            resolve(tiny_recipe(stages=late, **changes), tmp_path / "run")


def test_one_view_needs_no_dropout(tiny_recipe, tmp_path):
    changes = {"student__dropout": 0.0, "method__name": "talas", "method__weights": {"simcse": 0}}
    assert resolve(tiny_recipe(**changes), tmp_path / "run").student.dropout is False


def test_a_model_without_dropout_has_one_view(tiny_recipe, tmp_path):
    model = architectures.modernbert(tmp_path / "model")
    with refused("student.dropout"):
        resolve(tiny_recipe(method__name="simcse", student={"model": str(model)}), tmp_path / "run")


def test_the_passes_of_a_record_are_those_that_were_made(tiny_recipe, tmp_path, no_pages):
    """Not those that a recipe allows at most: max_steps may end the training in any of them."""
    whole = run(tiny_recipe(train__epochs=2), tmp_path / "whole").record.training
    assert whole.epochs == 2
    some = run(tiny_recipe(train__epochs=30, train__max_steps=16), tmp_path / "some").record.training
    assert some.epochs == pytest.approx(2 * 16 / whole.steps, abs=0.01) and 1 < some.epochs < 2
    lines = [line for line in read_metrics(RunFolder(tmp_path / "some").metrics) if "eval/distance" in line]
    assert lines[-1]["epoch"] == pytest.approx(some.epochs, abs=0.01)
