"""The verb `distill`: one function for the command line and Python, from a teacher and texts to a judged student."""

import inspect
import json
import subprocess
import sys
from pathlib import Path

import architectures
import numpy as np
import pytest
from refusals import refused
from samples import make_texts
from sentence_transformers import SentenceTransformer

import distilvec
from distilvec.__main__ import run_command
from distilvec.config.recipe import override
from distilvec.data.sources import read_source
from distilvec.models.weights import count_parameters
from distilvec.report.advice import advice
from distilvec.report.next_step import next_commands
from distilvec.verbs.distill import distill as distill_module
from distilvec.verbs.distill.recipe import make_recipe
from distilvec.verbs.distill.request import QUARTER, Request
from distilvec.verbs.distill.texts import text_sources

FAST = {"train.max_steps": 2, "train.device": "cpu", "train.precision": "fp32", "train.batch_size": 8}
WORDS = [f"{key}={value}" for key, value in FAST.items()]


@pytest.fixture(autouse=True)
def inside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("texts.txt").write_text("\n".join(make_texts(60)))


@pytest.fixture
def narrow_model(tmp_path):
    """A model of another family and width."""
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    backbone = architectures.bert(tmp_path / "backbone", **sizes)
    return str(architectures.sentence_transformer(tmp_path / "narrow", backbone))


def recipe_of(teacher, texts="texts.txt", **options):
    return make_recipe(Request(teacher, texts, **options), Path("cache"))


# -- the recipe ------------------------------------------------------------------------------------------------------


def test_a_quarter_of_the_teacher_is_the_default():
    recipe = recipe_of("./model")
    assert recipe.student.model == "teacher" and recipe.student.size == QUARTER
    assert recipe.corpus.sources[0].path == Path("texts.txt").resolve()


@pytest.mark.parametrize(
    ("folder", "name"),
    [(".hidden", "hidden"), ("..two", "two"), ("a b", "a-b"), ("runs/.x/.y.z", "y.z"), ("...", "distilled")],
)
def test_a_run_folder_may_have_any_name(folder, name):
    assert recipe_of("./model", out=Path(folder)).name == name


@pytest.mark.parametrize(
    ("options", "folder"),
    [
        ({}, "runs/model-25-percent"),
        ({"size": "5M"}, "runs/model-5M"),
        ({"layers": 3}, "runs/model-3-layers"),
        ({"overrides": {"student.size": "80%"}}, "runs/model-80-percent"),
        ({"overrides": {"student.size": None}}, "runs/model"),
        ({"overrides": {"student.layers": 3}}, "runs/model-3-layers"),
        ({"overrides": {"student.layers": {"count": 2}}}, "runs/model-2-layers"),
        ({"student": "small", "language": "tr"}, "runs/model-small-tr"),
    ],
)
def test_the_same_command_has_the_same_folder(options, folder):
    assert Request("path/to/model", "texts.txt", **options).folder == Path(folder)


def test_layers_or_another_student_are_no_quarter():
    assert recipe_of("./model", layers=2).student.size is None
    other = recipe_of("./model", student="org/other").student
    assert other.size is None and other.model == "org/other"
    assert recipe_of("./model", student="org/other", size="3M").student.size == "3M"


def test_a_model_that_a_change_names_is_trained_whole_as_one_of_the_option():
    by_option = recipe_of("./model", student="other")
    by_change = recipe_of("./model", overrides={"student.model": "other"})
    assert by_change.student.size is None and by_change.student.model == by_option.student.model
    assert recipe_of("./model", overrides={"student.model": "teacher"}).student.size == QUARTER


def test_prompts_that_are_stated_for_a_model_are_its_prompts():
    prompts = {"query": "query: ", "document": "passage: "}
    assert recipe_of("./model", query_prompt="query: ", document_prompt="passage: ").teacher.prompts == prompts


@pytest.mark.parametrize("options", [{"made_by": ["some-model"]}, {"refresh": True}])
def test_options_of_an_index_are_refused_for_a_model(tiny_model, options):
    with refused(next(iter(options))):
        distilvec.plan(str(tiny_model), make_texts(40), **options)


