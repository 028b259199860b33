import numpy as np
import pytest
from scipy.stats import ortho_group
from sklearn.decomposition import PCA

from distilvec.core.errors import DistilvecError
from distilvec.evaluation.projection import project_experts, project_sentences, project_tokens, rotate, token_states
from tests.architectures import TEXTS, bert, roberta


def spread(rows, width, seed=0):
    """Vectors whose axes differ in size, so that principal components are well defined."""
    return np.random.default_rng(seed).normal(size=(rows, width)) * np.linspace(3, 0.5, width) + 1.5


def close(found, expected, tolerance=1e-4):
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), atol=tolerance)


# -- sentences --------------------------------------------------------------------------------------------------------


def test_teacher_is_its_own_principal_components():
    vectors = spread(40, 8)
    close(project_sentences({"teacher": vectors}).points["teacher"], PCA(2).fit_transform(vectors))


def test_same_vectors_get_the_same_places():
    vectors = spread(40, 8)
    found = project_sentences({"teacher": vectors, "student": vectors.copy(), "untrained": spread(40, 8, seed=1)})
    assert found.points["student"] == found.points["teacher"] != found.points["untrained"]
    assert found.disparity["student"] == 0 < found.disparity["untrained"]
    assert not found.aligned["student"]


def test_equal_rows_get_equal_places_in_every_column_that_is_not_turned():
    teacher = spread(40, 8)
    student = teacher.copy()
    student[7] = teacher[3]
    found = project_sentences({"teacher": teacher, "student": student})
    assert not found.aligned["student"] and found.points["student"][7] == found.points["teacher"][3]


def test_rotation_and_shift_are_removed():
    teacher = spread(60, 8)
    turned = (teacher - 4) @ ortho_group.rvs(8, random_state=2) + 11
    found = project_sentences({"teacher": teacher, "student": turned})
    close(found.points["student"], found.points["teacher"])
    assert found.disparity["student"] > 1
    assert found.disparity_aligned["student"] == pytest.approx(0, abs=1e-9)
    assert found.aligned["student"]


def test_alignment_of_a_compatible_student_is_close_to_the_identity():
    teacher = spread(300, 8)
    student = teacher + 0.1 * np.random.default_rng(1).normal(size=teacher.shape)
    found = project_sentences({"teacher": teacher, "student": student})
    close(rotate(student, teacher), student, 0.1)
    assert found.disparity_aligned["student"] == pytest.approx(found.disparity["student"], rel=0.1)
    assert found.disparity["student"] == pytest.approx(
        ((student - teacher) ** 2).sum() / ((teacher - teacher.mean(0)) ** 2).sum(), abs=1e-6
    )


def test_alignment_cannot_make_noise_look_like_the_teacher():
    """With fewer texts than dimensions a rotation fitted and judged on the same texts would leave nothing."""
    generator = np.random.default_rng(0)
    teacher, noise = generator.normal(size=(30, 64)), generator.normal(size=(30, 64))
    found = project_sentences({"teacher": teacher, "untrained": noise})
    assert found.disparity_aligned["untrained"] > 1


def test_another_width_is_shifted_turned_and_scaled_in_the_plane():
    teacher = spread(50, 8)
    wide = 0.25 * np.hstack([teacher, np.zeros((50, 4))]) @ ortho_group.rvs(12, random_state=3) - 2
    found = project_sentences({"teacher": teacher, "student": wide, "untrained": spread(50, 5, seed=9)})
    close(found.points["student"], found.points["teacher"])
    assert found.disparity["student"] == pytest.approx(0, abs=1e-9)
    assert 0.5 < found.disparity["untrained"] <= 1


@pytest.mark.parametrize(
    "vectors, message",
    [
        ({"teacher": spread(2, 4)}, "shape .2, 4. .*at least 3"),
        ({"teacher": np.ones((5, 4))}, "all 5 vectors of 'teacher' are equal"),
        (
            {"teacher": spread(5, 4), "student": np.full((5, 4), np.nan)},
            "'student' .*NaN or infinite numbers in 5 rows",
        ),
    ],
)
def test_faulty_vectors_are_named(vectors, message):
    with pytest.raises(DistilvecError, match=message):
        project_sentences(vectors)


# -- tokens -----------------------------------------------------------------------------------------------------------


def states(width, counts=(3, 5, 4), seed=0, prefix=""):
    vectors = spread(sum(counts), width, seed)
    return [
        ([f"{prefix}{place}" for place in range(count)], part)
        for count, part in zip(counts, np.split(vectors, np.cumsum(counts)[:-1]), strict=True)
    ]


def test_tokens_of_one_space_are_drawn_as_they_are():
    found = project_tokens(["a", "b", "c"], states(8), states(8))
    assert [row.tokens for row in found] == [["0", "1", "2"], ["0", "1", "2", "3", "4"], ["0", "1", "2", "3"]]
    assert all(row.teacher == row.student and len(row.teacher) == len(row.tokens) for row in found)
    assert [row.text for row in found] == ["a", "b", "c"] and found[0].student_tokens is None


def test_tokens_of_another_space_are_laid_onto_the_teacher():
    rotation = 0.5 * ortho_group.rvs(8, random_state=1)
    turned = [(tokens, found @ rotation + 30) for tokens, found in states(8)]
    for row in project_tokens(["a", "b", "c"], states(8), turned):
        close(row.student, row.teacher)


def test_tokens_of_another_tokenizer_share_the_centre_only():
    found = project_tokens(["a", "b", "c"], states(8), states(6, counts=(4, 4, 7), seed=3, prefix="x"))
    assert found[2].student_tokens == [f"x{place}" for place in range(7)] and len(found[2].student) == 7
    theirs, ours = (np.concatenate([getattr(row, name) for row in found]) for name in ("teacher", "student"))
    close(ours.mean(axis=0), theirs.mean(axis=0))


@pytest.mark.parametrize("architecture", [bert, roberta])
def test_token_states_are_the_last_hidden_states_of_real_tokens(architecture, tmp_path):
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(architecture(tmp_path / "model")), device="cpu")
    found = token_states(model, TEXTS[:3])
    for text, (tokens, hidden) in zip(TEXTS, found, strict=False):
        assert tokens == model.tokenizer.tokenize(text)
        alone = model.encode([text], output_value="token_embeddings")[0].numpy()  # with the two special tokens
        assert hidden.dtype == np.float32 and hidden.shape == (len(tokens), 32)
        np.testing.assert_allclose(hidden, alone[1:-1], atol=1e-5)


def test_raw_planes_of_experts_are_their_principal_components():
    generator = np.random.default_rng(3)
    teacher, expert = generator.normal(size=(40, 6)), generator.normal(size=(40, 5)) * (4, 2, 1, 1, 1)
    found = project_experts(teacher, [expert], expert).raw
    unit = expert / np.linalg.norm(expert, axis=1, keepdims=True)
    points = PCA(8 if len(teacher) // 5 > 8 else 5).fit_transform(unit)
    points /= np.sqrt((points**2).sum(1).mean())
    for raw in found:
        signs = np.sign((np.array(raw) * points[:, :2]).sum(0))
        np.testing.assert_allclose(np.array(raw) * signs, points[:, :2], atol=1e-4)
