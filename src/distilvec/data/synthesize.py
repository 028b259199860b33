"""A corpus that a language model writes: texts about each word of a list, paid for once, as {word: [text, ...]}."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distilvec.config.endpoint import SynthesisSection, TextKind
from distilvec.config.recipe import fingerprint
from distilvec.config.schema import SourceSection
from distilvec.core.errors import DistilvecError, about, first_line
from distilvec.core.files import acquire_lock, write_file
from distilvec.core.log import log, progress
from distilvec.data.corpus import loose_key
from distilvec.data.corpus_files import clean_text
from distilvec.data.readers import MAPPING, extension
from distilvec.data.sources import read_source
from distilvec.remote.client import MOST_BYTES, BatchRefused, Client
from distilvec.remote.meter import RequestBatch, most_tokens_of, token_counter

KEY = "synthesize"  # of the section, in messages
ANSWERS = "answers.jsonl"
COUNTS = "requests.json"
UNANSWERED = "unanswered.txt"
LOCK = "lock"
_MAX_USELESS = 20  # answers one after another without a usable text, after which the work ends
_TOKEN_BYTES = 200  # of a token in JSON, escaped
_MAX_WORD = 500  # characters
MAX_CHARACTERS = 10_000  # of one text


class AnswerJournal:
    """Answers by word, and how often each word was left unanswered; a file of JSON lines, the first one its settings.

    A line that a kill has left unfinished is removed. Errors: DistilvecError for a file of other settings and for a
    damaged file.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path = path
        self.settings = dict(settings)
        self.answers: dict[str, list[str]] = {}
        self.failures: Counter[str] = Counter()
        with about("--out", path):
            size = self._read() if path.exists() else 0
            self._file = path.open("ab")
            self._file.truncate(size)
            if not size:
                self._write(self.settings)

    def __enter__(self) -> AnswerJournal:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def add(self, answers: Mapping[str, list[str]], failed: list[str]) -> None:
        """Store the texts of words, and the words that were asked for without success."""
        with about("--out", self.path):  # on the disk first: what is only in memory is lost by a kill
            self._write({"answers": answers, "failed": failed})
        self.answers.update(answers)
        self.failures.update(failed)

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write((json.dumps(line, ensure_ascii=False) + "\n").encode())
        self._file.flush()
        os.fsync(self._file.fileno())

    def _read(self) -> int:
        """Read the file; the bytes of its whole lines, 0 if it has no answer and its settings are others."""
        settings: dict[str, Any] = {}
        size = 0
        with self.path.open("rb") as file:
            for number, text in enumerate(file, 1):
                if not text.endswith(b"\n"):  # the last line, which a kill has left unfinished
                    break
                size += len(text)
                try:
                    line = dict(json.loads(text))
                    if number == 1:
                        settings = line
                    else:
                        self.answers.update(line["answers"])
                        self.failures.update(line["failed"])
                except (ValueError, KeyError, TypeError) as error:
                    problem = f"line {number} is damaged ({first_line(error)})"
                    fix = "Remove the line, or move the file away to begin again."
                    raise DistilvecError(f"{self.path}: {problem}.", fix, key="--out") from None
        if size == 0 or settings == self.settings:
            return size
        if not self.answers:  # nothing that was paid for is lost
            self.failures.clear()
            return 0
        changed = " and ".join(name for name in self.settings if settings.get(name) != self.settings[name])
        raise DistilvecError(
            f"{self.path} was begun with another {changed}.", "Give the same, or another --out.", key="--out"
        )


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
    words: dict[str, None] = {}
    for text in read_source(SourceSection(path=path, column=column), 0):
        word = " ".join(clean_text(text, _MAX_WORD).split())
        if word:
            words[word] = None
    return list(words)


def work_folder(out: Path) -> Path:
    """The folder next to a result with the answers, counts of requests and words without an answer."""
    return out.with_name(f"{out.name}.work")


