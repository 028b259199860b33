"""The command line as a user meets it."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer
from samples import make_texts

from benchmarks.mistakes import OF_WORDS, prepare
from distilvec.__main__ import run_command
from distilvec.cli.app import app
from distilvec.config import recipe as recipes


def distilvec(*arguments):
    """A command in a process of its own."""
    return subprocess.run([sys.executable, "-m", "distilvec", *arguments], capture_output=True, text=True, check=False)


@pytest.fixture
def command(capsys):
    """A command in this process: its exit status and both outputs."""

    def run(*arguments):
        capsys.readouterr()
        return run_command(arguments), *capsys.readouterr()

    return run


def test_help_is_instant():
    times = []
    for _ in range(3):  # of the processor: other work on the machine does not count
        began = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        result = distilvec("--help")
        times.append(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - began)
    assert result.returncode == 0 and all(
        verb in result.stdout for verb in ("quickstart", "run", "plan", "cache", "evaluate", "recipes")
    )
    assert min(times) < 2  # a tenth of a second; any of the model libraries takes seconds


def test_nothing_heavy_is_imported_for_help():
    heavy = {"torch", "transformers", "numpy", "pydantic", "rich"}
    code = f"import sys, distilvec.cli.app; print({heavy} & {{*sys.modules}})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


def test_wrong_words_are_refused_before_torch_is_imported(tmp_path):
    prepare(tmp_path)
    code = (
        "import sys; from distilvec.__main__ import run_command\n"
        f"for words in {OF_WORDS}: assert run_command(words) == 2 and 'torch' not in sys.modules, words"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-300:]


def test_a_command_imports_its_own_verb_alone():
    code = (
        "import sys; from distilvec.__main__ import run_command; run_command(['distill', '--help'])\n"
        "print([name for name in sys.modules if name.startswith('distilvec.verbs.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "['distilvec.verbs.distill', 'distilvec.verbs.distill.command']"


def test_the_version_is_that_of_the_package():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert distilvec("--version").stdout.strip() == project["version"]


def test_recipes_are_listed_and_shown():
    listed = distilvec("recipes").stdout
    assert "redact" in listed and "quickstart" in listed and "mxbai" not in listed
    everything = distilvec("recipes", "--all").stdout
    assert "variants: mxbai, local" in everything and "tinybert" in everything
    assert distilvec("recipes", "show", "redact").stdout.startswith("# REDACT")


def test_a_mistake_in_a_recipe_is_reported_before_anything_heavy_is_imported():
    code = (
        "import sys; from distilvec.__main__ import run_command; status = run_command(sys.argv[1:]); "
        "print({'torch', 'transformers'} & {*sys.modules}); sys.exit(status)"
    )
    for verb in ("run", "plan", "cache"):
        line = [sys.executable, "-c", code, verb, "redact", "train.lr=1"]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (2, "set()\n") and "[train.lr] unknown key" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "redcat"], "did you mean 'redact'"),
        (["run", "absent.yaml"], "absent.yaml: No such file"),
        (["run", "redact", "train.lr=1"], "[train.lr] unknown key"),
        (["run", "redact", "--variant", "mxbia"], "did you mean 'mxbai'"),
        (["recipes", "hide"], "No such command 'hide'"),
        (["cache", "verify", "/nowhere"], "/nowhere"),
    ],
)
def test_user_errors_are_one_message_and_status_2(arguments, message, command):
    status, _, shown = command(*arguments)
    assert status == 2 and message in shown and "Traceback" not in shown


def options_of(command, words=()):
    """The words of every verb with each of its options; --quiet and its like, which may be anywhere, are no verb's."""
    for name, inner in getattr(command, "commands", {}).items():
        yield from options_of(inner, (*words, name))
    for parameter in command.params if words else ():
        if parameter.param_type_name == "option":
            yield words, parameter


