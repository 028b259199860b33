"""A corpus that a language model writes: texts about each word of a list, paid for once, as {word: [text, ...]}."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distilvec.config.recipe import fingerprint
from distilvec.config.schema import SourceSection
from distilvec.config.synthesis import SynthesisSection
from distilvec.core.errors import DistilvecError
from distilvec.core.files import locked, write_file
from distilvec.core.log import log, progress
from distilvec.data.corpus_files import clean_text
from distilvec.data.readers import MAPPING, extension
from distilvec.data.sources import read_source
from distilvec.data.synthetic.answers import distinct, fill_prompt, read_answer, read_prompt
from distilvec.data.synthetic.journal import Journal
from distilvec.remote.client import MOST_BYTES, BatchRefused, Client
from distilvec.remote.meter import Batch, most_tokens_of, token_counter

KEY = "synthesize"  # of the section, in messages
ANSWERS, COUNTS, UNANSWERED, LOCK = "answers.jsonl", "requests.json", "unanswered.txt", "lock"
_HOPELESS = 20  # answers one after another without a usable text: the work ends
_TOKEN_BYTES = 200  # of a token in JSON, escaped
_LONGEST_WORD = 500  # characters


@dataclass(frozen=True)
class Synthesis:
    """The result: words asked for, those with texts, texts, repeats that were left out, words without an answer."""

    words: int
    answered: int
    texts: int
    repeats: int
    unanswered: list[str]


def read_words(path: Path, column: str | None = None) -> list[str]:
    """The words of a file that corpus.sources reads (lines, or a column of a table), each once, in order."""
    texts = read_source(SourceSection(path=path, column=column), 0)
    return [word for word in dict.fromkeys(" ".join(clean_text(text, _LONGEST_WORD).split()) for text in texts) if word]


def work_folder(out: Path) -> Path:
    """The folder of what a result is made of: answers, counts of requests, words without an answer."""
    return out.with_name(f"{out.name}.work")


def synthesize(
    words: Sequence[str], section: SynthesisSection, out: Path, prompt: Path | None = None, limit: int | None = None
) -> Synthesis:
    """Ask for texts about the words, the first `limit` of them, and write `out`, JSON of {word: [text, ...]}.

    Answers are kept as they arrive, in `work_folder(out)`: after a kill or an error the same call goes on, and longer
    lists ask for new words alone. Words without a usable answer are asked for again, `attempts` times in all.
    Errors: DistilvecError for settings, the cap, a server that refuses or fails, and answers that are all useless. The
    answers until then are in `out`.
    """
    if extension(out) != MAPPING:
        raise DistilvecError("--out", f"{out}: found extension '{out.suffix}'. Expected {MAPPING}.")
    text, asked, folder = read_prompt(section.kind, prompt), list(words[:limit]), work_folder(out)
    if not asked:
        raise DistilvecError("words", "the list is empty.", "Give a file with a word a line.")
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"model": section.model, "prompt": fingerprint(text), "body": fingerprint(section.body)}
    with locked(folder / LOCK, "--out", str(out), wait=False), Journal(folder / ANSWERS, settings) as journal:
        writer = _Writer(section, text, journal, folder / COUNTS)
        try:
            writer.write(asked)
        finally:
            writer.client.close()
            found = _publish(out, asked, journal)
        about = f"{found.texts:,} texts about {found.answered:,} of {found.words:,} words"
        log(f"{out}: {about}, {found.repeats:,} repeats left out; {writer.client.meter.note}")
        if not found.texts:
            raise DistilvecError(
                "--model",
                f"no answer about {found.words:,} words is JSON of words with lists of texts; {out} was not written, "
                f"{writer.client.meter.note}.",
                "Try another model or prompt, or raise --answer-tokens.",
            )
        if len(asked) < len(words):
            writer.forecast(len(words))
    return found


class _Writer:
    """Asks for the texts of words, several words in a request."""

    def __init__(self, section: SynthesisSection, prompt: str, journal: Journal, counts: Path) -> None:
        self.section, self.prompt, self.journal, self._useless = section, prompt, journal, 0
        self.client = Client(section, KEY, "--model, --base-url and --body", counts)
        self.count = token_counter(section, KEY)

    def write(self, words: Sequence[str]) -> None:
        """Ask for all words, then retry unanswered ones in smaller batches."""
        answers, before = self.journal.answers, len(self.journal.answers)
        done = sum(word in answers for word in words)
        with progress(self.section.kind, len(words), "words", done) as advance:
            for attempt in range(self.section.attempts):
                missing = [word for word in words if word not in answers and self.journal.failures[word] == attempt]
                self._ask_all(missing, attempt, lambda: advance(done + len(answers) - before, self.client.meter.note))

    def forecast(self, words: int) -> None:
        """Log tokens and cost of `words` words like those that have answers."""
        counts, done = self.client.meter.counts, len(self.journal.answers)
        tokens, written = (round(counts.get(name, 0) * words / max(done, 1)) for name in ("tokens", "written"))
        cost = self.section.cost_note(tokens, written)
        log(f"at this rate {words:,} words take about {tokens:,} tokens read, {written:,} written{cost}")

    def _ask_all(self, words: list[str], attempt: int, report: Callable[[], None]) -> None:
        size = max(1, self.section.words >> attempt)
        batches = [words[start : start + size] for start in range(0, len(words), size)]
        if batches:
            tokens = len(batches) * self.count([self.prompt])[0] + sum(self.count(words))
            what = f"attempt {attempt + 1}: {len(words):,} words in {len(batches):,} requests"
            log(f"{self.section.model}, {what}, {tokens:,} tokens to read")
            self.client.ask_all(batches, self._ask, self._keep, report)

    def _ask(self, words: list[str]) -> str:
        """The answer to one request, as it was written."""
        prompt, section = fill_prompt(self.prompt, words), self.section
        batch = Batch(0, len(words), self.count([prompt])[0], most_tokens_of(prompt), section.answer_tokens)
        asked: dict[str, Any] = {"model": section.model, "messages": [{"role": "user", "content": prompt}]}
        asked |= {section.answer_field: section.answer_tokens, **section.body}
        most_bytes = MOST_BYTES + _TOKEN_BYTES * section.answer_tokens
        try:
            return self.client.ask("/chat/completions", asked, batch, _content, most_bytes)
        except BatchRefused:
            self.client.meter.stopping.set()  # before this thread takes other words
            raise

    def _keep(self, words: list[str], content: str) -> None:
        """Keep the usable texts of an answer. DistilvecError if no answer is usable."""
        found = read_answer(content, words)
        self.journal.add(found, [word for word in words if word not in found])
        self._useless = 0 if found else self._useless + 1
        if self._useless == _HOPELESS:
            raise DistilvecError(
                "--model",
                f"none of the last {_HOPELESS} answers is JSON of words with lists of texts; the last one: "
                f"{' '.join(content.split())[:200]!r}.",
                "Try another model or prompt, or raise --answer-tokens.",
            )


def _content(answer: Any) -> str:
    """The text of an answer; empty if the model has refused. TypeError for another form."""
    content = answer["choices"][0]["message"].get("content")
    if not isinstance(content, str | None):
        raise TypeError(f"content is a {type(content).__name__}")
    return content or ""


def _publish(out: Path, words: Sequence[str], journal: Journal) -> Synthesis:
    """Write the result, if there is any, and the list of words without an answer."""
    found, repeats = distinct(words, journal.answers)
    missing = [word for word in words if word not in journal.answers]
    if found:
        lines = (f"{json.dumps(word, ensure_ascii=False)}: {json.dumps(texts, ensure_ascii=False)}"
                 for word, texts in found.items())  # fmt: skip
        write_file(out, "{\n" + ",\n".join(lines) + "\n}\n", "--out")
        write_file(work_folder(out) / UNANSWERED, "".join(f"{word}\n" for word in missing), "--out")
    return Synthesis(len(words), len(words) - len(missing), sum(map(len, found.values())), repeats, missing)