def synthesize(
    words: Sequence[str], section: SynthesisSection, out: Path, prompt: Path | None = None, limit: int | None = None
) -> Synthesis:
    """Ask for texts about the words, the first `limit` of them, and write `out`, JSON of {word: [text, ...]}.

    Answers are stored as they arrive, in `work_folder(out)`: after a kill or an error the same call goes on, and longer
    lists ask for new words alone. Words without a usable answer are asked for again, `attempts` times in all.
    Errors: DistilvecError for settings, the cap, a server that refuses or fails, and answers that are all useless. The
    answers until then are in `out`.
    """
    if extension(out) != MAPPING:
        raise DistilvecError(f"{out}: found extension '{out.suffix}'. Expected {MAPPING}.", key="--out")
    prompt_text = read_prompt(section.kind, prompt)
    words_to_ask = list(words[:limit])
    if not words_to_ask:
        raise DistilvecError("the list is empty.", "Give a file with a word a line.", key="words")
    folder = work_folder(out)
    with about("--out", out):
        folder.mkdir(parents=True, exist_ok=True)
        lock = acquire_lock(folder / LOCK, str(out), wait=False)
    settings = {"model": section.model, "prompt": fingerprint(prompt_text), "body": fingerprint(section.body)}
    with lock, AnswerJournal(folder / ANSWERS, settings) as journal:
        writer = _Writer(section, prompt_text, journal, folder / COUNTS)
        try:
            writer.write(words_to_ask)
        finally:  # whatever has failed: the answers until then are paid for
            writer.client.close()
            synthesis = _publish(out, words_to_ask, journal)
        amount = f"{synthesis.texts:,} texts about {synthesis.answered:,} of {synthesis.words:,} words"
        log(f"{out}: {amount}, {synthesis.repeats:,} repeats left out; {writer.client.meter.note}")
        if not synthesis.texts:
            raise DistilvecError(
                f"no answer about {synthesis.words:,} words is JSON of words with lists of texts; {out} was not "
                f"written, {writer.client.meter.note}.",
                "Try another model or prompt, or raise --answer-tokens.",
                key="--model",
            )
        if len(words_to_ask) < len(words):
            writer.forecast(len(words))
    return synthesis


class _Writer:
    """Asks for the texts of words, several words in a request."""

    def __init__(self, section: SynthesisSection, prompt: str, journal: AnswerJournal, counts: Path) -> None:
        self.section = section
        self.prompt = prompt
        self.journal = journal
        self._useless = 0  # answers in a row without a usable text
        with about(KEY):
            self.client = Client(section, counts)
            self.count = token_counter(section)

    def write(self, words: Sequence[str]) -> None:
        """Ask for all words, then retry unanswered ones in smaller batches."""
        answers = self.journal.answers
        of_other_words = len(answers) - sum(word in answers for word in words)
        with progress(self.section.kind, len(words), "words", len(answers) - of_other_words) as advance:
            for attempt in range(self.section.attempts):
                missing = [word for word in words if word not in answers and self.journal.failures[word] == attempt]
                if missing:
                    with closing(self._ask_all(missing, attempt)) as answered:
                        for _ in answered:
                            advance(len(answers) - of_other_words, self.client.meter.note)

    def forecast(self, words: int) -> None:
        """Log tokens and cost of `words` words like those that have answers."""
        counts = self.client.meter.counts
        times = words / max(len(self.journal.answers), 1)
        tokens = round(counts.get("tokens", 0) * times)
        written = round(counts.get("written", 0) * times)
        cost = self.section.cost_note(tokens, written)
        log(f"at this rate {words:,} words take about {tokens:,} tokens read, {written:,} written{cost}")

    def _ask_all(self, words: list[str], attempt: int) -> Generator[list[str], None, None]:
        """Ask for some words in batches; yield the words of each batch that has an answer."""
        size = max(1, self.section.words >> attempt)  # half as many words in each further attempt
        batches = [words[start : start + size] for start in range(0, len(words), size)]
        tokens = len(batches) * self.count([self.prompt])[0] + sum(self.count(words))
        requests = f"{len(words):,} words in {len(batches):,} requests"
        log(f"{self.section.model}, attempt {attempt + 1}: {requests}, {tokens:,} tokens to read")
        yield from self.client.ask_all(batches, self._ask, self._store)

    def _ask(self, words: list[str]) -> str:
        """The answer to one request, as it was written."""
        section = self.section
        prompt = fill_prompt(self.prompt, words)
        batch = RequestBatch(0, len(words), self.count([prompt])[0], most_tokens_of(prompt), section.answer_tokens)
        request = {
            "model": section.model,
            "messages": [{"role": "user", "content": prompt}],
            section.answer_field: section.answer_tokens,
            **section.body,
        }
        most_bytes = MOST_BYTES + _TOKEN_BYTES * section.answer_tokens
        try:
            with about(KEY):
                return self.client.ask("/chat/completions", request, batch, _content, most_bytes)
        except BatchRefused:
            self.client.meter.stopping.set()  # before this thread takes other words
            raise

    def _store(self, words: list[str], content: str) -> None:
        """Store the usable texts of an answer. DistilvecError if no answer is usable."""
        texts_by_word = read_answer(content, words)
        self.journal.add(texts_by_word, [word for word in words if word not in texts_by_word])
        self._useless = 0 if texts_by_word else self._useless + 1
        if self._useless == _MAX_USELESS:
            raise DistilvecError(
                f"none of the last {_MAX_USELESS} answers is JSON of words with lists of texts; the last one: "
                f"{self.client.shown(content)!r}.",
                "Try another model or prompt, or raise --answer-tokens.",
                key="--model",
            )