def test_an_option_of_one_value_is_given_once(command):
    for words, parameter in options_of(typer.main.get_command(app)):
        names = [*parameter.opts, *parameter.secondary_opts]
        first, last = names[0], names[-1]  # of a flag with two names, one undoes the other
        line = [first, last] if parameter.is_flag else [first, "1", f"{last}=1"]
        status, _, shown = command(*words, *line)
        assert status == 2 and (f"'{first}' is given twice" in shown) is not parameter.multiple, (words, line, shown)


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["run", "redact", "train.epochs=1", "train.epochs=2"], "train.epochs"),
        (["plan", "redact", "train={epochs: 1}", "train.epochs=2"], "train.epochs"),
        (["cache", "redact", "train.epochs=2", "train={batch_size: 8}"], "train"),
        (["distill", "M", "README.md", "train.seed=1", "train.seed=1"], "train.seed"),
        (["classify", "README.md", "train.seed=1", "train.seed=2"], "train.seed"),
        (["quickstart", "train.seed=1", "train.seed=2"], "train.seed"),
        (["check", "M", "table.parquet", "--column", "text=a", "--column", "text=b"], "--column"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_a_key_is_set_once(words, key, command):
    status, _, shown = command(*words)
    assert status == 2 and f"[{key}]" in shown and "twice" in shown


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (["evaluate", "./nothing", "--suite", "suite.yaml"], "model"),
        (["compare", "runs/nothing"], "run folder"),
        (["export", "runs/nothing/student"], "model"),
        (["distill", "nothing.parquet", "--student", "x", "--out", "o"], "TEACHER"),
        (["corpus", "synthesize", "nothing.txt", "--model", "x", "--out", "o.json"], "words"),
        (["run", "redact", "teacher.model=./nothing"], "teacher.model"),
        (["plan", "redact", "--variant", "local", "student.model=./nothing"], "student.model"),
        (["cache", "redact", "corpus={sources: [{path: nothing.txt}]}"], "corpus.sources.0.path"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value[:2]),
)
def test_a_wrong_path_is_refused_before_anything_heavy_is_imported(arguments, key):
    code = (
        "import sys; from distilvec.__main__ import run_command; status = run_command(sys.argv[1:]); "
        "print({'torch', 'transformers', 'scipy', 'pyarrow'} & {*sys.modules}); sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "set()\n") and f"distilvec: [{key}]" in done.stderr


WRONG = {  # arguments of `distill`, and what is said
    "texts.txt model": "[TEACHER] texts.txt is a file of texts, and the teacher comes first. Give:",
    "texts.txt": "distilvec distill all-MiniLM-L6-v2 texts.txt",
    "model": "[TEXTS] no texts to train on",
    "model few.txt": "[TEXTS] found 5 different texts; a student needs 20",
    "model bare.csv": "[--column] bare.csv has no column",
    "model bare.csv --column text=body": "[--column] bare.csv has no column 'body'",
    "model empty": "[TEXTS] empty: no readable file",
    "model texts.txt --size 5": "[--size] found '5', 5 parameters. Did you mean 5M?",
    "model texts.txt --method redcat": "did you mean 'redact'?",
    "db": "[TEACHER] db holds docs.lance",
    "runs/none texts.txt": "[TEACHER] runs/none does not exist",
    "dump.jsonl": "[--column] dump.jsonl has the columns vec, body, lang;",
    "dump.jsonl --column embedding=vex": "[--column] dump.jsonl has no column 'vex' (vec, body, lang); did you mean",
    "dump.jsonl --column embedding=vec --where long=en": "[--where] dump.jsonl has no column 'long'",
}


def test_wrong_texts_columns_and_sizes_are_refused_before_torch_is_imported(tmp_path):
    """All in one process, each by its own words."""
    (tmp_path / "texts.txt").write_text("\n".join(make_texts(40)))
    (tmp_path / "few.txt").write_text("\n".join([*make_texts(5), *make_texts(5)]))
    (tmp_path / "bare.csv").write_text("1,a text of many words in the first row\n2,another one\n")
    for folder in ("empty", "model", "db/docs.lance"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "dump.jsonl").write_text('{"vec": [0.1, 0.2], "body": "a text", "lang": "en"}')
    code = (
        "import sys, time; from distilvec.__main__ import run_command\n"
        "for line in sys.argv[1:]:\n"
        "    assert run_command(['distill', *line.split(), '--dry-run']) == 2, line\n"
        "print({'torch', 'transformers'} & {*sys.modules})"
    )
    line = [sys.executable, "-c", code, *WRONG]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "set()\n"), done.stderr
    messages = done.stderr.splitlines()
    assert len(messages) == len(WRONG)
    for said, expected in zip(messages, WRONG.values(), strict=True):
        assert expected in said
    assert "has the file no header?" in messages[4] and "…" in messages[4]


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["train"], "'run'"),
        (["upload"], "'push'"),
        (["run", "redact", "epochs=3"], "'train.epochs'"),
        (["run", "redact", "layers=3"], "'student.layers'"),
        (["run", "redact", "train.lr=1"], "'learning_rate'"),
        (["run", "redact", "--epochs", "3"], "train.epochs=VALUE"),
        (["distill", "model", "texts.txt", "--batch-size", "8"], "train.batch_size=VALUE"),
        (["quickstart", "--batch-size", "8"], "train.batch_size=VALUE"),
        (["run", "redact", "--varaint", "local"], "--variant"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_a_wrong_word_is_answered_with_the_right_one(arguments, hint, command):
    status, _, shown = command(*arguments)
    assert status == 2 and hint in shown


@pytest.mark.parametrize(
    "words",
    [
        ["distill", "MODEL", "rows.csv", "--queries", "rows.csv", "--layers", "2", "--dry-run"],
        ["align", "--teacher", "MODEL", "--student", "MODEL", "--texts", "rows.csv"],
        ["transplant", "MODEL", "--texts", "rows.csv", "--out", "smaller"],
        ["corpus", "synthesize", "rows.csv", "--model", "m", "--out", "new.jsonl", "--base-url", "http://127.0.0.1:9"],
    ],
    ids=lambda words: words[0],
)
def test_the_advice_about_a_column_can_be_followed(words, tiny_model, tmp_path, command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_text("utterance,kind\n" + "".join(f"{text},a\n" for text in make_texts(60)))
    words = [str(tiny_model) if word == "MODEL" else word for word in words]
    status, _, problem = command(*words)
    assert status == 2 and "[--column]" in problem, problem
    column = "text=utterance" if words[0] == "distill" else "utterance"
    status, _, problem = command(*words, "--column", column)
    assert status == 0 or (words[0] == "corpus" and "column" not in problem), problem


def test_a_run_folder_is_answered_with_its_recipe(tiny_recipe, tmp_path, command):
    run = tmp_path / "pq"
    run.mkdir()
    status, _, problem = command("plan", str(run))
    assert status == 2 and "is a folder. Name a recipe file in it." in problem
    (run / "recipe.yaml").write_text(recipes.dump_yaml(tiny_recipe().model_dump(mode="json", exclude_none=True)))
    status, _, problem = command("plan", str(run))
    assert status == 2 and f"is a run folder. Name its recipe: {run}/recipe.yaml" in problem
    assert command("plan", problem.split()[-1])[0] == 0


def test_a_folder_hides_no_recipe_of_its_name(tmp_path, command, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("redact").mkdir()
    assert command("recipes", "show", "redact")[0] == 0


FINETUNE = ["finetune", "MODEL", "--task", "rows.csv", "--type", "classification", "--out", "run"]


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["distill", "MODEL", "texts.txt", "--layers", "2", "student.layers=3"], "--layers"),
        (["distill", "MODEL", "texts.txt", "--size", "5M", "student.size=80%"], "--size"),
        (["distill", "MODEL", "texts.txt", "--epochs", "3", "train={epochs: 1}"], "--epochs"),
        (["distill", "MODEL", "texts.txt", "--method", "redact", "method.name=offline_cosine"], "--method"),
        (["distill", "MODEL", "texts.txt", "--test", "rows.csv", "evaluation.suite=suite.yaml"], "--test"),
        (["classify", "rows.csv", "--layers", "2", "student.layers=3"], "--layers"),
        (["classify", "rows.csv", "--teacher", "MODEL", "teacher.model=other"], "--teacher"),
        (["classify", "rows.csv", "--seed", "2", "train.seed=3"], "--seed"),
        (["classify", "rows.csv", "--test", "rows.csv", "--test-size", "0.5"], "--test-size"),
        ([*FINETUNE, "--epochs", "3", "train.epochs=1"], "--epochs"),
        ([*FINETUNE, "--r", "4", "student.lora=null"], "--r"),
        ([*FINETUNE, "--no-lora", "--alpha", "32"], "--alpha"),
        (["evaluate", "MODEL", "--suite", "suite.yaml", "--mixed"], "--mixed"),
        (["evaluate", "MODEL", "--teacher", "index.parquet", "--data", "."], "--data"),
        (["recipes", "--all", "show", "redact"], "--all"),
        (["recipes", "--json", "out.json", "schema"], "--json"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_options_that_would_be_dropped_are_refused(arguments, option, tiny_model, tmp_path, command, monkeypatch):
    """One that a key or another option contradicts, and one without its own."""
    monkeypatch.chdir(tmp_path)
    Path("texts.txt").write_text("\n".join(make_texts(40)))
    Path("rows.csv").write_text("text,label\nriver,a\nstone,b\nbridge,a\nmirror,b\n")
    Path("suite.yaml").write_text("[]")
    status, _, problem = command(*(str(tiny_model) if word == "MODEL" else word for word in arguments))
    assert status == 2 and f"[{option}]" in problem, problem


@pytest.mark.parametrize("verb", [[], ["run"], ["cache"], ["cache", "fill"], ["transplant"]], ids=" ".join)
def test_h_is_help(verb, command):
    assert command(*verb, "-h") == command(*verb, "--help")


def test_every_problem_of_a_list_names_its_option(command):
    status, _, shown = command("transplant", "a/b", "--out", "o", "--vocab-size", "0", "--share", "0")
    assert status == 2 and "[--vocab-size]" in shown and "[--share]" in shown


def test_a_cache_from_fill_to_repair(tiny_recipe, tmp_path, command):
    file = tmp_path / "tiny.yaml"
    file.write_text(recipes.dump(tiny_recipe(cache__path=str(tmp_path / "vectors"))))
    vectors = str(tmp_path / "vectors")
    status, shown, problem = command("cache", str(file))
    assert status == 0 and shown.strip() == vectors, problem
    assert "every shard matches" in command("cache", "verify", vectors)[1]
    assert "200" in command("cache", "inspect", vectors)[1]
    assert command("cache", "export", str(file), "--out", str(tmp_path / "out.parquet"))[0] == 0

    shard = next((tmp_path / "vectors").glob("*2.embedding.npy"))
    content = bytearray(shard.read_bytes())
    content[-5] ^= 255
    shard.write_bytes(content)
    status, _, problem = command("cache", "verify", vectors)
    assert status == 2 and "--repair" in problem
    assert "repaired" in command("cache", "verify", vectors, "--repair")[1]
    assert command("cache", str(file))[0] == 0
    assert "every shard matches" in command("cache", "verify", vectors)[1]


def test_the_caches_of_a_sweep_are_those_that_its_runs_read(tiny_recipe, tmp_path, command):
    tree = tiny_recipe().model_dump(mode="json", exclude_none=True)
    tree["variants"] = {"short": {"teacher.max_length": 32}, "long": {"teacher.max_length": 64}}
    tree["sweep"] = {"variants": ["short", "long"], "grid": {"student.layers": [1, 2]}, "seeds": [0, 1]}
    file = tmp_path / "two.yaml"
    file.write_text(recipes.dump_yaml(tree))
    status, folders, problem = command("cache", "fill", str(file))
    assert status == 0 and len(folders.split()) == 2, problem
    for variant in ("short", "long"):
        status, shown, problem = command("plan", str(file), "sweep=null", "--variant", variant, "--json", "-")
        rows = {row["item"]: row["value"] for row in json.loads(shown)["rows"]}
        assert status == 0 and rows["teacher vectors to compute"].startswith("0 of 200"), problem
    vectors = str(tmp_path / "vectors.parquet")
    status, merged, problem = command("cache", "merge", str(file))
    assert status == 0 and merged == folders, problem
    for words in (["export", "--out", vectors], ["import", "--table", vectors]):
        status, _, problem = command("cache", words[0], str(file), *words[1:])
        assert status == 2 and "[sweep]" in problem, problem
        status, _, problem = command("cache", words[0], str(file), *words[1:], "sweep=null", "--variant", "short")
        assert "[sweep]" not in problem


def test_the_cache_of_a_sweep_of_one_run_is_exported(tiny_recipe, tmp_path, command):
    tree = tiny_recipe().model_dump(mode="json", exclude_none=True)
    tree["variants"] = {"short": {"teacher.max_length": 32}, "long": {"teacher.max_length": 64}}
    tree["sweep"] = {"variants": ["short", "long"], "seeds": [0]}
    (tmp_path / "two.yaml").write_text(recipes.dump_yaml(tree))
    words = ["export", str(tmp_path / "two.yaml"), "--variant", "short", "--out", str(tmp_path / "vectors.parquet")]
    status, shown, problem = command("cache", *words)
    assert status == 0 and shown.strip() == words[-1], problem


def test_evaluate_writes_json(tiny_model, tmp_path, command):
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
    status, shown, problem = command(*arguments, str(tmp_path / "out.json"))
    assert status == 0, problem
    assert "mini" in shown and "asymmetric" in (tmp_path / "out.json").read_text()


OTHER_STORES = ("arrays/part-0.npy", "vectors.npz", "shop.duckdb")


@pytest.mark.parametrize("file", [*OTHER_STORES, "empty/"])
@pytest.mark.parametrize("texts", [[], ["absent.txt"]], ids=["no texts", "absent texts"])
def test_what_the_teacher_is_comes_before_its_texts(file, texts, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder, _, name = file.rpartition("/")
    if folder:
        Path(folder).mkdir()
    if name:
        Path(file).write_bytes(b"rows")
    source = folder or name
    expected = ["holds", name or "nothing"] if folder else ["is a file", f"duckdb://{tmp_path / name}/TABLE"]
    for line, key in ((["distill", source, *texts], "TEACHER"), (["check", "model", source], "index")):
        status, _, shown = command(*line)
        assert status == 2 and f"[{key}] {source} " in shown and all(word in shown for word in expected), shown
        assert ".parquet" in shown
