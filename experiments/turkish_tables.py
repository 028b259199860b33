"""A teacher's vectors of the 12,000 Turkish texts of the surgery runs, bare and behind a prompt: two Parquet tables.

    python -m experiments.turkish_tables TEACHER FOLDER --prompt STS

TEACHER is a sentence-transformers folder. FOLDER gets `bare.parquet` and `STS.parquet`, with the columns text and
embedding (float32). The same command resumes: texts that are embedded are not embedded again. The texts are those of
recipes/sweeps/real_teachers_turkish.yaml, which leaves TQuAD out; $DISTILVEC_DATA has them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sentence_transformers import SentenceTransformer

import distilvec
from distilvec.data.corpus import Corpus, build_corpus, text_key

RECIPE = Path(__file__).parents[1] / "recipes" / "sweeps" / "real_teachers_turkish.yaml"
CHUNK = 1000  # texts that are embedded between two lines of progress


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("teacher", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prompt", default="STS", help="name of a prompt of the teacher")
    arguments = parser.parse_args()

    corpus = turkish_corpus(arguments.folder / "corpus")
    texts = corpus.stored(range(len(corpus)))
    prompts = SentenceTransformer(str(arguments.teacher), device="cpu").prompts
    for name, prompt in {"bare": "", arguments.prompt: prompts[arguments.prompt]}.items():
        table = arguments.folder / f"{name}.parquet"
        if not table.exists():
            vectors = teacher_vectors(arguments.teacher, texts, prompt, arguments.folder / "cache")
            write_table(table, texts, vectors)
        print(f"{table}: {pq.read_metadata(table).num_rows:,} rows", flush=True)


def turkish_corpus(folder: Path) -> Corpus:
    """Return the corpus of the recipe, built in `folder`."""
    recipe = distilvec.load_recipe(RECIPE, "trim-12")
    assert recipe.corpus is not None
    folder.parent.mkdir(parents=True, exist_ok=True)
    return build_corpus(recipe.corpus, {}, folder)


def teacher_vectors(teacher: Path, texts: list[str], prompt: str, cache_folder: Path) -> np.ndarray:
    """Return the teacher's vectors of the texts behind a prompt, float32 [texts, dim], through a cache that resumes."""
    settings = {
        "cache.root": str(cache_folder),
        "cache.dtype": "float32",
        "teacher.dtype": "float32",
        "teacher.prompts": {"document": prompt},
        "train.device": "cpu",
    }
    pieces = []
    for start in range(0, len(texts), CHUNK):
        chunk = texts[start : start + CHUNK]
        cache = distilvec.cache_teacher(str(teacher), chunk, settings)
        keys = np.array([text_key(prompt, text) for text in chunk], dtype="V16")
        pieces.append(np.asarray(cache.read(cache.positions(keys)), dtype=np.float32))
        print(f"{prompt or 'bare'}: {start + len(chunk):,} of {len(texts):,} texts", flush=True)
    return np.concatenate(pieces)


def write_table(path: Path, texts: list[str], vectors: np.ndarray) -> None:
    """Write texts and vectors to a Parquet file, in one move."""
    width = vectors.shape[1]
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), width)
    part = path.with_suffix(".part")
    pq.write_table(pa.table({"text": pa.array(texts), "embedding": column}), part)
    part.rename(path)


if __name__ == "__main__":
    main()
