"""Token planes: places against principal components, words across tokenizers, sentences drawn by seed."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import pdist
from sentence_transformers import SentenceTransformer
from sklearn.decomposition import PCA

from distilvec.evaluation import projection
from distilvec.evaluation.projection import SeparatePlanes, draw_sentences, project_token_planes, token_states
from distilvec.report.json_values import from_json, to_json
from tests.architectures import TEXTS, bert, gemma3, roberta, sentence_transformer, xlm_roberta
from tests.samples import make_texts


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    made = {"bert": bert, "roberta": roberta, "xlm": xlm_roberta, "gemma": gemma3}
    return {
        name: SentenceTransformer(
            str(sentence_transformer(folder / name, make(folder / f"{name}-backbone"))), device="cpu"
        )
        for name, make in made.items()
    }


def test_sentences_are_drawn_by_seed_from_those_of_a_sensible_length():
    texts = make_texts(200)
    drawn = draw_sentences(texts, 4)
    assert drawn == draw_sentences(texts[::-1], 4) != draw_sentences(texts, 4, seed=1) and len(set(drawn)) == 4
    assert all(6 <= len(text.split()) <= 9 for text in drawn)
    assert draw_sentences(["a b c d", "a", " ", "  a  b c d "], 4) == ["a b c d", "a"], (
        "the nearest ones where there are too few"
    )


def test_the_teachers_places_are_its_principal_components(models):
    rows = project_token_planes(TEXTS[:2], {"teacher": models["bert"], "student": models["bert"]})
    for row, (_, states) in zip(rows, token_states(models["bert"], TEXTS[:2]), strict=True):
        places = np.array(row.models["teacher"].places)
        np.testing.assert_allclose(
            pdist(places),
            pdist(PCA(2).fit_transform(states)) * pdist(places)[0] / pdist(PCA(2).fit_transform(states))[0],
            atol=1e-3,
        )
        assert (places**2).sum(1).mean() == pytest.approx(1, abs=1e-4)
        np.testing.assert_allclose(row.models["student"].places, places, atol=1e-4)
        assert row.likeness == {"student": 1.0}
    assert all(from_json(SeparatePlanes, to_json(row)) == row for row in rows)


@pytest.mark.parametrize("student", ["roberta", "xlm", "gemma"])
def test_other_tokenizers_are_compared_by_words(models, student):
    rows = project_token_planes(TEXTS, {"teacher": models["bert"], "student": models[student]})
    assert [row.text for row in rows] == TEXTS
    for row in rows:
        for side in ("teacher", "student"):
            found = row.models[side]
            assert len(found.tokens) == len(found.places) >= 3 and np.isfinite(found.places).all()
        spelled = {
            side: "".join(token.removeprefix("·") for token in row.models[side].tokens if "\ufffd" not in token)
            for side in ("teacher", "student")
        }
        if row.text.isascii() and student != "gemma":
            assert spelled["student"].replace("▁", "").replace(" ", "") == row.text.replace(" ", "")
        assert row.likeness["student"] is None or -1 <= row.likeness["student"] < 0.95
    assert any(row.likeness["student"] is not None for row in rows)
    assert any(token.startswith("·") for row in rows for token in row.models["student"].tokens), (
        "pieces that go on with a word"
    )


def test_a_mirrored_plane_is_turned_back():
    generator = np.random.default_rng(0)
    aim, words = generator.normal(size=(8, 2)), np.array([0, 0, 1, 2, 3, 4, 4, 5])
    mirrored = aim * [1, -1] @ np.array([[0.6, 0.8], [-0.8, 0.6]])
    np.testing.assert_allclose(projection._rotate_words(mirrored, words, aim, words), aim, atol=1e-9)
    alone = np.full(8, -1)
    np.testing.assert_allclose(projection._rotate_words(mirrored, alone, aim, words), mirrored)
    assert projection.word_likeness(aim, alone, aim, words) is None


def test_likeness_against_a_loop():
    generator = np.random.default_rng(1)
    ours, theirs = generator.normal(size=(6, 5)), generator.normal(size=(7, 4))
    words, others = np.array([0, 1, 2, 2, 3, -1]), np.array([0, 0, 1, 2, 3, 9, 3])
    pairs = []
    for rows, numbers in ((ours, words), (theirs, others)):
        means = [
            np.mean([row for row, number in zip(rows, numbers, strict=True) if number == word], axis=0)
            for word in range(4)
        ]
        means = [mean - np.mean(means, axis=0) for mean in means]
        pairs.append(
            [
                one @ two / np.linalg.norm(one) / np.linalg.norm(two)
                for place, one in enumerate(means)
                for two in means[place + 1 :]
            ]
        )
    assert projection.word_likeness(ours, words, theirs, others) == pytest.approx(np.corrcoef(*pairs)[0, 1], abs=1e-4)


def test_a_text_of_too_few_tokens_is_left_out_and_slow_tokenizers_need_no_words(models, monkeypatch):
    assert project_token_planes(["a"], {"teacher": models["bert"], "student": models["roberta"]}) == []
    monkeypatch.setattr("distilvec.vocabulary.pieces.plain_copy", lambda tokenizer: None)
    (row,) = project_token_planes(TEXTS[:1], {"teacher": models["bert"], "student": models["roberta"]})
    assert row.likeness == {"student": None} and len(row.models["student"].tokens) == len(row.models["student"].places)
