"""The command line's help, shell completion, and the verbs of `distilvec recipes`."""

from __future__ import annotations

import inspect
import json
import os
import re
from pathlib import Path

import pytest
import yaml

from distilvec.__main__ import app, run_command
from distilvec.cli.app import VERBS as app_verbs
from distilvec.cli.app import verb_command
from distilvec.cli.layout import GROUPS, MORE, PANELS
from distilvec.config import builtin
from distilvec.config import recipe as recipes
from distilvec.config.builtin import moved_text, recipe_schema
from distilvec.config.score_columns import SCORE_COLUMNS

HELP = ["-h", "--help"]  # a command keeps those of its first context
VERBS = [name for names in GROUPS.values() for name in names]
IN_GROUPS = [["recipes", name] for name in ("show", "copy", "schema")]
IN_GROUPS += [["corpus", "synthesize"]]
IN_GROUPS += [["data", name] for name in ("list", "get")]
IN_GROUPS += [["cache", name] for name in ("fill", "merge", "verify", "inspect", "export", "import")]


def printed(capsys, *arguments):
    assert run_command(arguments) == 0
    return capsys.readouterr().out


# -- help --------------------------------------------------------------------------------------------------------------


def test_nine_verbs_are_explained_and_the_others_named(capsys):
    """`cache -h`, whose verbs are in no groups, explains all of them."""
    _, _, listed = printed(capsys, "--help").partition("\nCommands:\n")
    explained, _, named = listed.partition(f"\n{MORE}: ")
    verbs = [line.split()[0] for line in explained.splitlines() if line.startswith("  ") and line[2] != " "]
    assert verbs == list(GROUPS["Commands"]) and len(verbs) == 9 and verbs[:2] == ["quickstart", "distill"]
    names = " ".join(named.split()).split(", ")
    assert names == list(GROUPS[MORE]) and {*verbs, *names} == {*app_verbs}
    assert "..." not in explained
    inner = printed(capsys, "cache", "--help").partition("Commands:")[2]
    assert "..." not in inner and "fill" in inner and MORE not in inner


@pytest.mark.parametrize("verb", PANELS)
def test_options_stand_in_parts_each_once(verb, capsys):
    """The first part has the option that is used most; nothing is left out."""
    found = printed(capsys, verb, "-h")
    places = [found.index(f"\n{title}:\n") for title in PANELS[verb]]
    assert places == sorted(places) and "\nOptions:\n" not in found
    options = re.findall(r"^  (--[a-z-]+)", found, re.MULTILINE)
    signature = inspect.signature(verb_command(verb).callback.__wrapped__).parameters
    assert len(options) == len(set(options)) > len(PANELS[verb])
    assert {name for names in PANELS[verb].values() for name in names.split()} <= signature.keys()
    assert options[0] == {"distill": "--size", "classify": "--text", "check": "--queries"}[verb]


@pytest.mark.parametrize("verb", [*([name] for name in VERBS), *IN_GROUPS], ids=" ".join)
def test_help_ends_with_a_command_that_parses(verb, capsys):
    found = printed(capsys, *verb, "--help")
    assert found.count("\n  Example") == 1
    commands = found.partition("\n  Example")[2].splitlines()[1:]
    for line in filter(None, map(str.strip, commands)):
        words = line.partition(" > ")[0].split()
        assert words[: 1 + len(verb)] == ["distilvec", *verb]
        assert_parses(words[1:])


def test_compare_names_every_column_of_scores(capsys):
    found = printed(capsys, "compare", "--help").split()
    assert SCORE_COLUMNS.keys() <= {word.strip(",.") for word in found}


def assert_parses(words):
    """Parse a command line without running it; a wrong option or a missing argument raises."""
    import typer.main

    command = typer.main.get_command(app)
    while hasattr(command, "commands"):
        with command.make_context("distilvec", list(words), help_option_names=HELP) as context:
            rest = [*context._protected_args, *context.args]
            if not rest:
                return
            _, command, words = command.resolve_command(context, rest)
    command.make_context("distilvec", list(words), help_option_names=HELP).close()


# -- completion --------------------------------------------------------------------------------------------------------


