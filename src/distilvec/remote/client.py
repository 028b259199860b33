"""Requests to an endpoint of OpenAI's HTTP interface: answers are checked, and repeated where that can help.

The key comes from an environment variable. No message holds it, not even where a server repeats it. Keys of errors are
relative to the endpoint's section.
"""

from __future__ import annotations

import json
import os
import re
import socket
import ssl
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from email.utils import parsedate_to_datetime
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies

import httpx2

from distilvec.config.endpoint import EndpointSection, is_this_machine
from distilvec.core.errors import DistilvecError, first_line
from distilvec.core.escape import one_line
from distilvec.core.extras import require_extra
from distilvec.core.log import log
from distilvec.core.secrets import hidden, hide, keep_secret
from distilvec.remote.meter import BYTES, Ended, Meter, RequestBatch

if TYPE_CHECKING:
    import tenacity

KEY_VARIABLE = "DISTILVEC_API_KEY"  # of a server that is named by its address alone
_REPEATED = (408, 409, 425, 429)  # statuses of requests that are repeated, besides those from 500 on
_LONGEST_PAUSE = 600.0  # seconds that a server may ask for
_LONGEST_RETRY = 60.0  # seconds between two tries
_SAME_ANSWERS = 4  # wrong in the same way, one after the other: a server that gives them gives them always
_NAME_RETRIES = 2  # where the resolver has no answer for now; a machine without a network says the same
_UNKNOWN_NAME = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}
_ERROR_BYTES = 100_000  # of an answer that is not 200
_MOST_READ = 20_000  # characters of a server's message; fewer than an error of _ERROR_BYTES has in UTF-8
_MOST_SPELLED = 20  # characters in which hide() knows a letter of a key
MOST_BYTES = 1_000_000  # of an answer beside its vectors or texts
# What servers say of a batch with too many texts; the status is 400 or 422
_BATCH_LIMIT = re.compile(
    r"batch.{0,60}(size|limit|larg|big|exceed|max|more than)|(max|limit|exceed|too many|at most|more than).{0,60}"
    r"(batch|inputs|texts|items|strings|elements|array)",
    re.IGNORECASE | re.DOTALL,
)
_BAD_TEXT = (400, 422)
_FIX = "Check the address, the model's name and the further fields of requests (body)."
_SLOW_FIX = "Raise the timeout, or ask for less in one request."
# Variables that belong to a service begin with this, and go to hosts that end in one of these
_SERVICES = {
    "AWS_": ("amazonaws.com", "aws"),
    "AZURE_": ("azure.com", "windows.net"),
    "GITHUB_": ("github.com", "githubcopilot.com", "github.ai"),
    "GH_": ("github.com",),
    "GITLAB_": ("gitlab.com",),
    "GOOGLE_": ("googleapis.com", "google.com"),
    "HF_": ("huggingface.co", "hf.space", "huggingface.cloud"),
    "HUGGING_FACE_": ("huggingface.co", "hf.space", "huggingface.cloud"),
    "HUGGINGFACE_": ("huggingface.co", "hf.space", "huggingface.cloud"),
    "OPENAI_": ("openai.com", "azure.com"),
    "ANTHROPIC_": ("anthropic.com",),
    "COHERE_": ("cohere.com", "cohere.ai"),
    "VOYAGE_": ("voyageai.com",),
    "MISTRAL_": ("mistral.ai",),
    "WANDB_": ("wandb.ai",),
    "NPM_": (),
    "PYPI_": (),
    "TWINE_": (),
    "DOCKER_": (),
    "SSH_": (),
    "PGPASS": (),  # PGPASSWORD and PGPASSFILE; PGVECTOR_KEY may be anybody's
    "POSTGRES": (),
    "MYSQL_": (),
    "REDIS_": (),
    "DATABASE_": (),
    "STRIPE_": (),
    "SLACK_": (),
}

Job = TypeVar("Job")
Answer = TypeVar("Answer")


class _Again(Exception):
    """A request that may be repeated, as often as the section says or `most_retries` times if that is less.

    `fix`: what to change before the same command is run again, as a sentence; empty where waiting may be enough.
    `wrong`: what is wrong with an answer; empty where there was none.
    """

    def __init__(self, problem: str, fix: str = "", most_retries: int | None = None, wrong: str = "") -> None:
        super().__init__(problem)
        self.fix = fix
        self.most_retries = most_retries
        self.wrong = wrong


