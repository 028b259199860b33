"""ULD, MinED, MultiLevelOT and DSKD on next-token predictions: against loops over single texts, and whole runs."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from loops import stop_after
from refusals import refused
from transformers import AutoModelForCausalLM
from transformers.convert_slow_tokenizer import bytes_to_unicode

from distilvec.core.info import StudentInfo, TeacherInfo
from distilvec.core.model_name import ModelName
from distilvec.core.objective import weighted_loss
from distilvec.core.run_folder import RunFolder
from distilvec.models.load import load_tokenizer
from experiments.causal.align import common_tokens
from experiments.causal.methods import CausalContext, Mined
from experiments.causal.run import build_trainer, run_causal

ROWS = range(6)
METHODS = ["uld", "mined", "multilevel_ot", "dskd"]


@pytest.fixture
def step(causal_recipe, tmp_path):
    """Call with a method: its terms on six texts, the objective, and what each text's models give without padding."""

    def make(name: str, *changes: str):
        changed = {change.partition("=")[0] for change in changes}
        options = [] if "method.options" in changed else ["method.options={distillation_weight: 0.75}"]
        recipe = causal_recipe(f"method.name={name}", *options, "student.experts=null", *changes)
        loop = build_trainer(recipe, tmp_path / "run", "mark")
        encoder, objective, data = loop.module.encoder.eval(), loop.module.objective, loop.data
        batch = data.batch(np.arange(len(ROWS)))
        assert "attention_mask" in batch.tokens
        with torch.no_grad():
            theirs = data.teacher.signals(batch)
            terms = objective(batch, encoder(batch, objective.student_outputs), theirs)
            models = ((encoder.model, data.tokens), (data.teacher.encoder.model, data.teacher.tokens))
            alone = [[predictions(model, tokens, row) for row in ROWS] for model, tokens in models]
        return terms, objective, alone, (encoder, data, batch, theirs)

    return make


def predictions(model, tokens, row):
    """Logits, states, tokens read and targets of one response, without padding."""
    ids = torch.from_numpy(tokens.ids[tokens.offsets[row] : tokens.offsets[row + 1]])
    output = model(ids[None], output_hidden_states=True)
    own = slice(int(tokens.prompts[row]) - 1, len(ids) - 1)
    return output.logits[0, own], output.hidden_states[-1][0, own], ids[own], ids[own.start + 1 : own.stop + 1]


def cross_entropy(logits, targets):
    return sum(float(one.logsumexp(0) - one[target]) for one, target in zip(logits, targets, strict=True)) / len(
        targets
    )


def divergence(teacher, student, temperature):
    """T^2 KL(softmax(teacher / T) || softmax(student / T)) of two vectors of logits."""
    p, q = (values / temperature - (values / temperature).logsumexp(0) for values in (teacher, student))
    return float(temperature**2 * (p.exp() * (p - q)).sum())


def close(found, expected, tolerance=1e-5):
    torch.testing.assert_close(found, torch.tensor(expected), atol=tolerance, rtol=tolerance)


def test_uld(step):
    terms, objective, (ours, theirs), _ = step("uld")
    expected = []
    for own, other in zip(ours, theirs, strict=True):
        count, total = min(len(own[0]), len(other[0])), 0.0
        for k in range(count):
            one, two = (sorted(model[0][k].softmax(0).tolist(), reverse=True) for model in (own, other))
            size = max(len(one), len(two))
            one, two = (values + [0.0] * (size - len(values)) for values in (one, two))
            total += sum(abs(a - b) for a, b in zip(one, two, strict=True))
        expected.append(total / count)
    close(terms["uld"], expected)
    close(terms["task"], [cross_entropy(own[0], own[3]) for own in ours])
    assert objective.weights == {"task": 0.25, "uld": 0.75}
    whole = 0.25 * float(terms["task"].mean()) + 0.75 * float(np.mean(expected))
    assert float(weighted_loss(terms, objective.weights)) == pytest.approx(whole, rel=1e-5)


def test_multilevel_ot(step):
    terms, objective, both, _ = step("multilevel_ot", "method.options={distillation_weight: 0.5, kept: 20}")
    kept = []
    for model in both:
        rows = [(one[0] / (one[0].std(-1, keepdim=True) + 1e-4)).softmax(-1) for one in model]
        order = torch.cat(rows).sum(0).argsort(descending=True)[:20]
        kept.append([row[:, order] for row in rows])
    absolute, crossed, sinkhorn = [], [], []
    for own, other in zip(*kept, strict=True):
        count = min(len(own), len(other))
        absolute.append(sum(float((own[k] - other[k]).abs().sum()) for k in range(count)) / count)
        targets = (-(own[k].softmax(0) * other[k].softmax(0).log()).sum() for k in range(count))
        crossed.append(sum(map(float, targets)) / count)
        cost = torch.stack([torch.stack([((a / 2).softmax(0) - (b / 2).softmax(0)).abs().sum() for b in own]) for a in other])  # fmt: skip  # noqa: E501
        plan = (-cost / 0.1).exp()
        for _ in range(10):
            plan = plan / plan.sum(1, keepdim=True)
            plan = plan / plan.sum(0, keepdim=True)
        sinkhorn.append(float((plan * cost).sum()))
    for name, expected in (("absolute", absolute), ("cross_entropy", crossed), ("sinkhorn", sinkhorn)):
        close(terms[name], expected)
    weights = {"task": 0.5, "absolute": 0.5, "cross_entropy": 0.05, "sinkhorn": 0.00005}
    assert objective.weights == pytest.approx(weights) and objective.needs_fixed_batch