def completed(line, monkeypatch, capsys, shell="fish"):
    """What the shell is offered for a command line that ends with the word to complete."""
    monkeypatch.setenv("_DISTILVEC_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - (not line.endswith(" "))))
    assert run_command([]) == 0
    return [text.partition("\t")[0] for text in capsys.readouterr().out.splitlines() if text]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("distilvec qui", ["quickstart"]),
        ("distilvec run talas --vari", ["--variant"]),
        ("distilvec cache fi", ["fill"]),
        ("distilvec export model --to onnx-f", ["onnx-fp16"]),
    ],
)
def test_completion(line, expected, monkeypatch, capsys):
    assert completed(line, monkeypatch, capsys) == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_printed(shell, capsys, monkeypatch):
    monkeypatch.setattr("shellingham.detect_shell", lambda *given: (shell, f"/bin/{shell}"))
    assert "_DISTILVEC_COMPLETE" in printed(capsys, "--show-completion", shell)


# -- recipes -----------------------------------------------------------------------------------------------------------


def test_the_list_has_the_recipes_of_users_and_all_of_them_on_request(capsys):
    def names(*words):
        return [row["name"] for row in json.loads(printed(capsys, "recipes", *words, "--json", "-"))]

    assert 8 <= len(names()) <= 14 and {"quickstart", "redact", "small_english"} <= set(names())
    assert names("--all") == [path.stem for path in builtin.recipe_files()] and "simcse" in names("--all")
    assert "distilvec recipes --all" in printed(capsys, "recipes")


@pytest.mark.parametrize("path", builtin.recipe_files(), ids=lambda path: path.stem)
def test_a_copy_of_a_builtin_recipe_means_the_same(path, tmp_path):
    copy = tmp_path / path.name
    copy.write_text(moved_text(path), encoding="utf-8")
    before, after = (
        recipes.resolve_tree(recipes.read_tree(file), file.parent, recipes.Recipe) for file in (path.resolve(), copy)
    )
    assert_same(before, after, tmp_path)


def assert_same(before, after, folder):
    """Equal trees, but for paths below `folder`, whose originals do not exist."""
    if isinstance(before, dict):
        assert list(before) == list(after)
        before, after = list(before.values()), list(after.values())
    if isinstance(before, list):
        for one, other in zip(before, after, strict=True):
            assert_same(one, other, folder)
    elif before != after:
        assert not Path(before).exists() and os.path.relpath(before) != os.path.relpath(after)


@pytest.fixture
def own_recipes(tmp_path, monkeypatch):
    """A folder of built-in recipes with one recipe, one file of texts, and paths that lead to it and to nothing."""
    folder = tmp_path / "built in" / "recipes"
    folder.mkdir(parents=True)
    (folder / "there.txt").write_text("a text\n")
    (folder / "mine.yaml").write_text(
        "# a comment\n"
        "name: mine\n"
        "teacher: {model: gone.txt}            # an id, no path\n"
        "student: {model: ./there.txt, layers: 2}\n"
        "corpus:\n"
        "  sources: [{path: there.txt}, {path: 'there.txt'}, {path: gone.txt}]  # texts\n"
        "method: {name: redact}\n"
        "variants:\n"
        "  one: &one\n"
        "    corpus.sources: [{path: there.txt, limit: 5}]\n"
        "  two: {<<: *one, evaluation.suite: gone.yaml}"
    )
    monkeypatch.setattr(builtin, "recipe_folder", lambda: folder)
    monkeypatch.chdir(tmp_path)
    return folder


def test_a_copy_keeps_comments_and_leads_to_the_same_files(own_recipes, capsys):
    assert printed(capsys, "recipes", "copy", "mine").strip() == "mine.yaml"
    text = Path("mine.yaml").read_text()
    there = f'"{own_recipes / "there.txt"}"'  # in quotes: the folder's name has a space
    assert text.splitlines() == [
        "# a comment",
        "name: mine",
        "teacher: {model: gone.txt}            # an id, no path",
        f"student: {{model: {there}, layers: 2}}",
        "corpus:",
        f"  sources: [{{path: {there}}}, {{path: {there}}}, {{path: gone.txt}}]"
        "  # texts  # not found; set your own path",
        "method: {name: redact}",
        "variants:",
        "  one: &one",
        f"    corpus.sources: [{{path: {there}, limit: 5}}]",
        "  two: {<<: *one, evaluation.suite: gone.yaml}  # not found; set your own path",
    ]
    assert recipes.load(Path("mine.yaml"), "one").corpus.sources[0].path == own_recipes / "there.txt"


