"""Causal models of two tokenizers: the losses of one step from the equations, padding, data, answers, errors."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from architectures import metaspace
from causal_samples import write_rows
from refusals import refused
from safetensors.torch import load_file
from several import finish, start
from transformers import AutoModelForCausalLM

from distilvec.cli.boundary import run_app
from distilvec.config import recipe as recipes
from distilvec.core.batch import TextBatch
from distilvec.core.errors import DistilvecError
from distilvec.core.info import ObjectiveContext, StudentInfo, TeacherInfo
from distilvec.core.objective import weighted_loss
from distilvec.core.outputs import OutputSpec
from distilvec.core.run_folder import RunFolder
from distilvec.models.experts import Experts
from distilvec.train.checkpoint import read_checkpoint
from experiments.causal.__main__ import app
from experiments.causal.answers import answer, rouge_l
from experiments.causal.data import IGNORED, read_pairs, tokenise
from experiments.causal.model import CausalEncoder, CausalTeacher, build_causal_objective
from experiments.causal.run import build_trainer, load_causal_model, run_causal, training_fingerprint
from experiments.causal.schema import (
    CausalDataSection,
    CausalMethodSection,
    GenerationSection,
    load_causal,
)

RECIPE = Path(__file__).parents[2] / "experiments" / "causal" / "dolly.yaml"

# -- the losses of one step ------------------------------------------------------------------------------------------


@pytest.fixture
def step(models, causal_recipe, tmp_path):
    """Everything of one batch: student, objective, teacher, the pairs and both models' tokens."""
    recipe = causal_recipe()
    loop = build_trainer(recipe, tmp_path / "run", "mark")
    rows = np.arange(6)
    return loop.module.encoder.eval(), loop.module.objective, loop.data, loop.data.batch(rows)


def states_of(model, tokens, row, layer):
    """A text's response states from the bare model, without padding or batch."""
    start, end = tokens.offsets[row], tokens.offsets[row + 1]
    output = model(torch.from_numpy(tokens.ids[start:end])[None], output_hidden_states=True)
    return output.hidden_states[layer][0, tokens.prompts[row] :]


def nucleus_cka(student, teacher, projection, threshold=0.9):
    """1 - sqrt(CKA) of one text and layer, token by token (eq. 11 to 13)."""
    aggregated = []
    for state in student:
        shares = torch.stack([torch.cosine_similarity(projection @ state, other, dim=0) for other in teacher]).softmax(
            0
        )
        chosen: list[int] = []
        for q in shares.argsort(descending=True).tolist():
            chosen.append(q)
            if float(shares[chosen].sum()) >= threshold:
                break
        aggregated.append(sum(shares[q] / shares[chosen].sum() * teacher[q] for q in chosen))
    x, y = student - student.mean(0), torch.stack(aggregated) - torch.stack(aggregated).mean(0)
    cka = (x.T @ y).norm() ** 2 / ((x.T @ x).norm() * (y.T @ y).norm())
    return 1 - cka.sqrt()