class BatchRefused(DistilvecError):
    """A request with several texts, or one, that the server refuses because of them.

    `is_limit`: it has said that there are too many or that they are too large.
    """

    def __init__(self, error: DistilvecError, is_limit: bool) -> None:
        super().__init__(error.problem, error.fix, error.key)
        self.is_limit = is_limit


class Client:
    """Sends requests from any number of threads; `meter` counts, paces and caps them.

    `counts` is a file that keeps the counts between processes.
    """

    def __init__(self, section: EndpointSection, counts: Path | None = None) -> None:
        require_extra("api", "")
        self.section = section
        self.meter = Meter(section, counts)
        check_destination(section)
        self._secret = _secret(section.key_variable)
        keep_secret(self._secret)
        self._announced = False
        self._has_answered = False
        self._lock = Lock()
        headers = {"Authorization": f"Bearer {self._secret}"} if self._secret else {}
        # To this machine no request goes through a proxy, which would get what is sent, the key too
        direct = is_this_machine(section.host)
        self._client = http_client(section.concurrency, direct, headers=headers, timeout=section.timeout)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def announce(self) -> None:
        """Log, before the first request, where requests go and which variable goes with them."""
        with self._lock:
            if self._announced:
                return
            self._announced = True
        section = self.section
        with_key = f"with the key in {section.key_variable}" if section.key_variable else "without a key"
        log(f"requests go to {section.base_url}, {with_key}")

    def models(self) -> list[str]:
        """Return the names of the models that the server lists.

        Errors: DistilvecError for a server that cannot be reached, or that does not answer with such a list.
        """
        place = f"{self.section.base_url}/models"
        fix = "Check the address, or name the model."
        self.announce()
        try:
            response, content = self._exchange("GET", place, None, MOST_BYTES)
        except httpx2.RequestError as error:
            reason = self.shown(f"{type(error).__name__}: {error}")
            raise DistilvecError(f"{place} cannot be reached: {reason}.", "Check the address.") from None
        except _Again as error:
            raise DistilvecError(f"{place}: {error}.", fix) from None
        text = self.shown(_decoded(content))
        if response.status_code != 200:
            problem = f"{place} answers with status {response.status_code}{f': {text}' if text else '.'}"
            if response.status_code in (401, 403):
                variable = self.section.key_variable
                fix = f"Check the key in {variable}." if variable else f"Put the server's key into {KEY_VARIABLE}."
            raise DistilvecError(problem, fix)
        try:
            return [one_line(self._hide(str(entry["id"]))) for entry in json.loads(content)["data"]]
        except (LookupError, TypeError, ValueError, RecursionError):
            raise DistilvecError(f"{place} does not list models: {text}", fix) from None

    def ask(
        self,
        path: str,
        body: dict[str, Any],
        batch: RequestBatch,
        read: Callable[[Any], Answer],
        most_bytes: int = MOST_BYTES,
    ) -> Answer:
        """Return `read(answer)` for the JSON of an answer; the request is repeated until `read` raises no ValueError.

        `most_bytes`: the longest answer that can be right. Errors: BatchRefused for texts that the server refuses;
        DistilvecError for the cap, for a refused request, and after the last retry.
        """
        import tenacity

        stopping = self.meter.stopping
        wrong: list[str] = []  # of each try

        def is_last(state: tenacity.RetryCallState) -> bool:
            error = None if state.outcome is None else state.outcome.exception()
            wrong.append(error.wrong if isinstance(error, _Again) else "")
            return _is_always_wrong(wrong) or state.attempt_number > self._most_retries(error)

        attempts = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(_Again),
            stop=lambda state: is_last(state) or stopping.is_set(),
            wait=tenacity.wait_random_exponential(multiplier=self.section.retry_seconds, max=_LONGEST_RETRY),
            sleep=tenacity.sleep_using_event(stopping),
            before_sleep=lambda state: self.meter.add(retries=1),
            reraise=True,
        )
        try:
            return attempts(self._ask, path, body, batch, read, most_bytes)
        except BatchRefused:
            raise
        except (_Again, DistilvecError) as error:
            stopping.set()  # before this thread takes another batch
            if isinstance(error, DistilvecError):
                raise
            retries = attempts.statistics["attempt_number"] - 1
            is_early = retries < self._most_retries(error) and not _is_always_wrong(wrong)
            failed = Ended if is_early else DistilvecError
            raise failed(
                f"{self.section.host} has not answered in full after {retries} retries; the last time: {error}. All "
                "answers until now are kept.",
                f"{error.fix} Run the same command again to go on.".lstrip(),
            ) from None

    def ask_all(
        self,
        jobs: Iterable[Job],
        work: Callable[[Job], Answer],
        keep: Callable[[Job, Answer], None],
    ) -> Generator[Job, None, None]:
        """Run `work`, which sends requests, for all jobs in threads; pass each result to `keep`, then yield its job.

        Few answers wait for `keep` at a time: what it finds wrong with the answers ends the work after few more.
        After an error or Ctrl-C, or when the generator is closed, no other request is sent; the answers to those on
        their way are waited for and kept, since they are paid for. Errors: the first one that is not Ended.
        """
        self.meter.stopping.clear()
        remaining = iter(jobs)
        with ThreadPoolExecutor(self.section.concurrency, "api") as pool:
            waiting = {pool.submit(work, job): job for job in islice(remaining, 2 * self.section.concurrency)}
            try:
                while waiting:
                    done, _ = wait(waiting, return_when=FIRST_COMPLETED)
                    for future in done:
                        result = future.result()
                        job = waiting.pop(future)
                        keep(job, result)
                        for next_job in islice(remaining, 1):
                            waiting[pool.submit(work, next_job)] = next_job
                        yield job
            except BaseException as error:
                self.meter.stopping.set()
                pool.shutdown(cancel_futures=True)
                for future, job in waiting.items():
                    problem = None if future.cancelled() else future.exception()
                    if problem is not None:
                        error = problem if isinstance(error, Ended) else error
                    elif not future.cancelled():
                        keep(job, future.result())
                raise error

    def _most_retries(self, error: BaseException | None) -> int:
        """How often a request that failed with this error is repeated."""
        if isinstance(error, _Again) and error.most_retries is not None:
            return min(error.most_retries, self.section.retries)
        return self.section.retries

    def _ask(
        self, path: str, body: dict[str, Any], batch: RequestBatch, read: Callable[[Any], Answer], most_bytes: int
    ) -> Answer:
        """One request. Errors: _Again where a repetition can help, else DistilvecError."""
        self.announce()
        with self.meter.request(batch):
            try:
                response, content = self._exchange("POST", f"{self.section.base_url}{path}", body, most_bytes)
            except httpx2.RequestError as error:
                is_unresolved = any(isinstance(cause, socket.gaierror) for cause in _causes(error))
                most_retries = _NAME_RETRIES if is_unresolved and not self._has_answered else None
                is_slow = isinstance(error, httpx2.ReadTimeout | httpx2.WriteTimeout)
                fix = _SLOW_FIX if is_slow else ""
                raise _Again(self.shown(f"{type(error).__name__}: {error}"), fix, most_retries) from None
            if response.status_code != 200:
                raise self._refusal(response, response.status_code, content)
            try:
                answer = json.loads(content)
                fields = answer if isinstance(answer, dict) else {}
                if fields.get("error"):
                    raise self._stated_error(fields["error"], response, content)
                self.meter.add(**_used(fields.get("usage") or {}, batch, len(content)))
                return read(answer)
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
                reason = f"no {error}" if isinstance(error, KeyError) else str(error)
                problem = self.shown(f"the answer is not as expected ({reason})")
                beginning = self.shown(_decoded(content))
                if beginning:
                    problem += f"; it begins with {beginning}"
                raise _Again(problem, _FIX, wrong=reason) from None

    def _exchange(
        self, method: str, place: str, body: dict[str, Any] | None, most_bytes: int
    ) -> tuple[httpx2.Response, bytes]:
        """The answer and its content, decompressed, read in pieces: for `timeout` seconds and `most_bytes` at most.

        Of an error the beginning is enough. Errors: _Again for an answer that is too long; DistilvecError for an
        address that has never answered and will not; httpx2.RequestError.
        """
        try:
            return self._read(method, place, body, most_bytes)
        except httpx2.RequestError as error:
            # A server that has answered before may be restarting: then the request is worth repeating
            if not self._has_answered:
                self._refuse_wrong_address(error)
            raise

    def _read(
        self, method: str, place: str, body: dict[str, Any] | None, most_bytes: int
    ) -> tuple[httpx2.Response, bytes]:
        deadline = time.monotonic() + self.section.timeout
        content = bytearray()
        with self._client.stream(method, place, json=body) as response:
            self._has_answered = True
            for piece in response.iter_bytes():
                content += piece
                if response.status_code != 200 and len(content) > _ERROR_BYTES:
                    break
                if len(content) > most_bytes:
                    raise _Again(f"the answer is not as expected (more than {most_bytes:,} bytes)", wrong="too long")
                if time.monotonic() > deadline and not _is_whole(response):
                    problem = f"timed out: the answer has no end after {self.section.timeout:g} seconds"
                    raise _Again(problem, _SLOW_FIX)
        return response, bytes(content)

    def _refuse_wrong_address(self, error: httpx2.RequestError) -> None:
        """Raise DistilvecError for what waiting does not change: an unknown name, a closed port, a bad certificate."""
        section = self.section
        goes_direct = is_this_machine(section.host) or not getproxies()
        place = section.host if goes_direct else f"{section.host} or its proxy"
        for cause in _causes(error):
            if isinstance(cause, socket.gaierror) and cause.errno in _UNKNOWN_NAME:
                fix = f"Check the address ({section.base_url}) and the network."
                raise DistilvecError(f"the name of {place} is not known.", fix) from None
            if isinstance(cause, ConnectionRefusedError):
                problem = f"{place} refuses the connection ({section.base_url})."
                raise DistilvecError(problem, "Start the server, or check the address.") from None
            if isinstance(cause, ssl.SSLCertVerificationError):
                problem = f"the certificate of {section.host} is not valid: {self.shown(cause.verify_message)}."
                fix = "Check the address. Authorities of your own are read from SSL_CERT_FILE."
                raise DistilvecError(problem, fix) from None
            if isinstance(cause, ssl.SSLError) and cause.reason == "WRONG_VERSION_NUMBER":
                problem = f"{section.base_url} does not answer with TLS."
                raise DistilvecError(problem, "Check the port, or begin the address with http://.") from None

    def _stated_error(self, error: Any, response: httpx2.Response, content: bytes) -> Exception:
        """The error for an answer with status 200 that holds one, as OpenRouter's do; its code is that of a status."""
        code = error.get("code") if isinstance(error, dict) else None
        if type(code) is int and 400 <= code < 600:
            return self._refusal(response, code, content)
        text = error.get("message") if isinstance(error, dict) else error
        return _Again(f"the answer is an error: {self.shown(str(text or error))}", _FIX)

    def _refusal(self, response: httpx2.Response, status: int, content: bytes) -> Exception:
        """The error for another status than 200; pauses all requests if the server asks for it."""
        host = self.section.host
        text = self.shown(_decoded(content))
        problem = f"status {status}: {text}" if text else f"status {status}"
        if 300 <= status < 400:
            problem = f"{problem} (it names another address: {self._address(response.headers.get('location', ''))})"
            fix = "Name the address that answers (base_url)."
            return DistilvecError(f"{host} has refused a request with {problem}.", fix)
        if status not in _REPEATED and status < 500:
            fix = f"Check the key ({self.section.key_variable or 'key_variable'})." if status in (401, 403) else _FIX
            error = DistilvecError(f"{host} has refused a request with {problem}.", fix)
            if status == 413 or status in _BAD_TEXT:
                is_limit = status == 413 or _BATCH_LIMIT.search(_decoded(content)) is not None
                return BatchRefused(error, is_limit)
            return error
        pause = _seconds(response.headers.get("retry-after"))
        if pause > _LONGEST_PAUSE:
            asks = f"asks for a pause of {pause / 60:,.0f} minutes ({problem})"
            return DistilvecError(f"{host} {asks}.", "Run the same command again after that.")
        self.meter.pause(pause)
        return _Again(problem)

    def _address(self, text: str) -> str:
        """An address without password and query."""
        try:
            parts = urlsplit(text)
        except ValueError:
            return "none that can be read"
        beginning = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if parts.netloc else ""
        return self.shown(beginning + parts.path)

    def shown(self, text: str) -> str:
        """The beginning of a server's message, on one line, without the key in any spelling and without escapes."""
        hidden = self._hide(text[:_MOST_READ])
        if len(text) > _MOST_READ:  # the end may be the half of a key
            hidden = hidden[: -_MOST_SPELLED * len(self._secret) or None]
        text = one_line(hidden)
        return text if len(text) <= 200 else text[:200] + "…"

    def _hide(self, text: str) -> str:
        return hidden(hide(text, self._secret))  # its own key, however short that is