# -- MinED -----------------------------------------------------------------------------------------------------------


def surfaces(tokenizer):
    """The bytes of every ordinary token, a leading space for the beginning of a word."""
    letters = {letter: number for number, letter in bytes_to_unicode().items()}
    byte_level = "Ġ" in "".join(tokenizer.get_vocab())
    found = {}
    for token, number in tokenizer.get_vocab().items():
        if number not in tokenizer.all_special_ids:
            text = bytes(letters[letter] for letter in token) if byte_level else token.replace("▁", " ").encode()
            found[number] = text
    return found


def levenshtein(a, b):
    table = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        above, table[0] = table[0], i
        for j, y in enumerate(b, 1):
            above, table[j] = table[j], min(above + (x != y), table[j] + 1, table[j - 1] + 1)
    return table[-1]


def one_to_one(own, other):
    """Pairs of positions of two lists of texts that are alone on the cheapest path; ties: both, then the own one."""
    total = {(-1, -1): 0}
    for i, a in enumerate(own):
        for j, b in enumerate(other):
            before = [total.get(cell, 1 << 29) for cell in ((i - 1, j - 1), (i - 1, j), (i, j - 1))]
            total[i, j] = levenshtein(a, b) + min(before)
    i, j, path = len(own) - 1, len(other) - 1, []
    while i >= 0 and j >= 0:
        path.append((i, j))
        steps = [(i - 1, j - 1), (i - 1, j), (i, j - 1)]
        i, j = min(steps, key=lambda cell: total.get(cell, 1 << 29))
    alone = [(i, j) for i, j in path if sum(i == a for a, _ in path) == 1 and sum(j == b for _, b in path) == 1]
    return [(i, j) for i, j in alone if own[i] == other[j]]


def texts_read(surfaces, ids):
    return [surfaces.get(number, b"?").decode("utf-8", "surrogateescape").replace(" ", "") for number in ids]


def test_mined(step, models):
    terms, _, (ours, theirs), (_, _, batch, _) = step(
        "mined", "method.options={distillation_weight: 0.5, temperature: 2}"
    )
    tokenizers = [load_tokenizer(ModelName(str(models[name]))) for name in ("tokenizer", "teacher")]
    own, other = (surfaces(tokenizer) for tokenizer in tokenizers)
    by_text = {text: number for number, text in own.items()}
    pairs = [(by_text[text], number) for number, text in other.items() if text in by_text]
    pairs.append((tokenizers[0].eos_token_id, tokenizers[1].eos_token_id))
    assert sorted(zip(*common_tokens(*tokenizers), strict=True)) == sorted(pairs)
    first, second = (torch.tensor(ids) for ids in zip(*pairs, strict=True))
    expected, aligned = [], 0
    for row, (mine, yours) in enumerate(zip(ours, theirs, strict=True)):
        read = [texts_read(texts, model[2].tolist()) for texts, model in ((own, mine), (other, yours))]
        found = dict(one_to_one(*read))
        total = 0.0
        for k, target in enumerate(mine[3].tolist()):
            scores = (mine[0][k] / 2).log_softmax(0)
            if k in found:
                aligned += 1
                p = (yours[0][found[k]][second] / 2).log_softmax(0)
                total += float((p.exp() * (p - scores[first])).sum()) * 4
            else:
                total -= float(scores[target]) * 4
        expected.append(total / len(mine[3]))
        kept = batch.alignment.pairs[row]
        assert kept[kept[:, 0] >= 0].tolist() == sorted(map(list, found.items()))
    assert 0 < aligned < sum(len(mine[3]) for mine in ours)
    close(terms["mined"], expected, 1e-4)


# -- DSKD ------------------------------------------------------------------------------------------------------------