def test_the_losses_of_a_step_are_those_of_the_equations(step):
    encoder, objective, data, batch = step
    teacher, count = data.teacher.encoder.model, len(batch)
    with torch.no_grad():
        answered = data.teacher.signals(batch)
        terms = objective(batch, encoder(batch, objective.student_outputs), answered)
        w = {name: layer.weight for name, layer in objective.method.projections.items()}
        task, vectors, targets = [], [], []
        for row in range(count):
            tokens = data.tokens
            ids = torch.from_numpy(tokens.ids[tokens.offsets[row] : tokens.offsets[row + 1]])
            logits = encoder.model(ids[None]).logits[0]
            steps = range(int(tokens.prompts[row]), len(ids))
            task.append(torch.stack([-logits[i - 1].log_softmax(0)[ids[i]] for i in steps]).mean())
            vectors.append(states_of(encoder.model, tokens, row, -1).mean(0))
            targets.append(states_of(teacher, data.teacher.tokens, row, -1).mean(0))
        torch.testing.assert_close(terms["task"], torch.stack(task))
        torch.testing.assert_close(answered.embedding, torch.stack(targets))

        mixed = encoder.mixture({"sentence_embedding": torch.stack(vectors)})
        gates, experts = mixed["gates"], mixed["experts"]
        for i in range(count):
            cos = torch.cosine_similarity
            pointwise = 1 - cos(w["pointwise_0"] @ experts[i, 0], targets[i], dim=0)
            scores = torch.stack([cos(w["contrastive_0"] @ experts[i, 1], other, dim=0) for other in targets]) / 0.1
            pairs = [
                torch.relu((cos(targets[i], targets[j], dim=0) - cos(experts[i, 2], experts[j, 2], dim=0)).abs() - 0.1)
                for j in range(count)
                if j != i
            ]
            losses = torch.stack([pointwise, -scores.log_softmax(0)[i], torch.stack(pairs).mean()])
            torch.testing.assert_close(terms["moe"][i], (gates[i] * losses).sum(), atol=1e-5, rtol=1e-4)
            layers = [
                nucleus_cka(
                    states_of(encoder.model, data.tokens, i, -z),
                    states_of(teacher, data.teacher.tokens, i, -z),
                    w["tokens_0"],
                )
                for z in (1, 2, 3)
            ]
            torch.testing.assert_close(terms["dynamic_cka"][i], torch.stack(layers).mean(), atol=1e-4, rtol=1e-3)
    parts = {name: float(value.mean()) for name, value in terms.items()}
    expected = 0.5 * parts["task"] + 0.5 * (0.8 * (parts["moe"] + parts["diversity"]) + 0.2 * parts["dynamic_cka"])
    assert float(weighted_loss(terms, objective.weights)) == pytest.approx(expected, rel=1e-5)


def shifted(batch: TextBatch) -> TextBatch:
    """The same batch with its padding, and three places more, on the left."""
    ids, labels, mask = batch.tokens["input_ids"], batch.tokens["labels"], batch.mask
    out = {"input_ids": torch.zeros(len(ids), ids.shape[1] + 3, dtype=torch.int64)}
    out |= {"labels": torch.full_like(out["input_ids"], IGNORED), "attention_mask": torch.zeros_like(out["input_ids"])}
    for row in range(len(ids)):
        count = int(mask[row].sum())
        for name, values in (("input_ids", ids), ("labels", labels), ("attention_mask", mask.long())):
            out[name][row, -count:] = values[row, :count]
    return TextBatch(batch.rows, out, batch.sources)