def _is_always_wrong(wrong: list[str]) -> bool:
    """Whether the last answers to a request were wrong in the same way: `wrong` of each try."""
    last = wrong[-_SAME_ANSWERS:]
    return len(last) == _SAME_ANSWERS and last[0] != "" and len(set(last)) == 1


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, and those that it was raised from."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _decoded(content: bytes) -> str:
    """The text of an error, whatever character set it states."""
    return content.decode("utf-8", "replace")


def _is_whole(response: httpx2.Response) -> bool:
    """Whether all of an answer is here, as far as it has announced its length."""
    return response.headers.get("content-length") == str(response.num_bytes_downloaded)


def _used(usage: dict[str, Any], batch: RequestBatch, size: int) -> dict[str, int]:
    """Tokens read and, if any, written: as the answer states them, else estimates from its `size` in bytes.

    Errors: ValueError for what cannot be a number of tokens of this batch.
    """
    most = 100_000 + 10 * (batch.most + batch.answer)

    def number(name: str) -> int:
        value = usage.get(name)
        if value is None:
            return 0
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most or value % 1:
            raise ValueError(f"usage.{name} is {value}")  # not cut: half of a key in it would be shown
        return int(value)

    written = number("completion_tokens")
    total = number("total_tokens") or written + number("prompt_tokens")
    if not total:
        written = min(batch.answer, size // BYTES)
        total = batch.tokens + written
    return {"tokens": max(0, total - written), **({"written": written} if written > 0 else {})}


def _seconds(text: str | None) -> float:
    """The header Retry-After, in seconds or as a date; 0 if there is none."""
    text = text or "0"
    if text.strip().replace(".", "", 1).isdecimal():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError):  # neither, or a year that no calendar has: the pause of the retries holds
        return 0.0