@pytest.mark.parametrize("texts", [["one text", "another"], [Path("texts.txt"), Path("texts.txt")]])
def test_vectors_alone_have_their_texts_in_one_file(texts):
    np.save("vectors.npy", np.eye(4, dtype=np.float32))
    with refused("texts"):
        recipe_of("vectors.npy", texts)


def test_an_api_teaches_a_small_model_of_the_language():
    english = recipe_of("openai:text-embedding-3-small")
    assert english.teacher.api.key_variable == "OPENAI_API_KEY" and english.student.model == "all-MiniLM-L6-v2"
    turkish = recipe_of("openai:text-embedding-3-small", language="tr")
    assert turkish.student.model == "intfloat/multilingual-e5-small"
    assert turkish.student.vocabulary.letters == "seen" and turkish.corpus.sources[0].language == "tr"


def test_the_texts_of_an_index_are_its_own():
    np.save("vectors.npy", np.eye(4, dtype=np.float32))
    recipe = recipe_of("vectors.npy", query_prompt="q: ")
    assert Path(recipe.teacher.vectors).name == "vectors.npy"
    assert Path(recipe.teacher.texts) == Path("texts.txt").resolve()
    assert recipe.corpus.sources[0].builtin == "teacher" and recipe.evaluation.stored == 500
    assert recipe.teacher.prompts == {"query": "q: "}


def test_queries_are_a_source_of_their_own():
    Path("queries.txt").write_text("how far\n")
    queries = text_sources("queries.txt", Path("cache"), role="query", language=None)
    sources = recipe_of("./model", queries=queries).corpus.sources
    assert [(source.label, source.role) for source in sources] == [("texts", "document"), ("queries", "query")]


@pytest.mark.parametrize("name", ["absent.txt", "*.absent", "damaged.parquet", "s3://me:word@bucket/queries"])
def test_queries_that_cannot_be_read_are_named(name, tiny_model):
    """The key of the recipe, corpus.sources.1, is that of texts otherwise."""
    Path("damaged.parquet").write_text("no table")
    with refused("queries") as caught:
        distilvec.plan(str(tiny_model), "texts.txt", queries=name, layers=2, overrides=FAST)
    assert "word" not in str(caught.value).replace("password", "")


def test_queries_that_cannot_be_read_are_named_by_the_option(tiny_model, capsys):
    Path("damaged.parquet").write_text("no table")
    for name in ("absent.txt", "*.absent", "damaged.parquet"):
        command = ["distill", str(tiny_model), "texts.txt", "--layers", "2", "--queries", name, "--dry-run", *WORDS]
        assert run_command(command) == 2
        assert "[--queries]" in capsys.readouterr().err