def test_dskd(step):
    _, objective, (ours, theirs), (encoder, data, batch, signals) = step("dskd")
    method, student, teacher = objective.method, encoder.model, data.teacher.encoder.model
    with torch.no_grad():  # so that one token is the likeliest everywhere, and right in some places
        method.t2s.bias.copy_(5 * student.get_output_embeddings().weight[ours[0][3][0]])
        terms = objective(batch, encoder(batch, objective.student_outputs), signals)

    def read(model, texts):
        table = model.get_input_embeddings().weight
        return [torch.cat([table[one[2]], table[one[3]]], -1) for one in texts], [table[one[3]] for one in texts]

    with torch.no_grad():
        (queries, _), (keys, targets) = read(student, ours), read(teacher, theirs)
        states = [one[1] for one in theirs]
        keys, targets, states = ([one / torch.cat(kind).std() for one in kind] for kind in (keys, targets, states))
        expected = {"projected": [], "student_space": [], "teacher_space": []}
        for row, (own, other) in enumerate(zip(ours, theirs, strict=True)):
            align = method.query(queries[row]) @ keys[row].T / (2 * other[1].shape[-1]) ** 0.5
            lent = student.get_output_embeddings()(align.softmax(-1) @ method.t2s(states[row] + targets[row]))
            taken = teacher.get_output_embeddings()(align.T.softmax(-1) @ method.s2t(own[1]))
            expected["projected"].append(cross_entropy(lent, own[3]))
            right = [k for k, target in enumerate(own[3].tolist()) if int(lent[k].argmax()) == target]
            gaps = [divergence(lent[k], own[0][k], 2.0) for k in right]
            expected["student_space"].append(sum(gaps) / len(own[3]))
            gaps = [divergence(other[0][k], taken[k], 2.0) for k in range(len(taken))]
            expected["teacher_space"].append(sum(gaps) / len(taken))
    assert np.count_nonzero(expected["student_space"]) > 0 and terms["student_space"].max() > 1e-3
    for name, values in expected.items():
        close(terms[name], values, 1e-4)

    found = objective(batch, encoder(batch, objective.student_outputs), signals)
    found["projected"].sum().backward(retain_graph=True)
    assert not any(values.grad is not None for values in encoder.parameters()), "both heads are frozen"
    assert method.t2s.weight.grad.any() and method.query.weight.grad.any()
    (found["teacher_space"] + found["student_space"]).sum().backward()
    assert method.s2t.weight.grad.any() and any(
        values.grad.any() for values in encoder.parameters() if values.grad is not None
    )


# -- whole runs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_trains_resumes_answers_and_saves_a_plain_model(causal_recipe, tmp_path, name):
    recipe = causal_recipe(f"method.name={name}", "student.experts=null", "train.epochs=2")
    report = run_causal(recipe, tmp_path / "run")
    lines = [json.loads(line) for line in RunFolder(tmp_path / "run").metrics.read_text().splitlines()]
    losses = [line["train/loss"] for line in lines if "train/loss" in line]
    assert np.isfinite(losses).all() and losses[-1] < losses[0]
    assert 0 <= report["tests"]["own"]["rouge_l"] <= 100
    AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "student")

    assert not stop_after(build_trainer(recipe, tmp_path / "parts", "mark"), 5).run().finished
    last = build_trainer(recipe, tmp_path / "parts", "mark")
    assert last.state.step == 5 and last.run().finished
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "student").state_dict()
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "parts" / "student").state_dict()
    assert all(torch.equal(saved[key], again[key]) for key in saved)


@pytest.mark.parametrize("name", METHODS)
def test_padding_changes_nothing(step, name):
    """A text's terms in a batch are those of the text alone, but for what MultiLevelOT and DSKD scale by the batch."""
    terms, objective, _, (encoder, data, _, _) = step(name)
    if name in ("multilevel_ot", "dskd"):
        return
    alone = data.batch(np.arange(2, 3))
    with torch.no_grad():
        found = objective(alone, encoder(alone, objective.student_outputs), data.teacher.signals(alone))
    for term, values in found.items():
        torch.testing.assert_close(values[0], terms[term][2], atol=1e-5, rtol=1e-4)


def test_a_student_that_was_not_moved_yet_gets_its_place(causal_recipe, tmp_path):
    recipe = causal_recipe("method.name=uld", "train.epochs=1")
    run_causal(recipe, tmp_path / "run")
    student = tmp_path / "run" / "student"
    weights = (student / "model.safetensors").read_bytes()
    student.rename(student.with_name(".student.new"))
    run_causal(recipe, tmp_path / "run")
    assert (student / "model.safetensors").read_bytes() == weights
    assert not student.with_name(".student.new").exists()


def test_the_inner_method_gets_the_precision_of_large_products(causal_recipe, tmp_path):
    loop = build_trainer(causal_recipe("train.precision=bf16", "train.max_steps=1"), tmp_path / "run", "mark")
    assert loop.module.objective.matmul_dtype is torch.bfloat16
    loop.run()
    assert loop.module.objective.method.matmul_dtype is torch.bfloat16


def test_mined_without_common_tokens_is_refused():
    with refused("method.name"):
        Mined(CausalContext(StudentInfo(8, 2), (TeacherInfo(8),)), {})