def _secret(variable: str | None) -> str:
    """The key in an environment variable; DistilvecError if it is not set, or cannot be sent."""
    secret = os.environ.get(variable, "").strip() if variable else ""
    if variable and not secret:
        raise DistilvecError(f"{variable} is not set.", "Set that environment variable.", key=".key_variable")
    if not secret.isascii() or not secret.isprintable():
        raise DistilvecError(f"{variable} holds characters that cannot be sent.", "Set it again.", key=".key_variable")
    return secret


def check_destination(section: EndpointSection) -> None:
    """Raise DistilvecError where a key would leave this machine without TLS, or go to a host of another service.

    `trusted` allows both.
    """
    variable = section.key_variable
    if variable is None or section.trusted or is_this_machine(section.host):
        return
    fix = "If that is right, set the API's key `trusted` (of a server named by its address: DISTILVEC_API_TRUSTED=1)."
    if urlsplit(section.base_url).scheme == "http":
        problem = f"the key in {variable} would be sent to {section.host} in the clear (http)."
        raise DistilvecError(problem, f"Use https. {fix}", key=".base_url")
    for beginning, hosts in _SERVICES.items():
        belongs = any(section.host == host or section.host.endswith(f".{host}") for host in hosts)
        if variable.startswith(beginning) and not belongs:
            problem = f"{variable} would be sent to {section.host}, which is another service."
            raise DistilvecError(problem, f"Name the key of that host. {fix}", key=".key_variable")


