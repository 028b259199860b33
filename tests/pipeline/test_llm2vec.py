"""LLM2Vec as a teacher: a causal base, two adapters merged one after another, no causal mask; fine-tuned and learnt from."""  # noqa: E501

from __future__ import annotations

import json
import shlex

import architectures
import numpy as np
import pytest
import torch
from jobs import train
from labelled import write_task
from peft import LoraConfig, PeftModel, get_peft_model
from samples import make_texts
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from distilvec.cli.app import app
from distilvec.config.builtin import recipe_folder
from distilvec.config.recipe import load as load_recipe
from distilvec.config.recipe import variants
from distilvec.config.schema import TeacherSection
from distilvec.core.errors import DistilvecError, about
from distilvec.core.outputs import OutputSpec
from distilvec.core.run_folder import RunFolder
from distilvec.pipeline.prepare import prepare_data
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.student import untrained_student
from distilvec.teachers.open import load_teacher
from distilvec.train.metrics import read_metrics

TEXTS = [*make_texts(5), "A"]
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@pytest.fixture(scope="module")
def llm2vec(tmp_path_factory):
    """A base and two adapters, the second trained on the first's result, as folders like those on the hub."""
    folder = tmp_path_factory.mktemp("llm2vec")
    architectures.mistral(folder / "base", sliding_window=None)
    model = AutoModel.from_pretrained(folder / "base")
    with torch.random.fork_rng(devices=[]):
        for seed, name in enumerate(("mntp", "simcse")):
            torch.manual_seed(seed)
            adapted = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=TARGETS))
            for weight, values in adapted.named_parameters():
                if "lora_B" in weight:
                    torch.nn.init.normal_(values, std=0.1)
            adapted.save_pretrained(folder / name)
            model = adapted.merge_and_unload()
    return folder


def section(folder, **changes):
    adapters = [str(folder / "mntp"), str(folder / "simcse")]
    own = {"model": str(folder / "base"), "adapters": adapters, "attention": "bidirectional", "pooling": "mean"}
    return TeacherSection.model_validate({**own, **changes})


def without_a_mask(model, ids):
    """Last hidden states and attention of a text, by transformers' eager attention under a mask that hides nothing."""
    with torch.no_grad():
        output = model(
            torch.tensor([ids]), attention_mask=torch.zeros(1, 1, len(ids), len(ids)), output_attentions=True
        )
    return output.last_hidden_state[0], output.attentions[-1][0]


def test_vectors_equal_a_loop_of_transformers_and_peft(llm2vec):
    plain = AutoModel.from_pretrained(llm2vec / "base", attn_implementation="eager")
    for name in ("mntp", "simcse"):
        plain = PeftModel.from_pretrained(plain, llm2vec / name).merge_and_unload()
    tokenizer = AutoTokenizer.from_pretrained(llm2vec / "base")
    expected = [without_a_mask(plain.eval(), tokenizer(text)["input_ids"])[0].mean(0).numpy() for text in TEXTS]
    teacher = load_teacher(section(llm2vec), "cpu")
    np.testing.assert_allclose(teacher.embed(TEXTS), np.stack(expected), atol=1e-5)
    for changes in ({"adapters": None}, {"attention": "own"}, {"adapters": [str(llm2vec / "mntp")]}):
        assert not np.allclose(load_teacher(section(llm2vec, **changes), "cpu").embed(TEXTS), expected, atol=1e-2)


def test_adapters_change_the_fingerprint_and_a_teacher_without_keeps_it(llm2vec):
    names = [str(llm2vec / "mntp"), str(llm2vec / "simcse")]
    kinds = [None, [], names[:1], names, names[::-1]]
    marks = [load_teacher(section(llm2vec, adapters=kind), "cpu").manifest().fingerprint for kind in kinds]
    assert marks[0] == marks[1] and len(set(marks)) == 4


def test_adapters_that_do_not_fit_are_named(llm2vec, tmp_path):
    causal = get_peft_model(
        AutoModelForCausalLM.from_pretrained(llm2vec / "base"), LoraConfig(r=2, target_modules=["q_proj"])
    )
    causal.save_pretrained(tmp_path / "causal")
    for name, problem in ((str(tmp_path / "causal"), "does not fit MistralModel"), (str(tmp_path / "none"), "no such")):
        with pytest.raises(DistilvecError, match=rf"^\[teacher.adapters\] .*{problem}"), about("teacher"):
            load_teacher(section(llm2vec, adapters=[name]), "cpu")