@pytest.mark.parametrize("option", [[], ["--queries"]], ids=["texts", "queries"])
def test_an_address_on_the_command_line_stays_one(option, tiny_model, capsys):
    """As a Path s3:// would be s3:/, a file that is not there, and the password would be shown."""
    key = option[0] if option else "TEXTS"
    names = ["texts.txt", *option, "s3://me:word@bucket/lines.txt"] if option else ["s3://me:word@bucket/lines.txt"]
    assert run_command(["distill", str(tiny_model), *names, "--layers", "2", "--dry-run", *WORDS]) == 2
    message = capsys.readouterr().err
    assert f"[{key}]" in message and "password" in message and "word@" not in message


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"size": "5M", "layers": 2}, "size"),
        ({"size": "5M", "overrides": {"student.layers": 2}}, "size"),
        ({"size": "5M", "overrides": {"student.layers": None, "student.embedding.rank": 8}}, "size"),
        ({"minutes": 5, "epochs": 1}, "minutes"),
        ({"api_model": "x"}, "api_model"),
        ({"texts": None}, "texts"),
        ({"limit": 5}, "limit"),
        ({"similarity": "dot"}, "similarity"),
        ({"repeats": "drop"}, "repeats"),
        ({"texts": "absent.txt"}, "texts"),
        ({"test": Path("absent.csv")}, "test"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused_by_their_name(options, key):
    with refused(key):
        recipe_of("./model", **{"texts": "texts.txt", **options})


def test_columns_of_an_index_are_stated_by_the_argument_or_by_the_key():
    Path("t.jsonl").write_text('{"body_text": "a", "values": [1.0, 2.0]}\n')
    stated = {"text": "body_text"}
    for options in ({"overrides": {"teacher.columns": stated}}, {"columns": stated}):
        assert recipe_of("t.jsonl", None, **options).teacher.columns == stated
    with refused("columns"):
        recipe_of("t.jsonl", None, columns=stated, overrides={"teacher.columns": stated})


def sources_of(*words):
    """What a command with these texts would train on."""
    texts, *options = words
    columns = dict(word.split("=") for word in options)
    recipe = recipe_of("./model", Path(texts), columns=columns)
    return [list(read_source(source, row)) for row, source in enumerate(recipe.corpus.sources)]


@pytest.mark.parametrize("name", ["Text", "SENTENCE", "content", "page_content", "Body", "chunk"])
def test_usual_names_of_texts_are_found_in_small_and_capital_letters(name):
    Path("rows.csv").write_text(f"id,{name}\n1,first\n2,second\n")
    assert sources_of("rows.csv") == [["first", "second"]]


def test_text_is_taken_where_there_are_others():
    Path("rows.csv").write_text("content,Text,text\na,b,c\n")
    assert sources_of("rows.csv") == [["c"]]


def test_a_column_of_the_texts_is_named(tiny_model, capsys):
    Path("rows.csv").write_text("utterance,kind\nfirst,a\nsecond,b\n")
    assert run_command(["distill", str(tiny_model), "rows.csv", "--layers", "2", "--dry-run", *WORDS]) == 2
    message = capsys.readouterr().err
    assert "[--column]" in message and "utterance" in message
    assert sources_of("rows.csv", "text=utterance") == [["first", "second"]]


def test_the_column_is_that_of_queries_which_have_it():
    Path("rows.csv").write_text("utterance,kind\nfirst,a\n")
    Path("asked.csv").write_text("query,utterance\nwhat,who\n")
    Path("plain.csv").write_text("query\nwhat\n")
    queries = [
        *text_sources(Path("asked.csv"), Path("cache"), role="query", language=None),
        *text_sources(Path("plain.csv"), Path("cache"), role="query", language=None),
    ]
    recipe = recipe_of("./model", Path("rows.csv"), queries=queries, columns={"text": "utterance"})
    read = [list(read_source(source, row)) for row, source in enumerate(recipe.corpus.sources)]
    assert read == [["first"], ["who"], ["what"]]


def test_a_part_of_an_index_is_none_of_texts(tiny_model, capsys):
    words = ["--layers", "2", "--column", "embedding=vec", "--dry-run", *WORDS]
    assert run_command(["distill", str(tiny_model), "texts.txt", *words]) == 2
    assert "[--column]" in capsys.readouterr().err


def test_wrong_options_are_refused_before_torch_is_imported():
    cases = {"--size": ["--size", "five"], "--method": ["--method", "redakt"], "TEXTS": ["absent.txt"]}
    code = (
        "import json, sys\nfrom distilvec.__main__ import run_command\n"
        "commands = [['distill', 'all-MiniLM-L6-v2', 'texts.txt', *words] for words in json.loads(sys.argv[1])]\n"
        "found = [run_command(command) for command in commands]\n"
        "print(found, 'torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code, json.dumps(list(cases.values()))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [*str([2] * len(cases)).split(), "False"]
    assert [line.partition("[")[2].partition("]")[0] for line in done.stderr.splitlines()] == list(cases)


# -- whole runs ------------------------------------------------------------------------------------------------------


def test_a_size_decides_on_the_student(tiny_model, no_pages):
    teacher = SentenceTransformer(str(tiny_model), device="cpu")
    run = distilvec.distill(str(tiny_model), "texts.txt", size="60%", out="run", overrides=FAST)
    assert count_parameters(run.student.parameters()) <= 0.6 * count_parameters(teacher.parameters())
    assert run.record.student.settings["layers"]["count"] >= 1 and "size" not in run.record.student.settings
    opened = distilvec.result("run")
    assert opened.verdict == run.verdict and opened.recipe.student.size == "60%"


def test_a_share_is_of_the_teacher_also_where_the_layers_are_of_another_model(tiny_model, tmp_path, no_pages):
    large = architectures.bert(tmp_path / "backbone", num_hidden_layers=12)
    teacher = str(architectures.sentence_transformer(tmp_path / "large", large))
    counts = [count_parameters(SentenceTransformer(str(name)).parameters()) for name in (teacher, tiny_model)]
    assert counts[1] < 0.6 * counts[0]
    run = distilvec.distill(teacher, "texts.txt", student=str(tiny_model), size="30%", out="run", overrides=FAST)
    built = count_parameters(run.student.parameters())
    assert 0.3 * counts[1] < built <= 0.3 * counts[0]


def test_the_command_prints_the_result_and_resumes(tiny_model, capsys, no_pages):
    command = ["distill", str(tiny_model), "texts.txt", "--layers", "2", "--out", "run", *WORDS]
    assert run_command([*command, "--json", "result.json"]) == 0
    printed = capsys.readouterr()
    found = json.loads(Path("result.json").read_text())["record"]["overlap"]["student"]["among"]["mean"]
    lines = printed.out.splitlines()
    assert len(lines) <= 6 and max(map(len, lines)) <= 80 and lines[0].startswith(f"It finds {found:.2f} of the ")
    assert lines[-1] == "next: distilvec export run/student --to onnx-int8"
    assert "M parameters" in printed.err  # the first screen
    written = Path("run/student/modules.json").stat().st_mtime_ns
    assert run_command(command) == 0
    assert capsys.readouterr().out == printed.out
    assert Path("run/student/modules.json").stat().st_mtime_ns == written


def test_a_dry_run_trains_nothing(tiny_model, capsys):
    command = ["distill", str(tiny_model), "texts.txt", "--layers", "2", "--out", "run", "--dry-run", *WORDS]
    assert run_command(command) == 0
    assert "training" in capsys.readouterr().out
    assert not Path("run/student").exists()


def test_a_plan_has_numbers_and_runs(tiny_model, no_pages):
    plan = distilvec.plan(str(tiny_model), "texts.txt", layers=2, out="planned", overrides=FAST)
    assert not Path("planned/student").exists() and plan.cost is None
    assert (plan.layers, plan.texts) == (2, 60) and 1 < plan.tokens < 64 and plan.minutes > 0
    assert (
        plan.bytes == pytest.approx(60 * 32 * 2, rel=0.5) and "in all" in repr(plan) and "<table" in plan._repr_html_()
    )
    run = plan.run()
    assert "next       distilvec export planned/student" in repr(run) and "distilvec export" in run._repr_html_()
    assert run.record.student.parameters == plan.parameters and run.record.student.layers == plan.layers
    assert distilvec.plan(str(tiny_model), "texts.txt", layers=2, out="planned", overrides=FAST).bytes == 0
    assert inspect.signature(distilvec.plan).parameters == inspect.signature(distilvec.distill).parameters


def test_a_student_that_was_cut_to_its_language_keeps_its_tokens(tiny_model):
    distilvec.transplant(str(tiny_model), make_texts(60), "cut")
    assert recipe_of("./model", student="cut", language="en").student.vocabulary is None
    assert recipe_of("./model", student=str(tiny_model), language="en").student.vocabulary.letters == "seen"


def test_every_problem_of_a_list_names_its_argument(tiny_model):
    overrides = {"train.batch_size": 0}
    with refused("minutes") as caught:
        distilvec.distill(str(tiny_model), "texts.txt", layers=2, minutes=-1, overrides=overrides)
    assert "train.batch_size" in str(caught.value)


def test_a_size_that_is_too_small_is_named_as_it_was_given(tiny_model, capsys):
    with refused("size"):
        distilvec.distill(str(tiny_model), "texts.txt", size="10", overrides=FAST)
    assert run_command(["distill", str(tiny_model), "texts.txt", "--size", "10", *WORDS]) == 2
    assert "[--size]" in capsys.readouterr().err
    with refused("student.size"):
        distilvec.distill(str(tiny_model), "texts.txt", overrides={**FAST, "student.size": "10"})


def test_an_earlier_student_goes_on_without_a_second_linear_layer(tiny_model, narrow_model, no_pages):
    def dense_layers(student):
        return [module for module in student if type(module).__name__ == "Dense"]

    first = distilvec.distill(str(tiny_model), "texts.txt", student=narrow_model, out="first", overrides=FAST)
    assert len(dense_layers(first.student)) == 1
    Path("more.txt").write_text("\n".join(make_texts(90)[60:]))
    second = distilvec.distill(str(tiny_model), "more.txt", student="first/student", out="second", overrides=FAST)
    assert len(dense_layers(second.student)) == 1


def test_a_static_student_with_dims(tiny_model, capsys, no_pages):
    command = ["distill", str(tiny_model), "texts.txt", "--layers", "0", "--dims", "32,16", "--out", "run", *WORDS]
    assert run_command(command) == 0
    run = distilvec.result("run")
    assert type(run.student[0]).__name__ == "StaticEmbedding" and run.student.encode(["river"]).shape == (1, 32)
    told = [capsys.readouterr().out, *advice(run.report), *next_commands(run.report, run.student_folder)]
    assert "next: distilvec serve" in told[0] and "--to onnx" not in "".join(told), "a table has no graph to export"
    assert run_command([*command[:5], "--dims", "wide"]) == 2
    assert "[--dims]" in capsys.readouterr().err


def test_a_test_file_gives_scores(tiny_model, no_pages):
    rows = [{"sentence1": f"river {n}", "sentence2": "stone", "score": n % 5} for n in range(20)]
    Path("pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    quick = {**FAST, "evaluation.speed_seconds": 0.01}
    run = distilvec.distill(str(tiny_model), "texts.txt", layers=2, test="pairs.jsonl", out="run", overrides=quick)
    assert {score.task for score in run.scores["student"]} == {"pairs"} and "teacher" in run.scores


# -- quickstart ------------------------------------------------------------------------------------------------------


def test_quickstart_is_distill_on_built_in_texts(monkeypatch, capsys):
    """The recipe that the verb makes is the built-in one, which `run`, `plan` and `cache` take."""
    made = []
    monkeypatch.setattr(distill_module, "run_recipe", lambda recipe, folder, *rest: made.append((recipe, folder)))
    assert run_command(["quickstart"]) == 0
    assert run_command(["quickstart", "train.max_steps=3", "student.layers=2", "--out", "other"]) == 0
    (recipe, folder), (changed, _) = made
    assert folder == Path("runs/quickstart")
    assert recipe == distilvec.load_recipe("quickstart")
    assert changed.train.max_steps == 3 and changed.train.batch_size == recipe.train.batch_size
    assert changed.student.size is None and changed.student.layers == 2
    assert "student.size is left out" in capsys.readouterr().err


def test_quickstart_takes_a_stated_suite_and_size(monkeypatch):
    made = []
    monkeypatch.setattr(distill_module, "run_recipe", lambda recipe, *rest: made.append(recipe))
    Path("suite.yaml").write_text("[]")
    assert run_command(["quickstart", "evaluation.suite=suite.yaml", "student.size=8M"]) == 0
    assert (made[0].evaluation.suite, made[0].evaluation.builtin) == (Path("suite.yaml").resolve(), None)
    assert made[0].student.size == "8M"


def test_null_states_no_size(monkeypatch, capsys):
    made = []
    monkeypatch.setattr(distill_module, "run_recipe", lambda recipe, *rest: made.append(recipe))
    assert run_command(["quickstart", "student.layers=null"]) == 0
    assert run_command(["quickstart", "student.layers=null", "student.embedding.rank=8", "--out", "other"]) == 0
    size = distilvec.load_recipe("quickstart").student.size
    assert [recipe.student.size for recipe in made] == [size, None] and made[1].student.embedding.rank == 8
    tree = {"student": {"model": "teacher", "size": "5M"}}
    override(tree, {"student.layers": None, "student.embedding.rank": 8})
    assert "size" not in tree["student"]


def test_built_in_texts_need_no_file():
    assert recipe_of("./model", "python-docstrings").corpus.sources[0].builtin == "python-docstrings"