def test_padding_on_either_side_changes_nothing(step):
    encoder, objective, data, batch = step
    assert "attention_mask" in batch.tokens
    required = objective.student_outputs
    with torch.no_grad():
        teacher = data.teacher.signals(batch)
        right, left = (objective(each, encoder(each, required), teacher) for each in (batch, shifted(batch)))
        theirs = [data.teacher.encoder(each, objective.teacher_outputs).embedding for each in _own(data.teacher, batch)]
    for name in right:
        torch.testing.assert_close(left[name], right[name], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(theirs[0], theirs[1], atol=1e-5, rtol=1e-4)


def _own(teacher: CausalTeacher, batch: TextBatch) -> tuple[TextBatch, TextBatch]:
    own = TextBatch(batch.rows, teacher.tokens.batch(batch.rows.numpy()), batch.sources)
    return own, shifted(own)


def test_the_prompt_is_read_but_not_learnt(step):
    """Changing a prompt's token changes the response's losses; the prompt's own tokens have no label."""
    encoder, _, data, batch = step
    labels = batch.tokens["labels"]
    prompts = torch.from_numpy(data.tokens.prompts[:6])
    places = torch.arange(labels.shape[1])
    assert ((labels == IGNORED) == ((places < prompts[:, None]) | ~batch.mask)).all()
    other = {**batch.tokens, "input_ids": batch.tokens["input_ids"].clone()}
    other["input_ids"][:, 1] += 1
    with torch.no_grad():
        losses = [
            encoder(TextBatch(batch.rows, tokens, batch.sources), OutputSpec(logits=True)).losses
            for tokens in (batch.tokens, other)
        ]
    assert ((losses[0] - losses[1]).abs() > 1e-3).all()


def test_weights_replace_those_of_the_equation_and_unused_terms_ask_for_nothing():
    teacher = TeacherInfo(48, normalized=False, hidden_size=48, layers=4)
    sizes = ObjectiveContext(StudentInfo(32, 3), (teacher,))
    weights = {"moe": 0.0, "diversity": 0.0, "task": 0.4}
    objective = build_causal_objective(
        CausalMethodSection(options={"distillation_weight": 0.75, "mix": 0.5}, weights=weights), sizes
    )
    assert objective.weights == {"task": 0.4, "moe": 0, "diversity": 0, "uniform": 0, "dynamic_cka": 0.375}
    assert (
        not objective.student_outputs.experts
        and not objective.teacher_outputs.embedding
        and not objective.needs_fixed_batch
    )
    with pytest.raises(DistilvecError, match="student.experts"):
        build_causal_objective(CausalMethodSection(), sizes)
    with pytest.raises(DistilvecError, match="no option 'alhpa'"):
        build_causal_objective(CausalMethodSection(options={"alhpa": 0.1}), sizes)


# -- answers ---------------------------------------------------------------------------------------------------------


def test_rouge_l():
    """Identical text 100, nothing in common 0, the best of several references; by hand: 3 of 4 and 3 words in order."""
    found = rouge_l(["a red fox runs", "blue", "blue"], [["a red fox runs"], ["a red fox"], ["a red fox", "blue"]])
    assert found == pytest.approx([100, 0, 100])
    assert rouge_l(["one two three four"], [["one three four"]])[0] == pytest.approx(
        100 * 2 * (3 / 4) * 1 / (3 / 4 + 1)
    )


def test_answers_are_greedy_and_do_not_depend_on_the_batch(models):
    model, tokenizer = load_causal_model("teacher.model", str(models["teacher"]), None, torch.float32)
    prompts = ["Say red.\n", "Say something longer about the cold.\n", "x"]
    together = answer(model, tokenizer, prompts, GenerationSection(max_new_tokens=6, batch_size=3))
    ids, end = tokenizer(prompts[0], add_special_tokens=False)["input_ids"], tokenizer.eos_token_id
    said: list[int] = []
    with torch.no_grad():
        while len(said) < 6 and (not said or said[-1] != end):
            said.append(int(model(torch.tensor([ids + said])).logits[0, -1].argmax()))
    assert together[0] == tokenizer.decode(said, skip_special_tokens=True)
    assert together == [answer(model, tokenizer, [p], GenerationSection(max_new_tokens=6))[0] for p in prompts]
    with pytest.raises(DistilvecError, match="positions"):
        answer(model, tokenizer, prompts, GenerationSection(max_new_tokens=60))


# -- data ------------------------------------------------------------------------------------------------------------


def section(**changes) -> CausalDataSection:
    return CausalDataSection(train=Path("x"), **changes)


def test_rows_in_several_spellings(tmp_path):
    path = write_rows(
        tmp_path / "rows.jsonl",
        [
            {"instruction": "Say {input}.", "context": "", "response": "a {b}"},
            {"prompt": "Say it.", "input": "{instruction}", "output": ["one", "two"]},
        ],
    )
    (first, second), _ = read_pairs(
        path, "data.train", section(template="<{instruction}>", template_with_input="[{instruction}|{input}]")
    )
    assert (first.prompt, first.responses) == ("<Say {input}.>", ("a {b}",))
    assert (second.prompt, second.responses) == ("[Say it.|{instruction}]", ("one", "two"))


def test_a_prompt_begins_as_the_tokenizer_begins_and_a_response_ends(models):
    from experiments.causal.data import Pair, prompt_ids

    tokenizer = metaspace("<s> $A </s>", ["<unk>", "<s>", "</s>"])
    tokens = tokenise([Pair("Say red.", ("the red fox",), "")], tokenizer, 60)
    assert tokens.ids[0] == tokenizer.bos_token_id and tokens.ids[-1] == tokenizer.eos_token_id and tokens.cut == 0
    assert list(tokens.ids[: tokens.prompts[0]]) == prompt_ids(["Say red."], tokenizer)[0]
    assert (tokens.ids == tokenizer.eos_token_id).sum() == 1
    cut = tokenise(
        [Pair("Say red.", ("the red fox",), "")],
        tokenizer,
        int(tokens.prompts[0]) + 2,
    )
    assert cut.cut == 1 and len(cut.ids) == tokens.prompts[0] + 2 and cut.ids[-1] != tokenizer.eos_token_id


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"instruction": "Say it.", "response": "  "}, "the response is empty"),
        ({"instruction": "", "response": "a"}, "the instruction is empty"),
        ({"instruction": "Say it.", "answer": "a"}, "no response .* instruction, answer.*response or output"),
        ({"response": "a"}, "no instruction"),
        ({"instruction": "Say it.", "response": 3}, "3 in column response"),
        ({"instruction": ["Say it.", "Do it."], "response": "a"}, "several instructions"),
    ],
)
def test_rows_that_cannot_be_used_are_named(tmp_path, row, message):
    path = write_rows(tmp_path / "rows.jsonl", [{"instruction": "Say it.", "response": "a"}, row])
    with pytest.raises(DistilvecError, match=rf"^\[data\.train\] .*, line 2.*{message}"):
        read_pairs(path, "data.train", section())


