"""Language models of OpenAI, or of any server that speaks its protocol for chats."""

from __future__ import annotations

import asyncio
import math
import os
import re
import threading
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from reverie.errors import redacted
from reverie.failures import ERRORS, CredentialsError, FailureKind, WorkError
from reverie.models.interface import (
    AnswerPart,
    AnswerTooLongError,
    BadAnswerError,
    Completion,
    ModelAwayError,
    PromptTooLongError,
    Sampling,
)
from reverie.models.tokens import tokens_in

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence

    from reverie.models.interface import ChatMessage
    from reverie.models.settings import LlmSettings

__all__ = ["PRESETS", "OpenAIChat", "Preset", "model_name", "obstacle_to_calls"]


class Preset(NamedTuple):
    """A provider that speaks the protocol of OpenAI."""

    url: str = ""
    model: str = ""
    """The model that is used if `llm.model` names none."""
    key_variable: str | None = None
    """The environment variable of the key; None if the provider wants no key."""
    limit_field: str = "max_tokens"
    """The name of the field that limits the tokens of an answer."""
    reads_schema: bool = True
    """Whether the provider reads `response_format`; if not, the prompt names the schema."""


PRESETS = {
    "openai": Preset(
        "https://api.openai.com/v1", "gpt-4.1-mini", "OPENAI_API_KEY", limit_field="max_completion_tokens"
    ),
    "ollama": Preset("http://127.0.0.1:11434/v1", "qwen2.5:7b"),
    "anthropic": Preset(
        "https://api.anthropic.com/v1/", "claude-haiku-4-5", "ANTHROPIC_API_KEY", reads_schema=False
    ),
    "custom": Preset(),
}
"""`llm.preset` → provider."""

PACKAGES = ("openai", "aiohttp", "jsonschema", "stamina")
"""The packages of the extra `llm`."""

STATUS_KINDS = {
    **dict.fromkeys((400, 413, 422), FailureKind.INVALID),
    **dict.fromkeys((408, 409, 425), FailureKind.TRANSIENT),
    **dict.fromkeys((401, 403, 404, 405), FailureKind.CREDENTIALS),
    402: FailureKind.QUOTA,
    429: FailureKind.RATE_LIMITED,
}
"""HTTP status → class of failure. Any 5xx is transient.

404 and 405 mean a wrong `llm.url` or `llm.model`: no message is to blame, and all wait for the remedy.
"""
AWAY = {408, 425, 502, 503, 504, 529}
"""HTTP statuses of a server that is not at work, whatever it is asked. A 500 may be due to what was asked."""
MOST_TOKENS_OF_A_CALL = 100_000_000
"""A server that counts more than this is not believed: one call would use up the budget of a lifetime."""
QUOTA_CODES = {
    "insufficient_quota",
    "quota_exceeded",
    "billing_error",
    "billing_not_active",
    "billing_hard_limit_reached",
    "insufficient_balance",
}
"""The provider's error codes that mean a quota, whatever the status."""
RATE_LIMIT_WORDS = re.compile(r"rate.?limit|too many requests|\b429\b|throttl|retry after", re.IGNORECASE)
"""The words that mean a rate limit, if neither the status nor a code decides."""
QUOTA_WORDS = re.compile(
    r"insufficient.quota|exceeded your current quota|quota (is )?(exceeded|exhausted)", re.IGNORECASE
)
"""The words that mean a quota, in the same way."""
TOO_LONG_CODES = {"context_length_exceeded", "exceed_context_size_error"}
TOO_LONG_WORDS = re.compile(r"context.?(length|window|size)|too long|too many (input )?tokens", re.IGNORECASE)
"""The codes and the words that tell, among refusals of class invalid, those of a prompt that is too long."""
CHARACTERS_PER_TOKEN = 16
"""An answer with more characters than this for each allowed token is refused."""
NO_KEY = "none"
"""The key for servers that want none: the client refuses an empty one."""
ALLOWANCE_S = 5.0
"""Seconds after the time-out of the client at which a request is given up from outside."""
LONGEST_RETRY_AFTER_S = 24 * 3600.0
NO_WISHES = Sampling()


def model_name(settings: LlmSettings) -> str:
    """The name of the model that the settings choose; empty with the preset none."""
    return settings.model or PRESETS.get(settings.preset, Preset()).model


