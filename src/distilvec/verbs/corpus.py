"""`distilvec corpus synthesize`: let a language model write training texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from distilvec.cli.layout import Listed, example
from distilvec.cli.options import App, argument, check_input, check_outputs, option
from distilvec.core.errors import about, set_by

_OPENAI = "words.txt --model gpt-4o-mini --key-variable OPENAI_API_KEY --price 0.15 --answer-price 0.6 --most-cost 5"
_LOCAL = (
    "words.txt --model qwen3 --base-url http://localhost:11434/v1 --kind questions --out questions.json --limit 100"
)

corpus_app = App(
    cls=Listed,
    no_args_is_help=True,
    help="Texts that a language model writes about words.",
    epilog=example("corpus", f"synthesize {_OPENAI} --out vocabulary.json"),
)


@corpus_app.callback()
def corpus() -> None:
    """Make typer keep the name of the only verb."""


@corpus_app.command("synthesize", epilog=example("corpus synthesize", f"{_OPENAI} --out vocabulary.json", _LOCAL))
def synthesize(
    words: Annotated[Path, argument("A word a line, or a table with a column of words.")],
    model: Annotated[str, option("Name of the language model at the server.")],
    out: Annotated[
        Path, option("The result: JSON with a list of texts for each word. Work in progress is in OUT.work.")
    ],
    column: Annotated[str | None, option("Column with the words; found by name by default.")] = None,
    prompt: Annotated[Path | None, option("File with your own prompt; %s stands for the words.")] = None,
    body: Annotated[str | None, option("More fields for every request: '{temperature: 0.3}'.")] = None,
    limit: Annotated[int | None, option("Only the first n words; logs what all of them would cost.", min=1)] = None,
    base_url: Annotated[
        str | None, option("Requests go to BASE_URL/chat/completions; https://api.openai.com/v1 by default.")
    ] = None,
    key_variable: Annotated[str | None, option("Environment variable that holds the API key.")] = None,
    kind: Annotated[
        Literal["facts", "questions", "texts"],
        option("Definitions and properties (REDACT's prompt), search questions, or short texts."),
    ] = "facts",
    price: Annotated[float | None, option("Price of a million input tokens, in your currency.")] = None,
    answer_price: Annotated[float | None, option("Price of a million output tokens; --price by default.")] = None,
    most_cost: Annotated[float | None, option("Stop before the cost exceeds this, in the currency of --price.")] = None,
    most_tokens: Annotated[int | None, option("Stop before this many tokens, input and output, over all runs.")] = None,
    words_per_request: Annotated[
        int | None, option("Words in one request, 10 by default; halved when words are asked again.")
    ] = None,
    attempts: Annotated[int | None, option("Requests for a word before it counts as unanswered; 3 by default.")] = None,
    answer_tokens: Annotated[int | None, option("Maximum tokens of an answer; 4096 by default.")] = None,
    answer_field: Annotated[
        Literal["max_tokens", "max_completion_tokens"] | None,
        option("The server's name for --answer-tokens; max_tokens by default."),
    ] = None,
    concurrency: Annotated[int | None, option("Requests at the same time; 8 by default.")] = None,
    requests_per_minute: Annotated[int | None, option("Maximum requests per minute.")] = None,
    tokens_per_minute: Annotated[int | None, option("Maximum tokens per minute.")] = None,
    timeout: Annotated[float | None, option("Seconds to wait for an answer; 300 by default.")] = None,
    retries: Annotated[int | None, option("Retries of a failed request; 8 by default.")] = None,
    tokenizer: Annotated[
        str | None, option("Counts tokens for estimates: a folder or hub id; by default 4 bytes are a token.")
    ] = None,
) -> None:
    """Let a language model write texts about words.

    As in REDACT's appendix C. The result is a corpus source: corpus.sources=OUT. The same command resumes, and no
    answer is paid for twice. The API key comes from the environment variable that --key-variable names.
    """
    check_input(words, "words")
    check_input(prompt, "--prompt")
    check_outputs([("--out", out)], [words, prompt, tokenizer])
    from distilvec.config.base import excerpt
    from distilvec.config.endpoint import SynthesisSection
    from distilvec.config.recipe import section_of
    from distilvec.config.yaml_dialect import load_yaml

    with about("--body"):
        body_fields = None if body is None else load_yaml(body, f"value {excerpt(body)}")
    values = {
        "model": model,
        "body": body_fields,
        "base_url": base_url,
        "key_variable": key_variable,
        "kind": kind,
        "price": price,
        "answer_price": answer_price,
        "most_cost": most_cost,
        "most_tokens": most_tokens,
        "words": words_per_request,
        "attempts": attempts,
        "answer_tokens": answer_tokens,
        "answer_field": answer_field,
        "concurrency": concurrency,
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
        "timeout": timeout,
        "retries": retries,
        "tokenizer": tokenizer,
    }
    names = {f"synthesize.{field}": field for field in values} | {"synthesize.words": "words_per_request"}
    names |= {"synthesize": "base_url", "corpus.sources.0": "words", "corpus.sources.0.column": "column"}
    with set_by(names):
        section = section_of(SynthesisSection, "synthesize", values)  # leaves out None: the section's defaults hold

        from distilvec.core.log import log
        from distilvec.data.synthesize import UNANSWERED, read_words, work_folder
        from distilvec.data.synthesize import synthesize as write

        result = write(read_words(words, column), section, out, prompt, limit)
    if result.unanswered:
        log(f"{len(result.unanswered):,} words have no answer: {work_folder(out) / UNANSWERED}")
    print(out)
