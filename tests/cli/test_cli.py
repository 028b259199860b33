"""The command line as a user meets it."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest

from distilvec.config import recipe as recipes


def distilvec(*arguments, **environment):
    line = [sys.executable, "-m", "distilvec", *arguments]
    return subprocess.run(line, capture_output=True, text=True, env={**os.environ, **environment}, check=False)


def test_help_is_instant():
    times = []
    for _ in range(3):  # of the processor: other work on the machine does not count
        began = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        result = distilvec("--help")
        times.append(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - began)
    assert result.returncode == 0 and all(
        verb in result.stdout for verb in ("quickstart", "run", "plan", "cache", "evaluate", "recipes")
    )
    assert min(times) < 0.4


def test_nothing_heavy_is_imported_for_help():
    heavy = {"torch", "transformers", "numpy", "pydantic", "rich"}
    code = f"import sys, distilvec.cli.app; print({heavy} & {{*sys.modules}})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


def test_recipes_are_listed_and_shown():
    listed = distilvec("recipes").stdout
    assert "redact" in listed and "quickstart" in listed and "variants: mxbai, local" in listed
    assert distilvec("recipes", "show", "redact").stdout.startswith("# REDACT")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "redcat"], "did you mean 'redact'"),
        (["run", "absent.yaml"], "recipe not found: absent.yaml"),
        (["run", "redact", "train.lr=1"], "[train.lr] unknown key"),
        (["run", "redact", "--variant", "mxbia"], "did you mean 'mxbai'"),
        (["recipes", "hide"], "[recipes] no verb 'hide'"),
        (["cache", "verify", "/nowhere"], "/nowhere"),
    ],
)
def test_user_errors_are_one_message_and_status_2(arguments, message):
    result = distilvec(*arguments)
    assert result.returncode == 2 and message in result.stderr and "Traceback" not in result.stderr


def test_a_cache_from_fill_to_repair(tiny_recipe, tmp_path):
    file = tmp_path / "tiny.yaml"
    file.write_text(recipes.dump(tiny_recipe(cache__path=str(tmp_path / "vectors"))))
    filled = distilvec("cache", str(file))
    assert filled.returncode == 0 and filled.stdout.strip() == str(tmp_path / "vectors"), filled.stderr
    assert "every shard matches" in distilvec("cache", "verify", str(tmp_path / "vectors")).stdout
    assert "200" in distilvec("cache", "inspect", str(tmp_path / "vectors")).stdout
    assert distilvec("cache", "export", str(file), "--out", str(tmp_path / "out.parquet")).returncode == 0

    shard = next((tmp_path / "vectors").glob("*2.embedding.npy"))
    content = bytearray(shard.read_bytes())
    content[-5] ^= 255
    shard.write_bytes(content)
    broken = distilvec("cache", "verify", str(tmp_path / "vectors"))
    assert broken.returncode == 2 and "--repair" in broken.stderr
    assert "repaired" in distilvec("cache", "verify", str(tmp_path / "vectors"), "--repair").stdout
    assert distilvec("cache", str(file)).returncode == 0
    assert "every shard matches" in distilvec("cache", "verify", str(tmp_path / "vectors")).stdout


def test_evaluate_writes_json(tiny_model, tmp_path):
    (tmp_path / "sts.csv").write_text("sentence1,sentence2,score\nriver,stone,1\nbridge,river,3\nstone,stone,5\n")
    (tmp_path / "suite.yaml").write_text("- {name: mini, type: sts, path: sts.csv}\n")
    arguments = [
        "evaluate",
        str(tiny_model),
        "--suite",
        str(tmp_path / "suite.yaml"),
        "--teacher",
        str(tiny_model),
        "--json",
    ]
    result = distilvec(*arguments, str(tmp_path / "out.json"))
    assert result.returncode == 0, result.stderr
    assert "mini" in result.stdout and "asymmetric" in (tmp_path / "out.json").read_text()