def _content(answer: Any) -> str:
    """The text of an answer; empty if the model has refused. TypeError for another form."""
    content = answer["choices"][0]["message"].get("content")
    if not isinstance(content, str | None):
        raise TypeError(f"content is a {type(content).__name__}")
    return content or ""


def _publish(out: Path, words: Sequence[str], journal: AnswerJournal) -> Synthesis:
    """Write the result, if there is any, and the list of words without an answer."""
    texts_by_word, repeats = distinct_texts(words, journal.answers)
    unanswered = [word for word in words if word not in journal.answers]
    if texts_by_word:
        lines = []  # a line a word, unlike json.dumps: people read and search this file
        for word, texts in texts_by_word.items():
            lines.append(f"{json.dumps(word, ensure_ascii=False)}: {json.dumps(texts, ensure_ascii=False)}")
        write_file(out, "{\n" + ",\n".join(lines) + "\n}\n")
        write_file(work_folder(out) / UNANSWERED, "".join(f"{word}\n" for word in unanswered))
    return Synthesis(
        words=len(words),
        answered=len(words) - len(unanswered),
        texts=sum(len(texts) for texts in texts_by_word.values()),
        repeats=repeats,
        unanswered=unanswered,
    )


def read_prompt(kind: TextKind, file: Path | None) -> str:
    """The prompt of a kind, or that of a file; `%s` is where the words are put.

    The kind "facts" has the prompt of listing 1 of REDACT ("Knowledge Distillation of Text Embedding Models with
    Teacher-Aligned Representations", appendix C); the others have its form.

    Errors: DistilvecError for a file that cannot be read or does not hold `%s` once.
    """
    path = file or Path(__file__).parent / "prompts" / f"{kind}.txt"
    with about("--prompt", path):
        prompt = path.read_text(encoding="utf-8-sig")
    count = prompt.count("%s")
    if count != 1:
        fix = "Put it once, where the words are inserted."
        raise DistilvecError(f"{path} holds %s {count} times.", fix, key="--prompt")
    return prompt


def fill_prompt(prompt: str, words: Sequence[str]) -> str:
    """The prompt with the words, one a line, in quotes as JSON has them."""
    lines = [json.dumps(word, ensure_ascii=False) for word in words]
    return prompt.replace("%s", "\n".join(lines))


def read_answer(content: str, words: Sequence[str]) -> dict[str, list[str]]:
    """Texts by word, of the words whose texts have the right form: a list of texts that are not empty.

    A model may write a word in another case or with outer spaces. Other words of the answer are passed over. Empty for
    an answer without a JSON object; prose around it is passed over.
    """
    answer = _json_object(content)
    respelled = {key.casefold().strip(): value for key, value in answer.items() if key not in words}
    texts_by_word = {}
    for word in words:
        texts = _texts(answer[word] if word in answer else respelled.get(word.casefold().strip()))
        if texts:
            texts_by_word[word] = texts
    return texts_by_word


def _json_object(content: str) -> dict[str, Any]:
    """The first JSON object in a text that has a list for some key; empty if there is none."""
    decoder = json.JSONDecoder()
    start = content.find("{")
    while start >= 0:
        try:
            value, end = decoder.raw_decode(content, start)
        except (ValueError, RecursionError):
            end = start + 1
        else:
            if any(isinstance(texts, list) for texts in value.values()):
                return dict(value)
        start = content.find("{", end)
    return {}


def _texts(values: Any) -> list[str]:
    """The texts of a word, cleaned; empty for another form, and if one of them is not a text."""
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        return []
    texts = [clean_text(value.replace("\0", " "), MAX_CHARACTERS + 1) for value in values]
    if any(not text or len(text) > MAX_CHARACTERS for text in texts):
        return []
    return texts


def distinct_texts(words: Iterable[str], answers: Mapping[str, Sequence[str]]) -> tuple[dict[str, list[str]], int]:
    """The answers in the order of the words, and the number of texts that were left out as repeats of earlier ones.

    Texts are the same if they differ in case and white space alone. Words without a text left are left out.
    """
    seen = set[bytes]()
    texts_by_word: dict[str, list[str]] = {}
    repeats = 0
    for word in words:
        for text in answers.get(word, ()):
            key = loose_key(text)
            if key in seen:
                repeats += 1
            else:
                seen.add(key)
                texts_by_word.setdefault(word, []).append(text)
    return texts_by_word, repeats
