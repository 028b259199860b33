"""The verb of `distilvec corpus`: texts that a language model writes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from distilvec.cli.layout import Listed, example
from distilvec.cli.options import argument, config_options, named_options, option
from distilvec.core.files import check_output_file

_FIELDS = {
    "base_url": "base_url", "key_variable": "key_variable", "kind": "kind", "price": "price",
    "answer_price": "answer_price", "most_cost": "most_cost", "most_tokens": "most_tokens",
    "words_per_request": "words", "attempts": "attempts", "answer_tokens": "answer_tokens",
    "answer_field": "answer_field", "concurrency": "concurrency", "requests_per_minute": "requests_per_minute",
    "tokens_per_minute": "tokens_per_minute", "timeout": "timeout", "retries": "retries", "tokenizer": "tokenizer",
}  # fmt: skip
_KEYS = {
    "synthesize": "--base-url",
    "synthesize.body": "--body",
    **{f"synthesize.{field}": f"--{name.replace('_', '-')}" for name, field in _FIELDS.items()},
    "corpus.sources.0.path": "words",
    "corpus.sources.0.column": "--column",
}
_OPENAI = "words.txt --model gpt-4o-mini --key-variable OPENAI_API_KEY --price 0.15 --answer-price 0.6 --most-cost 5"
_LOCAL = (
    "words.txt --model qwen3 --base-url http://localhost:11434/v1 --kind questions --out questions.json --limit 100"
)

corpus_app = typer.Typer(
    cls=Listed,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Training texts that a language model writes about a list of words.",
    epilog=example("corpus", f"synthesize {_OPENAI} --out vocabulary.json"),
)


@corpus_app.callback()
def corpus() -> None:
    """Keep the name of the only verb."""


@corpus_app.command("synthesize", epilog=example("corpus synthesize", f"{_OPENAI} --out vocabulary.json", _LOCAL))
@config_options("SynthesisSection", _FIELDS)
def synthesize(
    words: Annotated[Path, argument("A word a line, or a table with them.")],
    model: Annotated[str, option("The language model's name at the server.")],
    out: Annotated[Path, option("The result, JSON of words with lists of texts; the work is in OUT.work.")],
    column: Annotated[str | None, option("The table's column with words; found by name when left out.")] = None,
    prompt: Annotated[Path | None, option("A prompt of your own, with %s where the words are put.")] = None,
    body: Annotated[str | None, option("Further fields of every request: '{temperature: 0.3}'.")] = None,
    limit: Annotated[int | None, option("The first n words only; logs the cost of all.", min=1)] = None,
    **given: Any,
) -> None:
    """Let a language model write texts about words (REDACT, appendix C); run again to resume.

    The result is a corpus source: corpus.sources=[{path: OUT}]. No answer is paid for twice. The key is read from the
    environment variable that --key-variable names.
    """
    check_output_file(out, "--out")
    from distilvec.config.base import excerpt
    from distilvec.config.recipe import section_of
    from distilvec.config.synthesis import SynthesisSection
    from distilvec.config.yaml_dialect import load_yaml
    from distilvec.core.log import log
    from distilvec.data.synthetic.synthesize import UNANSWERED, read_words, work_folder
    from distilvec.data.synthetic.synthesize import synthesize as write

    values = {"model": model, **{_FIELDS[name]: value for name, value in given.items()}}
    values |= {} if body is None else {"body": load_yaml(body, "--body", f"value {excerpt(body)}")}
    with named_options(_KEYS):
        section = section_of(SynthesisSection, "synthesize", values)
        found = write(read_words(words, column), section, out, prompt, limit)
    if found.unanswered:
        log(f"{len(found.unanswered):,} words have no answer: {work_folder(out) / UNANSWERED}")
    print(out)
