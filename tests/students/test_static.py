"""The token table of a static student: values by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from architectures import TEXTS, bert, sentence_transformer
from refusals import refused
from sentence_transformers import SentenceTransformer

from distilvec.config.recipe import section_of
from distilvec.config.schema import TeacherSection
from distilvec.config.student import StudentSection
from distilvec.core.batch import TextBatch
from distilvec.core.outputs import OutputSpec
from distilvec.models.load import load
from distilvec.models.parts import max_length, text_tokenizer
from distilvec.students.build import TeacherInfo, build_student
from distilvec.students.encoder import Encoder
from distilvec.students.static import FREQUENT, frequency_weights, principal_components
from distilvec.teachers.open import load_teacher


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("static")
    return str(sentence_transformer(root / "model", bert(root / "bert"), "mean dense:48 normalize"))


def built(folder, *, dim=48, texts=TEXTS, max_length=60, **keys):
    teacher = TeacherInfo(dim=dim, normalized=True, max_length=max_length, prompts={"query": "query: "}, model=folder)
    section = section_of(StudentSection, "student", {"model": "teacher", "layers": 0, **keys})
    return build_student(section, teacher, 0, texts=texts)


def expected_rows(folder, texts):
    """The teacher's vector of every token alone, times a / (a + p), with p counted by hand."""
    teacher = SentenceTransformer(folder, device="cpu").eval()
    tokenizer = teacher.tokenizer
    begin, end = tokenizer.cls_token_id, tokenizer.sep_token_id
    rows = []
    for token in range(len(tokenizer)):
        ids = torch.tensor([[begin, token, end]])
        with torch.no_grad():
            vector = teacher({"input_ids": ids, "attention_mask": torch.ones_like(ids)})["sentence_embedding"][0]
        rows.append(vector.numpy())
    counts = np.zeros(len(tokenizer))
    for text in texts:
        for token in tokenizer(text, add_special_tokens=False)["input_ids"][:60]:
            counts[token] += 1
    shares = counts / max(1, counts.sum())
    return np.stack(rows) * (FREQUENT / (FREQUENT + shares))[:, None]


def test_the_untrained_vector_of_a_text_is_the_mean_of_its_weighted_token_vectors(folder):
    student = built(folder)
    assert [type(module).__name__ for module in student] == ["StaticEmbedding", "Normalize"]
    rows = expected_rows(folder, TEXTS)
    tokenizer = SentenceTransformer(folder, device="cpu").tokenizer
    for text, vector, query in zip(TEXTS, student.encode(TEXTS), student.encode_query(TEXTS), strict=True):
        for prompted, found in ((text, vector), ("query: " + text, query)):
            mean = rows[tokenizer(prompted, add_special_tokens=False)["input_ids"][:60]].mean(0)
            np.testing.assert_allclose(found, mean / np.linalg.norm(mean), atol=1e-5)


def test_a_narrow_table_holds_the_principal_components_before_a_linear_layer(folder):
    student = built(folder, embedding={"rank": 12})
    assert [type(module).__name__ for module in student] == ["StaticEmbedding", "Dense", "Normalize"]
    assert (student[1].in_features, student[1].out_features) == (12, 48)
    vectors = expected_rows(folder, [])
    centred = vectors - vectors.mean(0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    projected = centred @ axes[:12].T
    weights = np.linalg.norm(expected_rows(folder, TEXTS), axis=1) / np.linalg.norm(vectors, axis=1)
    table = student[0].embedding.weight.detach().numpy()
    np.testing.assert_allclose(np.abs(table), np.abs(projected * weights[:, None]), atol=1e-4)


def test_principal_components_are_those_of_numpy():
    rows = torch.randn(40, 6, generator=torch.Generator().manual_seed(0)) + 3
    centred = rows.numpy() - rows.numpy().mean(0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    components = principal_components(rows, 3).numpy()
    np.testing.assert_allclose(np.abs(components), np.abs(centred @ axes[:3].T), atol=1e-5)


def test_frequent_tokens_weigh_less():
    weights = frequency_weights(torch.tensor([0.0, 1.0, 999.0]))
    expected = [1.0, FREQUENT / (FREQUENT + 0.001), FREQUENT / (FREQUENT + 0.999)]
    np.testing.assert_allclose(weights.numpy(), expected, rtol=1e-6)


def test_the_encoder_equals_the_model_with_and_without_padding(folder):
    student = built(folder, embedding={"rank": 12})
    encoder = Encoder(student).eval()
    tokenizer = text_tokenizer(student)
    rows = [tokenizer(text)["input_ids"] for text in TEXTS]
    longest = max(map(len, rows))
    ids = torch.tensor([row + [3] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    numbers = torch.arange(len(rows))
    batch = TextBatch(numbers, {"input_ids": ids, "attention_mask": mask}, numbers * 0)
    outputs = encoder(batch, OutputSpec(embedding=True, pre_dense=True, vector=True))
    np.testing.assert_allclose(outputs.embedding.detach().numpy(), student.encode(TEXTS), atol=1e-6)
    assert outputs.pre_dense.shape == outputs.vector.shape == (len(TEXTS), 12)
    outputs.embedding.sum().backward()
    gradient = student[0].embedding.weight.grad
    assert gradient is not None and gradient[ids[0, 0]].abs().sum() > 0


def test_long_texts_are_cut_where_the_teacher_cuts_them(folder, tmp_path):
    student = built(folder, max_length=5)
    student.save_pretrained(str(tmp_path / "student"))
    loaded = load(tmp_path / "student", device="cpu")
    assert max_length(loaded) == 5
    tokenizer = text_tokenizer(loaded)
    long = " ".join(TEXTS)
    beginning = tokenizer.decode(tokenizer(long)["input_ids"][:5])
    np.testing.assert_allclose(loaded.encode(long), loaded.encode(beginning), atol=1e-6)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("pooling", "cls"),
        ("reinitialize", 1),
        ("intermediate_size", 8),
        ("attention", "bidirectional"),
        ("dropout", 0.1),
        ("experts", {}),
        ("lora", {}),
        ("embedding", {"rank": 8, "expand": True}),
    ],
)
def test_what_a_table_cannot_have_is_refused(key, value):
    with refused("student." + ("embedding.expand" if key == "embedding" else key), "static"):
        section_of(StudentSection, "student", {"model": "teacher", "layers": 0, key: value})


def test_a_static_teacher_reads_as_many_tokens_as_the_recipe_says(folder, tmp_path):
    built(folder).save_pretrained(str(tmp_path / "static"))
    whole = load(tmp_path / "static", device="cpu")
    long = " ".join(TEXTS)
    tokenizer = text_tokenizer(whole)
    beginning = tokenizer.decode(tokenizer(long)["input_ids"][:5])
    with load_teacher(TeacherSection(model=str(tmp_path / "static"), max_length=5), "cpu") as teacher:
        np.testing.assert_allclose(teacher.embed([long]), whole.encode([beginning]), atol=1e-6)
