"""What the experiments of tokenizer surgery show: trained students beside their teacher."""

from __future__ import annotations

import json

import yaml
from samples import make_texts

from distilvec.pipeline.run import run
from experiments import surgery
from experiments.surgery_tables import sizes_summary, sizes_table, students_table, tasks_table


def test_students_are_shown_with_what_they_cost(tiny_recipe, tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "distilvec.report.write.draw_report", lambda folder, found: None
    )  # pages have tests of their own
    monkeypatch.setattr(surgery, "TEACHER", str(tiny_model))
    monkeypatch.setattr(surgery, "ROUNDS", 1)
    texts = make_texts(40)
    pairs = [
        {"split": "test", "sentence1": texts[row], "sentence2": texts[row + 20], "score": row % 5} for row in range(20)
    ]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    for name in ("corpus", "queries"):
        rows = [{"id": f"{n}", "text": text} for n, text in enumerate(texts[: 40 if name == "corpus" else 10])]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    judged = [f"{n}\t{n + shift}\t1" for n in range(10) for shift in (0, 10, 20)]
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + "\n".join(judged))
    tasks = [
        {"name": "stsb", "type": "sts", "path": "pairs.jsonl"},
        {"name": "cranfield", "type": "retrieval", "path": "."},
    ]
    suite = tmp_path / "suite.yaml"
    suite.write_text(yaml.safe_dump(tasks))
    changes = {
        "student__vocabulary": {"kind": "bpe", "size": 350},
        "train__max_steps": 2,
        "evaluation__suite": str(suite),
    }
    folder = tmp_path / "small_english-x"
    run(tiny_recipe(**changes), folder)
    found = {"students": surgery.students([folder]), "sizes": surgery.sizes([folder])}
    record = found["students"]["small_english-x"]
    assert record["tokens"] == 350 and record["megabytes"] > 0 and record["inference"]["student_texts_per_second"] > 0
    times = record["teacher"]["parameters"] / record["student"]["parameters"]
    size = f"{record['student']['parameters'] / 1e6:.1f} M"
    assert f"| x | 2 | 350 | {size} | {times:.1f} | 32 |" in students_table(found["students"])
    value = record["scores"]["student"][0]["value"]
    assert f" {value:.2f} |" in sizes_table(found["sizes"])
    assert f"| 350 | {size} | " in sizes_summary(found["sizes"])
    by_task = tasks_table(found["students"])
    stsb, cranfield = (
        [
            next(row["value"] for row in record["scores"][side] if row["task"] == task)
            for side in ("untrained", "student", "asymmetric")
        ]
        for task in ("stsb", "cranfield")
    )
    assert "| stsb | spearman | " in by_task
    assert f" | {stsb[0]:.1f} → **{stsb[1]:.1f}** |" in by_task
    assert f" | {cranfield[0]:.1f} → **{cranfield[1]:.1f}** ({cranfield[2]:.1f}) |" in by_task