def test_rows_may_be_in_any_table(tmp_path):
    (tmp_path / "rows.csv").write_text("instruction,input,output\nSay it.,,a\nSay it.,now,b\n")
    found, _ = read_pairs(tmp_path / "rows.csv", "data.train", section(template="{instruction}"))
    assert found[0].prompt == "Say it." and "now" in found[1].prompt and found[1].responses == ("b",)


def test_long_prompts_are_refused_or_dropped(causal_recipe, tmp_path):
    recipe = causal_recipe("data.max_prompt=12")
    with refused("data.train", "at most 12"):
        build_trainer(recipe, tmp_path / "run", "mark")
    recipe = causal_recipe("data.max_prompt=30", "data.long_prompts=drop", "train.batch_size=2", "data.holdout_rows=1")
    data = build_trainer(recipe, tmp_path / "run", "mark").data
    assert (
        2 < len(data.tokens.prompts) <= 64 and max(data.tokens.prompts.max(), data.teacher.tokens.prompts.max()) <= 30
    )


def test_other_errors_name_the_key(causal_recipe, models, tmp_path):
    def run(*changes: str) -> None:
        build_trainer(causal_recipe(*changes), tmp_path / "run", "mark")

    for change, key in (
        ("data.max_length=100", "data.max_length"),
        ("data.holdout_rows=40", "data.holdout_rows"),
        ("teacher.model=./nowhere", "teacher.model"),
        ("student.config.model_type=gpt3", "student.config"),
        ("data.train=./nowhere.jsonl", "data.train"),
        ("method.options.layers=4", "method.options.layers"),
    ):
        with pytest.raises(DistilvecError, match=rf"^\[{key}\]"):
            run(change)
    for change, message in (
        ("data.max_prompt=60", "leaves no room"),
        ("data.template=Hello", "must contain {instruction}"),
        ("teacher.modle=x", "did you mean 'model'"),
        ("method.name=emo", "method.name"),
    ):
        with pytest.raises(DistilvecError, match=message):
            causal_recipe(change)


CAUSAL = """
name: causal
student: {model: ./student}
data: {train: train.jsonl, tests: {own: test.jsonl}}
variants: {two: {data.tests.second: second.jsonl}}
"""