def test_a_copy_goes_where_out_says_and_replaces_nothing(own_recipes, capsys):
    assert run_command(["recipes", "copy", "mine", "--out", "other.yaml"]) == 0
    Path("other.yaml").write_text("kept")
    assert run_command(["recipes", "copy", "mine", "--out", "other.yaml"]) == 2
    assert "[--out] other.yaml exists already" in capsys.readouterr().err
    assert Path("other.yaml").read_text() == "kept"


def test_the_schema_knows_every_key_of_the_builtin_recipes(capsys):
    schema = json.loads(printed(capsys, "recipes", "schema"))
    assert schema == json.loads(json.dumps(recipe_schema()))
    assert "variants" in schema["properties"]
    for path in builtin.recipe_files():
        assert_known(yaml.safe_load(path.read_text(encoding="utf-8")), schema, schema, path.stem)


def assert_known(value, part, schema, where):
    """Every key of `value` is one that this part of the schema has."""
    part = {**schema["$defs"][part["$ref"].rpartition("/")[2]], **part} if "$ref" in part else part
    for option in part.get("anyOf", ()):
        if option.get("type") != "null" and (
            ("$ref" in option) == isinstance(value, dict) or option.get("type") == "array"
        ):
            assert_known(value, option, schema, where)
    if isinstance(value, dict) and "properties" in part:
        for key, inner in value.items():
            assert key in part["properties"], f"{where}.{key}"
            assert_known(inner, part["properties"][key], schema, f"{where}.{key}")
    if isinstance(value, list) and "items" in part:
        for inner in value:
            assert_known(inner, part["items"], schema, where)


def test_the_schema_describes_keys_and_has_no_marks_of_ours():
    schema = recipe_schema()
    train = schema["$defs"]["TrainSection"]["properties"]
    assert train["window"]["description"] and train["window"]["exclusiveMinimum"] == 0
    assert train["epochs"]["default"] == "auto"
    assert schema["additionalProperties"] is False and schema["$schema"].startswith("https://json-schema.org/")
    source = schema["$defs"]["SourceSection"]["properties"]
    assert "path" in source and "path" not in source["dataset"] and "labels" not in source["where"]


# -- help and colours ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [*([name] for name in VERBS), *IN_GROUPS], ids=" ".join)
def test_help_of_a_verb_is_the_same_by_help_and_by_h(verb, capsys):
    assert printed(capsys, "help", *verb) == printed(capsys, *verb, "-h") == printed(capsys, *verb, "--help")


def test_help_alone_is_the_list_of_verbs(capsys):
    assert printed(capsys, "help") == printed(capsys, "-h")
    assert run_command(["help", "distil"]) == 2 and "distill" in capsys.readouterr().err
    assert run_command(["help", "distill", "texts"]) == 2


def test_the_first_line_of_a_verb_fits_in_55_characters():
    import typer.main

    def commands(command):
        for name, inner in getattr(command, "commands", {}).items():
            yield name, inner
            yield from commands(inner)

    for name, command in commands(typer.main.get_command(app)):
        assert 10 < len(command.get_short_help_str(10_000)) <= 55, name


@pytest.mark.parametrize(
    ("terminal", "variables", "shown"),
    [(True, {}, True), (False, {}, False), (True, {"NO_COLOR": "1"}, False), (True, {"TERM": "dumb"}, False)],
)
def test_colours_are_for_terminals_that_want_them(terminal, variables, shown, capsys, monkeypatch):
    from distilvec.cli.terminal import show_table

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    plain_help = printed(capsys, "distill", "-h")
    plain_table = shown_by(capsys, lambda: show_table(["name", "value"], [["one", "1"]]))
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    for plain, text in (
        (plain_help, printed(capsys, "distill", "-h")),
        (plain_table, shown_by(capsys, lambda: show_table(["name", "value"], [["one", "1"]]))),
    ):
        assert ("\x1b[" in text) == shown
        assert re.sub(r"\x1b\[\d*m", "", text) == plain
    assert run_command(["plan", "absent.yaml"]) == 2
    assert ("\x1b[31m" in capsys.readouterr().err) == shown


def shown_by(capsys, show):
    show()
    return capsys.readouterr().out


def test_tables_are_as_wide_as_the_terminal(capsys, monkeypatch):
    from distilvec.cli.terminal import show_table

    row = [f"{number} {'word ' * 6}" for number in range(5)]
    widest = {}
    for columns in (80, 140):
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = shown_by(capsys, lambda: show_table(row, [row])).splitlines()
        widest[columns] = max(map(len, lines))
        assert widest[columns] <= columns
    assert widest[140] > 80
