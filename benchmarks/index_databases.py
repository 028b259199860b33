"""Query encoders for existing indexes: FAISS, LanceDB, Qdrant, pgvector, each with vectors of all-MiniLM-L6-v2.

    python -m benchmarks.index_databases --out index-databases [--rows 20000 --epochs 3 --layers 3]

For each index: `distill` and `check`, then the overlap that 500 texts which were never stored have in the
index's own search. The expected overlap agrees with the measured one if their 95 % intervals meet. Texts are English
sentences (docs/data.md), generated ones where the file is absent.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.indexes import DATABASES, lacking, stored
from benchmarks.texts import sample_texts
from distilvec.__main__ import run_command
from distilvec.core.files import write_json
from distilvec.core.run_folder import RunFolder
from distilvec.evaluation.significance import mean_interval
from distilvec.models.load import BUILTIN, load, resolve_model

NEW = 500


def measured(search: Any, ours: Any, theirs: Any) -> tuple[float, float, float]:
    """overlap@10 in the index's own search: (mean, low, high)."""
    pairs = zip(search(ours, 10), search(theirs, 10), strict=True)
    return mean_interval(np.array([len(set(one) & set(other)) / 10 for one, other in pairs]))


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    """Run all indexes whose packages are installed; the results are in OUT/results.json, too."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--model", default=BUILTIN)
    parser.add_argument("--data", type=Path, default=None, help="english_text.jsonl.gz")
    given = parser.parse_args(arguments)
    source = resolve_model(given.model)
    texts, origin = sample_texts(given.rows + NEW, given.data)
    texts, new = texts[:-NEW], texts[-NEW:]
    model, results = load(source), list[dict[str, Any]]()
    vectors, theirs = (model.encode(some, batch_size=64, normalize_embeddings=True) for some in (texts, new))
    for kind in DATABASES:
        if package := lacking(kind):
            print(f"{kind}: {package} is not installed")
            continue
        out = given.out / kind
        with stored(kind, (given.out / f"{kind}-index").resolve(), texts, vectors) as index:
            words = ["distill", index.address, "--student", source, "--layers", str(given.layers)]
            words += ["--epochs", str(given.epochs), "--out", str(out), *index.distill_words]
            judged = ["check", str(RunFolder(out).student), index.address, *index.words]
            status = run_command(words) or run_command([*judged, "--json", str(given.out / f"{kind}.json")])
            if status == 2:
                raise SystemExit(f"{kind}: distill or check failed")
            ours = load(RunFolder(out).student).encode(new, batch_size=64, normalize_embeddings=True)
            share = json.loads((given.out / f"{kind}.json").read_text())["judgement"]["student"]["among"]
            expected = [share["mean"], share["low"], share["high"]]
            found = measured(index.search, ours, theirs)
        agrees = expected[1] <= found[2] and found[1] <= expected[2]
        results.append(
            {
                "index": kind,
                "texts": origin,
                "rows": len(texts),
                "expected": expected,
                "measured": found,
                "agrees": agrees,
            }
        )
        print(json.dumps(results[-1]))
    write_json(given.out / "results.json", results)
    return results


if __name__ == "__main__":
    main()