def test_the_rules_of_other_recipes_hold(tmp_path, monkeypatch):
    (elsewhere := tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(elsewhere)
    file = tmp_path / "causal.yaml"
    file.write_text(CAUSAL)
    loaded = load_causal(file, "two", ["data.holdout=held.jsonl", "data.tests.third=third.jsonl"])
    assert loaded.student.model == str(tmp_path / "student") and loaded.data.train == tmp_path / "train.jsonl"
    assert loaded.data.tests == {
        "own": tmp_path / "test.jsonl", "second": tmp_path / "second.jsonl", "third": elsewhere / "third.jsonl"
    }  # fmt: skip
    assert loaded.data.holdout == elsewhere / "held.jsonl"
    for change, key in (
        ("data.tests={../x: a}", r"\[data.tests.\?/x\] '../x' cannot name files"),
        ("data.tests={'': a}", r"\[data.tests.''\] .*cannot name files"),
        ("data.seed=-1", r"\[data.seed\]"),
        ("generation.max_new_tokens=true", r"\[generation.max_new_tokens\] .*not a boolean"),
        ("dta=1", r"\[dta\] unknown key; did you mean 'data'"),
    ):
        with pytest.raises(DistilvecError, match=f"^{key}"):
            load_causal(file, None, [change])


@pytest.mark.parametrize("variant", [None, *recipes.variants(RECIPE)])
def test_the_recipe_and_its_variants_hold_together(variant):
    recipe = load_causal(RECIPE, variant)
    assert (recipe.teacher is None) == (variant in ("teacher", "alone", "local-teacher", "local-alone"))
    experts = 3 if recipe.method.name == "distillmoe" else 0
    assert recipe.teacher is None or (recipe.student.experts.count if recipe.student.experts else 0) == experts


def test_missing_files_are_named_with_their_origin(tmp_path, monkeypatch):
    monkeypatch.setenv("DISTILVEC_DATA", str(tmp_path))
    recipe = load_causal(RECIPE, "alone")
    with refused("data.train", "databricks-dolly-15k"):
        run_causal(recipe, tmp_path / "run")


# -- whole runs ------------------------------------------------------------------------------------------------------


def test_trains_answers_and_saves_a_plain_model(causal_recipe, tmp_path):
    recipe = causal_recipe("train.epochs=8", "train.keep_students=2")
    report = run_causal(recipe, tmp_path / "run")
    lines = [json.loads(line) for line in RunFolder(tmp_path / "run").metrics.read_text().splitlines()]
    losses = [line["train/loss"] for line in lines if "train/loss" in line]
    held_out = [line["eval/cross_entropy"] for line in lines if "eval/cross_entropy" in line]
    assert losses[-1] < 0.7 * losses[0] and min(held_out) < 0.7 * held_out[0]
    terms = {key for line in lines for key in line if key.startswith("train/loss_")}
    assert {"train/loss_task", "train/loss_moe", "train/loss_diversity", "train/loss_dynamic_cka"} <= terms
    assert report["held_out"]["cross_entropy"] == min(held_out[1:]) and 0 <= report["tests"]["own"]["rouge_l"] <= 100
    answers = [json.loads(line) for line in (tmp_path / "run" / "answers" / "own.jsonl").read_text().splitlines()]
    assert np.mean([line["rouge_l"] for line in answers]) == pytest.approx(report["tests"]["own"]["rouge_l"], abs=0.01)

    model, info = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "student", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert len(list((tmp_path / "run" / "students").glob("step-*/model.safetensors"))) == 2
    again = run_causal(recipe, tmp_path / "run")
    assert (
        again["held_out"] == report["held_out"]
        and again["tests"]["own"]["rouge_l"] == report["tests"]["own"]["rouge_l"]
    )


def test_interrupted_equals_uninterrupted(causal_recipe, tmp_path):
    from loops import stop_after

    recipe = causal_recipe()
    whole = build_trainer(recipe, tmp_path / "whole", "mark")
    whole.run()
    for stop in (3, 9):
        assert not stop_after(build_trainer(recipe, tmp_path / "parts", "mark"), stop).run().finished
    last = build_trainer(recipe, tmp_path / "parts", "mark")
    assert last.state.step == 9 and last.run().finished
    ours, theirs = whole.module.state_dict(), last.module.state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    model = last.module.encoder.model
    assert model.lm_head.weight is model.transformer.wte.weight
    saved = read_checkpoint(last.checkpoint, "mark", ("model/",))
    assert "model/encoder.model.lm_head.weight" not in saved[0]


def test_muon_trains_the_matrices_of_the_layers_alone(causal_recipe, tmp_path):
    loop = build_trainer(causal_recipe("train.optimizer=muon", "train.epochs=1"), tmp_path / "run", "mark")
    assert loop.run().finished
    names = {parameter: name for name, parameter in loop.module.named_parameters()}
    states = loop.optimizer.state.items()
    matrices = {names[parameter] for parameter, state in states if "momentum_buffer" in state}
    assert matrices == {
        name for name in names.values() if ".h." in name and name.endswith("weight") and "ln" not in name
    }


def test_without_a_teacher_the_task_stands_alone(causal_recipe, tmp_path):
    loop = build_trainer(causal_recipe("teacher=null", "train.epochs=1"), tmp_path / "run", "mark")
    assert (
        loop.module.objective.weights == {"task": 1.0}
        and loop.module.encoder.mixture is None
        and not loop.module.objective.needs_fixed_batch
    )
    loop.run()
    assert not any("moe" in line for line in RunFolder(tmp_path / "run").metrics.read_text().splitlines())


def test_only_what_changes_weights_changes_the_fingerprint(causal_recipe, tmp_path):
    def mark(*changes: str) -> str:
        return training_fingerprint(causal_recipe(*changes))

    assert mark() == mark("train.logging_steps=7", "generation.max_new_tokens=3", "data.tests={}")
    assert (
        len(
            {
                mark(),
                mark("train.seed=1"),
                mark("method.options.mix=0.5"),
                mark("data.max_length=50"),
                mark("teacher=null"),
            }
        )
        == 5
    )


def test_a_missing_test_file_is_named_before_any_training(causal_recipe, tmp_path):
    with refused("data.tests.own"):
        run_causal(causal_recipe(f"data.tests.own={tmp_path / 'missing.jsonl'}"), tmp_path / "run")
    assert not RunFolder(tmp_path / "run").metrics.exists()


def test_the_command(causal_recipe, tmp_path, capsys):
    causal_recipe()
    recipe, folder = str(tmp_path / "recipe.yaml"), tmp_path / "run"
    assert run_app(app, [recipe, "train.epochs=1", "--out", str(folder)]) == 0
    assert "ROUGE-L, own" in capsys.readouterr().out and (folder / "student" / "config.json").exists()
    assert run_app(app, [recipe, "train.epochs=2", "--out", str(folder)]) == 2
    assert "[--out]" in capsys.readouterr().err


def test_a_folder_with_other_files_is_refused(causal_recipe, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(DistilvecError, match=r"^\[--out\] .*no folder of a distilvec run"):
        run_causal(causal_recipe(), tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("key", ["teacher.model", "student.model"])
def test_code_in_a_models_folder_is_not_run(causal_recipe, models, tmp_path, monkeypatch, key):
    """Not even where somebody answers yes to transformers' question."""
    folder = tmp_path / "other"
    shutil.copytree(models["teacher"], folder)
    classes = {"AutoModel": "own.Model", "AutoModelForCausalLM": "own.Model"}
    (folder / "config.json").write_text(json.dumps({"model_type": "vit", "vocab_size": 200, "auto_map": classes}))
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 50))
    chosen = "student={model: %s}" if key == "student.model" else "teacher={model: %s}"
    with pytest.raises(DistilvecError, match=rf"^\[{key}\]"):
        run_causal(causal_recipe(chosen % folder), tmp_path / "run")
    assert not (tmp_path / "ran").exists()


def test_wants_without_an_answer_are_refused(models):
    model, _ = load_causal_model("teacher.model", str(models["teacher"]), None, torch.float32)
    ids = torch.ones(1, 4, dtype=torch.int64)
    batch = TextBatch(torch.arange(1), {"input_ids": ids, "labels": ids}, torch.arange(1))
    with refused("method.name"):
        CausalEncoder(model, Experts(48, 3, 8))(batch, OutputSpec(second_view=True))


@pytest.mark.slow
def test_two_processes_train_as_one_does(causal_recipe, tmp_path):
    """DSKD divides by a standard deviation over the batch; the responses of a share are shorter or longer."""
    rates = [f"student.config.{name}=0.0" for name in ("resid_pdrop", "embd_pdrop", "attn_pdrop")]
    changes = ("method.name=dskd", "student.experts=null", "train.max_steps=6", "train.batch_size=5", *rates)
    run_causal(causal_recipe(*changes), tmp_path / "one")
    finish(start(tmp_path / "recipe.yaml", *changes, "--out", tmp_path / "two", module="experiments.causal"))
    one, two = (load_file(RunFolder(tmp_path / name).checkpoint) for name in ("one", "two"))
    way = 6 * 3e-3  # steps times rate; the bounds are those of test_processes.py
    for key, value in one.items():
        if key.startswith("model/") and "c_attn.bias" not in key:  # the keys' part has no gradient, but for rounding
            gap = (two[key] - value).float().abs()
            assert gap.square().mean().sqrt() < 1e-3 * way and gap.max() < 1e-2 * way, key