def obstacle_to_calls(settings: LlmSettings) -> tuple[str, str] | None:
    """Why no call can be made with these settings, and the remedy; None if nothing is missing here.

    The server of the model is not asked.
    """
    if settings.preset == "none":
        ways = ", ".join(PRESETS)
        return (
            "no language model is set up (llm.preset = none)",
            f"set llm.preset in reverie.yaml, or REVERIE_LLM__PRESET, to one of {ways}",
        )
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        return (
            f"llm.preset = {settings.preset} needs packages that are not installed: {', '.join(missing)}",
            "`pip install 'reverie[llm]'` (from a checkout: `pip install -e '.[llm]'`)",
        )
    variable = PRESETS[settings.preset].key_variable
    if variable and not settings.api_key and not os.environ.get(variable):
        return (
            f"llm.preset = {settings.preset} has no API key",
            f"set llm.api_key, or the variable {variable}",
        )
    return None


class OpenAIChat:
    """Answers prompts by HTTP. Each event loop has one client, which is made at the first call."""

    def __init__(self, settings: LlmSettings) -> None:
        preset = PRESETS[settings.preset]
        self.model = settings.model or preset.model
        """The name of the model."""
        self.url = settings.url or preset.url
        self._settings, self._preset = settings, preset
        self._lock = threading.Lock()
        self._clients: dict[asyncio.AbstractEventLoop, Any] = {}
        self._closing: set[asyncio.Future[None]] = set()
        self._process = os.getpid()

    async def complete(
        self,
        prompt: Sequence[ChatMessage],
        *,
        schema: dict[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> Completion:
        """See `LanguageModel.complete`."""
        client = self._client()
        given = self._request(prompt, schema)
        with self._failures():
            answer = await self._ask(client, given, _headers(idempotency_key))
        return self._completion(prompt, answer)

    async def converse(
        self,
        prompt: Sequence[ChatMessage],
        sampling: Sampling,
        *,
        idempotency_key: str | None = None,
    ) -> AsyncGenerator[AnswerPart | Completion]:
        """See `Converses.converse`."""
        client = self._client()
        given = self._request(prompt, None, sampling)
        given |= {"stream": True, "stream_options": {"include_usage": True}}
        text, counted = "", None
        with self._failures():
            stream = await self._ask(client, given, _headers(idempotency_key))
            async with stream:
                chunks = aiter(stream)
                while True:
                    async with asyncio.timeout(self._settings.timeout_s + ALLOWANCE_S):
                        chunk = await anext(chunks, None)
                    if chunk is None:
                        break
                    counted = chunk if _at(chunk, "usage") else counted
                    part = _part_of(chunk)
                    text += part.text or part.reasoning
                    if part != AnswerPart():
                        yield part
        if not text.strip():
            raise self._bad("the answer is empty")
        yield Completion(text=text, model=self.model, **_tokens(prompt, text, counted))

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Turn the errors of the client into those of `reverie.failures`."""
        openai = import_module("openai")
        try:
            yield
        except openai.APIStatusError as error:
            raise self._refusal(error) from error
        except (openai.APIConnectionError, TimeoutError) as error:
            cause = error.__cause__ or error
            raise ModelAwayError(
                f"{self._where} gave no answer in {self._settings.tries} tries: {error} "
                f"({type(cause).__name__}: {cause}); see llm.url, llm.timeout_s and llm.tries",
                credential=self._settings.credential,
            ) from error
        except openai.OpenAIError as error:
            raise self._by_words(str(error)) from error
        except (ValueError, TypeError, AttributeError) as error:  # not JSON
            raise self._bad(f"the answer cannot be read: {error}") from error

    def disconnect(self) -> None:
        """Close the connections; the next call opens new ones."""
        with self._lock:
            clients, self._clients = self._clients, {}
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        for loop, client in clients.items():
            if loop is running:
                task = loop.create_task(client.close())
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)
            elif not loop.is_closed() and loop.is_running():
                asyncio.run_coroutine_threadsafe(client.close(), loop)

    async def closed(self) -> None:
        """See `ClosesLater.closed`."""
        if self._closing:
            await asyncio.wait(self._closing)

    async def _ask(self, client: Any, given: dict[str, Any], headers: dict[str, str]) -> Any:
        """The provider's answer. A request that fails on its way is made again, after a moment."""
        openai = import_module("openai")
        form: dict[str, Any] = {"cast_to": object}  # plain JSON: building the client's own objects takes long
        if "stream" in given:
            form |= {"stream": True, "stream_cls": openai.AsyncStream[object]}
        attempts = _retries().retry_context(
            on=(openai.APIConnectionError, TimeoutError),
            attempts=self._settings.tries,
            timeout=None,
            wait_initial=1.0,
            wait_jitter=1.0,
            wait_max=2.0**self._settings.tries,
        )
        async for attempt in attempts:
            with attempt:
                # The client measures each read, and a server that sends a byte now and then never ends.
                async with asyncio.timeout(self._settings.timeout_s + ALLOWANCE_S):
                    # The client's own method `create` walks through the whole prompt, which takes long.
                    return await client.post(
                        "/chat/completions", body=given, options={"headers": headers}, **form
                    )
        raise AssertionError("unreachable")  # pragma: no cover

    def _request(
        self,
        prompt: Sequence[ChatMessage],
        schema: dict[str, Any] | None,
        sampling: Sampling = NO_WISHES,
    ) -> dict[str, Any]:
        messages = [{"role": message.role, "content": message.content} for message in prompt]
        given: dict[str, Any] = {
            "model": self.model,
            "messages": messages,
            self._preset.limit_field: sampling.max_tokens or self._settings.max_output_tokens,
        }
        temperature = self._settings.temperature if sampling.temperature is None else sampling.temperature
        if temperature is not None:
            given["temperature"] = temperature
        if sampling.top_p is not None:
            given["top_p"] = sampling.top_p
        if schema is not None:
            form = {"name": "answer", "schema": schema}
            given["response_format"] = {"type": "json_schema", "json_schema": form}
            if not self._preset.reads_schema:
                wanted = msgspec.json.encode(schema).decode()
                text = f"Answer with JSON alone, no other words. It must fit this JSON schema: {wanted}"
                messages.insert(0, {"role": "system", "content": text})
        return given

    def _completion(self, prompt: Sequence[ChatMessage], answer: Any) -> Completion:
        text = _text(_at(answer, "choices", 0, "message", "content"))
        completion = Completion(text=text, model=self.model, **_tokens(prompt, text, answer))
        if not _at(answer, "choices"):
            problem = _at(answer, "error") or "the answer has no choices"
            raise self._by_words(str(problem), completion if _at(answer, "usage") else None)
        if _at(answer, "choices", 0, "finish_reason") == "length":
            limit = self._settings.max_output_tokens
            reason = f"the answer was cut off after {limit} tokens (llm.max_output_tokens)"
            raise self._bad(reason, completion, AnswerTooLongError)
        if not text.strip():
            raise self._bad("the answer is empty", completion)
        longest = CHARACTERS_PER_TOKEN * self._settings.max_output_tokens
        if len(text) > longest:
            reason = f"the answer has {len(text)} characters, at most {longest} are allowed"
            raise self._bad(f"{reason} (llm.max_output_tokens)", completion, AnswerTooLongError)
        return completion

    def _refusal(self, error: Any) -> WorkError:
        """The typed error of an answer with an HTTP status that is an error."""
        status: int = error.status_code
        kind = FailureKind.TRANSIENT if status >= 500 else STATUS_KINDS.get(status)
        if status < 500 and QUOTA_CODES & _codes(error):
            kind = FailureKind.QUOTA
        text = f"{self._where} answered {status} for the model {self.model}: {error.message}"
        if status in {404, 405}:
            text += " (see llm.url and llm.model)"
        if kind is None:
            kind = _kind_by_words(error.message) or FailureKind.BUG
        if kind is FailureKind.INVALID and (TOO_LONG_CODES & _codes(error) or TOO_LONG_WORDS.search(text)):
            return PromptTooLongError(text, credential=self._settings.credential)
        after = retry_after(error.response.headers)
        error_type = ModelAwayError if status in AWAY else ERRORS[kind]
        return error_type(text, retry_after=after, credential=self._settings.credential)

    def _by_words(self, problem: str, completion: Completion | None = None) -> WorkError:
        """The error for a problem that has neither a status nor a type."""
        kind = _kind_by_words(problem)
        if kind is None:
            return self._bad(problem, completion)
        text = f"{self._where} refuses the model {self.model}: {problem}"
        return ERRORS[kind](text, credential=self._settings.credential)

    def _bad(
        self,
        problem: str,
        completion: Completion | None = None,
        error: type[BadAnswerError] = BadAnswerError,
    ) -> BadAnswerError:
        text = f"{self._where}, model {self.model}: {problem}"
        return error(text, completion, credential=self._settings.credential)

    def _client(self) -> Any:
        """The client of the running event loop."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._process != os.getpid():  # a fork must not use the connections of its parent
                self._process, self._clients = os.getpid(), {}
            client = self._clients.get(loop)
            if client is None:
                self._clients = {known: one for known, one in self._clients.items() if not known.is_closed()}
                client = self._clients[loop] = self._new_client()
        return client

    def _new_client(self) -> Any:
        credential = self._settings.credential
        try:
            openai = import_module("openai")
            _retries()
        except ImportError as error:
            reason = f"a language model needs the extra 'llm' ({error}): pip install 'reverie[llm]'"
            raise CredentialsError(reason, credential=credential) from error
        variable = self._preset.key_variable
        key = self._settings.api_key or (os.environ.get(variable) if variable else NO_KEY)
        if not key:
            reason = f"no API key for llm.preset = {self._settings.preset}: set llm.api_key, or the variable "
            raise CredentialsError(f"{reason}{variable}", credential=credential)
        return openai.AsyncOpenAI(
            api_key=key,
            base_url=self.url,
            timeout=self._settings.timeout_s,
            max_retries=0,
            http_client=openai.DefaultAioHttpClient(),  # takes half the time of the other one
        )

    @property
    def _where(self) -> str:
        return redacted(self.url)


def _headers(idempotency_key: str | None) -> dict[str, str]:
    return {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}


def _part_of(chunk: Any) -> AnswerPart:
    """The part of an answer that a chunk of the stream brings."""
    delta = _at(chunk, "choices", 0, "delta")
    return AnswerPart(text=_text(_at(delta, "content")), reasoning=_text(_at(delta, "reasoning_content")))


def _at(answer: Any, *path: str | int) -> Any:
    """What stands at a path in the JSON of an answer; None if the answer has no such place."""
    for step in path:
        try:
            answer = answer[step]
        except (KeyError, IndexError, TypeError):
            return None
    return answer


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _retries() -> Any:
    """The package `stamina`, set up to report retries to the log.

    Its own hook prints them to the standard output of a program that has not configured structlog.
    """
    stamina = import_module("stamina")
    hooks = stamina.instrumentation.get_on_retry_hooks()
    kept = [hook for hook in hooks if getattr(hook, "__module__", "") != "stamina.instrumentation._structlog"]
    if len(kept) < len(hooks) and not import_module("structlog").is_configured():
        stamina.instrumentation.set_on_retry_hooks([*kept, stamina.instrumentation.LoggingOnRetryHook])
    return stamina


def _kind_by_words(problem: str) -> FailureKind | None:
    if QUOTA_WORDS.search(problem):
        return FailureKind.QUOTA
    return FailureKind.RATE_LIMITED if RATE_LIMIT_WORDS.search(problem) else None


def _tokens(prompt: Sequence[ChatMessage], text: str, answer: Any) -> dict[str, int]:
    """The tokens that the server counted; estimates if it counted none."""
    given, answered = _at(answer, "usage", "prompt_tokens"), _at(answer, "usage", "completion_tokens")
    if not _is_count(given) or not _is_count(answered) or not (given or answered):
        given, answered = sum(tokens_in(message.content) for message in prompt), tokens_in(text)
    return {"input_tokens": given, "output_tokens": answered}


def _is_count(value: Any) -> bool:
    """Whether a value can be the number of tokens of one call."""
    return type(value) is int and 0 <= value <= MOST_TOKENS_OF_A_CALL


def _codes(error: Any) -> set[str]:
    """The provider's own error codes, from the error and from the body of the answer."""
    body = error.body if isinstance(error.body, dict) else {}
    inner = body.get("error")
    holders = (body, inner if isinstance(inner, dict) else {}, {"code": error.code, "type": error.type})
    return {str(holder.get(name)).lower() for holder in holders for name in ("code", "type")}


def retry_after(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """The seconds that the headers of an answer ask to wait; None if they ask for no wait."""
    seconds = _number(headers.get("retry-after-ms"), 0.001)
    if seconds is None:
        seconds = _number(headers.get("retry-after"))
    date = headers.get("retry-after")
    if seconds is None and date is not None:
        try:
            moment = parsedate_to_datetime(date)
        except (ValueError, TypeError):
            return None
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        seconds = (moment - (now or datetime.now(UTC))).total_seconds()
    return None if seconds is None else min(max(0.0, seconds), LONGEST_RETRY_AFTER_S)


def _number(text: str | None, unit: float = 1.0) -> float | None:
    try:
        number = math.nan if text is None else float(text) * unit
    except ValueError:
        return None
    return None if math.isnan(number) else number