def documented_command(name):
    """The fine-tuning in a recipe's opening comment, as words."""
    lines = (recipe_folder() / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    first = next(number for number, line in enumerate(lines) if "distilvec finetune" in line)
    last = next(number for number in range(first, len(lines)) if not lines[number].endswith("\\"))
    return shlex.split(" ".join(line.lstrip("# ").rstrip("\\") for line in lines[first : last + 1]))[1:]


@pytest.fixture(scope="module")
def finetuned(llm2vec, tmp_path_factory):
    """The folder that the documented command leaves on the tiny base, with bf16 as fp32."""
    folder = tmp_path_factory.mktemp("finetuned")
    task = write_task(folder / "task.jsonl", "pair", 24, 8)
    given = documented_command("emo")
    assert documented_command("distillmoe") == given
    adapters = next(word for word in given if word.startswith("teacher.adapters=")).partition("=")[2]
    own = {
        "FILE": task,
        "runs/teachers/scitail": folder / "run",
        "mistralai/Mistral-7B-Instruct-v0.2": llm2vec / "base",
    }
    own |= dict(zip(adapters.strip("[]").split(", "), (llm2vec / "mntp", llm2vec / "simcse"), strict=True))
    for name in sorted(own, key=len, reverse=True):
        given = [word.replace(name, str(own[name])) for word in given]
    given = [word.replace("bf16", "fp32").replace("bfloat16", "float32") for word in given]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISTILVEC_CACHE", str(folder / "cache"))
        patch.setattr("distilvec.report.write.draw_report", lambda folder, found: None)
        done = CliRunner().invoke(app, [*given, "train.device=cpu", "evaluation.parts=[]", "train.keep_students=1"])
    assert done.exit_code == 0, (done.output, done.exception)
    return folder


def test_the_documented_command_has_the_papers_settings(finetuned):
    recipe = load_recipe(finetuned / "run" / "recipe.yaml")
    assert (recipe.train.learning_rate, recipe.train.batch_size, recipe.train.epochs) == (1e-5, 4, 5)
    assert recipe.train.schedule.name == "cosine"
    lora = recipe.student.lora
    assert (lora.r, lora.alpha, lora.dropout) == (256, 32, 0.1)
    assert SentenceTransformer(str(finetuned / "run" / "student"), device="cpu").max_seq_length == 512


def test_the_saved_teacher_sees_both_ways_in_plain_sentence_transformers(finetuned, llm2vec):
    folder = finetuned / "run" / "student"
    assert json.loads((folder / "config.json").read_text())["is_causal"] is False
    plain = SentenceTransformer(str(folder), device="cpu")
    ids, other = torch.tensor([[5, 6, 7, 8, 9]]), torch.tensor([[5, 6, 7, 8, 10]])
    with torch.no_grad():
        one, two = (plain[0].auto_model(tokens).last_hidden_state[0, 0] for tokens in (ids, other))
    assert (one - two).abs().max() > 1e-4
    vectors = [load_teacher(TeacherSection(model=str(folder), attention=kind), "cpu").embed(TEXTS)
               for kind in ("own", "bidirectional")]  # fmt: skip
    for found in vectors:
        np.testing.assert_allclose(found, plain.encode(TEXTS), atol=1e-5)
    before = load_teacher(section(llm2vec), "cpu").embed(TEXTS)  # 30 steps at 1e-5 change little
    assert 1e-7 < np.abs(vectors[0] - before).max() < 0.1 * np.abs(before).max()


def test_emo_learns_from_it_and_importance_counts_both_sides(finetuned, tiny_recipe, tmp_path):
    folder = finetuned / "run" / "student"
    backbone = architectures.xlm_roberta(tmp_path / "student", num_hidden_layers=2)
    changes = {
        "method__name": "emo",
        "corpus": None,
        "task": {"type": "pair", "path": str(finetuned / "task.jsonl"), "encode": "joint"},
        "student": {"model": str(backbone), "max_length": 64},
        "teacher": {"model": str(folder), "attention": "bidirectional", "max_length": 64, "dtype": "float32"},
        "train__logging_steps": 1,
        "train__epochs": 1,
        "train__batch_size": 4,
    }
    job = resolve(tiny_recipe(**changes), tmp_path / "run")
    data = prepare_data(job, untrained_student(job)).training_data(OutputSpec(tokens=job.required.tokens))
    batch = data.batch(data.train_rows[:4])
    found = data.teacher.signals(batch).importance
    plain = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for row, received in zip(batch.rows.tolist(), found, strict=True):
        text = job.teacher.corpus.texts(np.array([row]))[0]
        ids = tokenizer(*([text] if isinstance(text, str) else text), truncation=True, max_length=64)["input_ids"]
        attention = without_a_mask(plain, ids)[1].mean(0)
        assert (attention.triu(1)[attention.triu(1) != 0] > 0).sum() == len(ids) * (len(ids) - 1) // 2
        torch.testing.assert_close(received[: len(ids)], attention.sum(0) / attention.sum(), atol=1e-3, rtol=1e-2)
    train(job)
    losses = [line for line in read_metrics(RunFolder(tmp_path / "run").metrics) if "train/loss" in line]
    assert len(losses) >= 5 and all(line["train/loss_otis"] > 0 for line in losses)


ACROSS = ["emo", "distillmoe", *(f"baselines/{name}" for name in ("uld", "mined", "dskd", "multilevel_ot", "cdm"))]


@pytest.mark.parametrize("name", ACROSS)
def test_recipes_read_llm2vec_both_ways_and_other_teachers_as_they_are(name):
    path = recipe_folder() / f"{name}.yaml"
    for variant in (None, *variants(path)):
        teacher = load_recipe(path, variant).teacher
        other = any(part in str(teacher.model).lower() for part in ("bge", "qwen", "minilm"))
        assert teacher.attention == ("own" if other else "bidirectional"), variant
