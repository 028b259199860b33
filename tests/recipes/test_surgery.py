"""The recipes of the surgery paper: the student's own tokenizer, both vectors cached, sizes, one random start."""

from __future__ import annotations

import architectures
import pytest
import torch
from samples import make_texts

from distilvec.config import recipe as recipes
from distilvec.config.builtin import recipe_file
from distilvec.core.errors import DistilvecError
from distilvec.pipeline.prepare import fill_whole_cache
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.student import untrained_student
from distilvec.verbs.run.sweep import expand_sweep

RECIPE, SWEEP = recipe_file("offline_cosine"), recipe_file("tokenizers")
SIZE = 85


@pytest.fixture(scope="module")
def dense_model(tmp_path_factory):
    """A tiny model with two linear layers behind its pooling, as EmbeddingGemma has them."""
    folder = tmp_path_factory.mktemp("dense")
    return architectures.sentence_transformer(
        folder / "model", architectures.bert(folder / "backbone"), "mean dense:48 dense:32 normalize"
    )


def tiny(model, tmp_path, *overrides, variant=None):
    """The recipe on a tiny model and generated texts of two languages."""
    for number, language in enumerate(("tr", "en")):
        texts = make_texts(800)[400 * number : 400 * number + 400]
        (tmp_path / f"{language}.txt").write_text("\n".join(texts), encoding="utf-8")
    sources = ", ".join(f"{{path: {tmp_path / name}.txt, language: {name}}}" for name in ("tr", "en"))
    changes = [
        f"teacher={{model: {model}, max_length: 32}}",
        "student.max_length=32",
        f"student.vocabulary.size={SIZE}",
        "student.vocabulary.share=20",
        "student.vocabulary.letters=seen",
        f"corpus.sources=[{sources}]",
        "corpus.validation_rows=16",
        "train={max_steps: 2, batch_size: 16, device: cpu}",
        "evaluation={}",
    ]
    return recipes.load(RECIPE, variant, [*changes, *overrides])


@pytest.mark.parametrize("variant", [None, "64k", "pre-dense"])
def test_the_student_has_another_tokenizer_of_the_vocabularys_size(dense_model, tmp_path, variant):
    job = resolve(tiny(dense_model, tmp_path, variant=variant), tmp_path / "run")
    student = untrained_student(job)
    with job.teacher.load("cpu") as teacher:
        theirs = teacher.model.tokenizer.get_vocab()
    ours = student.tokenizer.get_vocab()
    assert len(ours) == SIZE == student[0].auto_model.get_input_embeddings().num_embeddings
    assert set(ours) != set(theirs) and len(theirs) > SIZE
    assert [type(module).__name__ for module in student].count("Dense") == 2


def test_the_full_run_is_the_papers():
    full, small = recipes.load(RECIPE), recipes.load(RECIPE, "64k")
    wanted = {"kind": "hybrid", "target": "tr", "share": 65_536, "size": 131_072, "compose": "mean"}
    assert full.student.vocabulary.model_dump(include=set(wanted)) == wanted
    assert small.student.vocabulary.size == 65_536
    limits = {source.name: source.limit for source in full.corpus.sources}
    assert limits.pop("wikipedia-tr") == limits.pop("wikipedia-en") == 100_000
    assert len(limits) == 38 and set(limits.values()) == {10_000}
    pair = [
        member.recipe
        for member in expand_sweep(recipe_file("vocabulary_size"), ["sweep.variants=[hybrid-128k,hybrid-64k]"])
    ]
    assert [one.student for one in pair] == [full.student, small.student]
    assert all(one.corpus == full.corpus for one in pair)


def test_both_vectors_are_cached_for_the_final_target(dense_model, tmp_path):
    job = resolve(tiny(dense_model, tmp_path), tmp_path / "run")
    assert not job.required.pre_dense
    fill_whole_cache(job, job.teacher)
    other = resolve(tiny(dense_model, tmp_path, variant="pre-dense"), tmp_path / "other")
    assert other.teacher.manifest.fingerprint == job.teacher.manifest.fingerprint, "one cache answers for both"


def test_both_vectors_of_a_teacher_that_has_one(tiny_model, tmp_path):
    recipe = tiny(tiny_model, tmp_path, "student.dense=auto")
    with pytest.raises(DistilvecError, match=r"\[teacher\] .*cache\.pre_dense asks for"):
        resolve(recipe, tmp_path / "run")


def test_four_tokenizers_begin_with_the_same_weights(tiny_model, tmp_path):
    tokenizers = [tiny_model, tmp_path / "other"]
    architectures.metaspace("<s> $A </s>", ["<s>", "</s>", "<unk>", "<pad>"]).save_pretrained(tokenizers[1])
    overrides = [f"teacher.model={tiny_model}"]
    (tmp_path / "texts.txt").write_text("\n".join(make_texts(200)), encoding="utf-8")
    overrides += [
        f"corpus.sources=[{{path: {tmp_path / 'texts.txt'}}}]",
        "corpus.validation_rows=16",
        "train.batch_size=8",
    ]
    sizes = "vocab_size: 3000, hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 2, intermediate_size: 32"
    overrides += [
        f"student.config={{model_type: bert, {sizes}}}",
        "student.max_length=32",
        "train.device=cpu",
        "evaluation={}",
    ]
    runs = (
        recipes.load(SWEEP, "local-own", [*overrides, f"student.tokenizer={one}", "sweep=null"]) for one in tokenizers
    )
    first, second = (untrained_student(resolve(recipe, tmp_path / "run")) for recipe in runs)
    assert first.tokenizer.get_vocab() != second.tokenizer.get_vocab()
    theirs = second.state_dict()
    for name, weight in first.state_dict().items():
        if "word_embeddings" not in name:  # the row of the padding token is zero
            assert torch.equal(weight, theirs[name]), name
    table = "0.model.embeddings.word_embeddings.weight"
    differ = (first.state_dict()[table] != theirs[table]).any(1).sum() if table in theirs else 0
    assert int(differ) <= 2