def http_client(connections: int, direct: bool = False, **options: Any) -> httpx2.Client:
    """Return a client of the environment's proxies and certificates, with `direct` one without a proxy.

    Mistakes in these become errors that show no password.
    """
    limits = httpx2.Limits(max_connections=connections)
    try:
        # A transport that is passed ignores HTTP_PROXY and its kind; unlike with trust_env=False, SSL_CERT_FILE is read
        transport = httpx2.HTTPTransport(limits=limits) if direct else None
        return httpx2.Client(limits=limits, transport=transport, **options)
    except OSError as error:  # it names no file
        file = os.environ.get("SSL_CERT_FILE")
        if not file:
            raise
        problem = f"the certificates in {file} (SSL_CERT_FILE) cannot be read: {error.strerror or first_line(error)}."
        raise DistilvecError(problem, "Correct SSL_CERT_FILE, or remove it.") from None
    except ImportError as error:
        reason = first_line(error)  # a kind of proxy that needs another package
    except (ValueError, httpx2.InvalidURL):
        # Not quoted: of a password with an unescaped '#' or '/' the message has a piece as the "port"
        reason = "its address is not valid"
    raise DistilvecError(
        f"the proxy that the environment names cannot be used: {reason}.",
        "Correct HTTPS_PROXY, HTTP_PROXY or ALL_PROXY ('#', '/' and '@' of a password are written as %23, %2F and "
        "%40), or name this host in NO_PROXY.",
    )
