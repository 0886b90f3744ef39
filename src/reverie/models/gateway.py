"""The gateway to the language model: budgets, permits, costs, and answers that fit their schema."""

from __future__ import annotations

import asyncio
import hashlib
import re
from contextlib import aclosing
from importlib import import_module
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from reverie.base.logs import get_logger
from reverie.errors import InvalidSettingError
from reverie.failures import BudgetError
from reverie.models.budgets import Budgets
from reverie.models.interface import (
    AnswerTooLongError,
    BadAnswerError,
    ChatMessage,
    Completion,
    ModelMissingError,
)
from reverie.models.openai_chat import model_name
from reverie.models.permits import PermitPool
from reverie.models.settings import Price
from reverie.models.tokens import tokens_in
from reverie.models.usage import Spent

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    from reverie.backends.interface import SharedState
    from reverie.base.clock import Clock
    from reverie.models.budgets import SpentBudget
    from reverie.models.interface import AnswerPart, Models, Sampling
    from reverie.models.settings import LlmSettings
    from reverie.models.usage import Ledger

__all__ = ["Gateway"]

log = get_logger(__name__)

WITHIN_S = 300.0
"""Seconds that a call and its wait may take, if the caller does not say."""
THOUGHT = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)
"""What some models think before they answer, where the server does not separate it."""
FENCE = re.compile(r"```(?:json)?\s*\n(.*?)\n?\s*```", re.DOTALL | re.IGNORECASE)
"""The fence that many models put around JSON, with words before and after."""
NOTHING = Price(input=0, output=0)
WISH_TOKENS = 200
"""About how many tokens the wish for a better answer has at most."""


class _Call(NamedTuple):
    """One call: its idempotency key, the run that makes it, who pays for what, and the form of the answer."""

    key: str
    run: str
    tenant: tuple[str, str]
    label: str
    schema: dict[str, Any] | None


class Gateway:
    """Makes all calls of the language model of one process."""

    def __init__(
        self,
        models: Models,
        ledger: Ledger,
        shared: SharedState,
        settings: LlmSettings,
        clock: Clock,
        *,
        on_spent: Callable[[SpentBudget], Awaitable[None]] | None = None,
    ) -> None:
        """`on_spent` is called with each budget that refuses a call; it must not fail."""
        self._models = models
        self._settings = settings
        self.ledger = ledger
        self._budgets = Budgets(ledger, settings, clock, on_spent)
        self._permits = PermitPool(shared, settings, clock)

    @property
    def has_model(self) -> bool:
        """Whether a language model is set up."""
        return self._models.has_language_model

    async def complete(
        self,
        prompt: Sequence[ChatMessage],
        *,
        schema: dict[str, Any] | None = None,
        tenant: tuple[str, str],
        label: str,
        key: str,
        run: str = "",
        within_s: float = WITHIN_S,
    ) -> Completion:
        """The answer to a prompt; its cost is in the ledger when this returns.

        `key` names the work that asks: the same prompt of the same work is the same call. `run` names the run
        of the work, because the provider may ask money for each run in which a call is repeated. `within_s`
        are the seconds that the caller has. With a schema, the text of the answer is JSON that fits the
        schema. An answer that was too long is not repaired: `AnswerTooLongError`, and less can be asked.
        """
        if not self.has_model:
            raise ModelMissingError("language model", "llm.preset")
        check = _checker(schema)
        call = _Call(_call_key(key, prompt, schema, 0), run, tenant, label, schema)
        try:
            return check(await self._make(call, prompt, within_s))
        except AnswerTooLongError:
            raise
        except BadAnswerError as error:
            bad = error
        log.info("llm.repair", label=label, problem=bad.reason)
        asked = [*prompt, *_repair(bad, self._room_beside(prompt))]
        call = call._replace(key=_call_key(key, prompt, schema, 1))
        try:
            return check(await self._make(call, asked, within_s))
        except BudgetError:
            # A message that waits for another day would pay for the bad answer again on each.
            raise bad from None

    async def converse(
        self,
        prompt: Sequence[ChatMessage],
        sampling: Sampling,
        *,
        tenant: tuple[str, str],
        label: str,
        key: str,
        within_s: float = WITHIN_S,
    ) -> AsyncGenerator[AnswerPart]:
        """Yield the parts of an answer to a prompt; its cost is in the ledger when this ends.

        The arguments are those of `complete`. If the caller closes this before the end, what was answered by
        then is paid.
        """
        if not self.has_model:
            raise ModelMissingError("language model", "llm.preset")
        call = _Call(_call_key(key, prompt, None, 0), "", tenant, label, None)
        given = sum(tokens_in(one.content) for one in prompt)
        most = min(sampling.max_tokens or self._settings.max_output_tokens, self._settings.max_output_tokens)
        sampling = msgspec.structs.replace(sampling, max_tokens=most)
        wait_s = max(within_s - self._settings.timeout_s, within_s / 2)
        micros = self._micros(model_name(self._settings), given, most)
        completion: Completion | None = None
        text = ""
        async with self._budgets.reserve(tenant, given + most, micros), self._permits.slot(wait_s):
            try:
                async with aclosing(
                    self._models.converse(prompt, sampling, idempotency_key=call.key)
                ) as parts:
                    async for part in parts:
                        if isinstance(part, Completion):
                            completion = part
                        else:
                            text += part.text + part.reasoning
                            yield part
            finally:
                if completion is None and text:
                    completion = Completion(
                        text=text,
                        input_tokens=given,
                        output_tokens=tokens_in(text),
                        model=model_name(self._settings),
                    )
                if completion is not None:
                    await asyncio.shield(self._write(call, completion))

    def budgets_spent(self) -> list[SpentBudget]:
        """The budgets of the present day that are spent, as far as this process has met them."""
        return self._budgets.spent()

    async def close(self) -> None:
        """Give all permits back. The gateway can be used again."""
        await self._permits.close()

    def _room_beside(self, prompt: Sequence[ChatMessage]) -> int:
        """How many tokens of the window a prompt and its answer leave free."""
        given = sum(tokens_in(one.content) for one in prompt)
        return self._settings.window_tokens - self._settings.max_output_tokens - given - WISH_TOKENS

    async def _make(self, call: _Call, prompt: Sequence[ChatMessage], within_s: float) -> Completion:
        """Make one call within the budget, under a permit, and write its cost to the ledger."""
        given, answered = sum(tokens_in(one.content) for one in prompt), self._settings.max_output_tokens
        micros = self._micros(model_name(self._settings), given, answered)
        wait_s = max(within_s - self._settings.timeout_s, within_s / 2)
        async with self._budgets.reserve(call.tenant, given + answered, micros, call.label):
            try:
                async with self._permits.slot(wait_s):
                    completion = await self._models.complete(
                        prompt, schema=call.schema, idempotency_key=call.key
                    )
            except BadAnswerError as error:
                if error.completion is not None:
                    await self._write(call, error.completion)
                raise
            await self._write(call, completion)
        return completion

    async def _write(self, call: _Call, completion: Completion) -> None:
        spent = Spent(
            key=f"{call.key}-{call.run}" if call.run else call.key,
            day=self._budgets.day,
            user_id=call.tenant[0],
            mem_cube_id=call.tenant[1],
            label=call.label,
            model=completion.model,
            input_tokens=completion.input_tokens,
            output_tokens=completion.output_tokens,
            micros=self._micros(completion.model, completion.input_tokens, completion.output_tokens),
        )
        await self._budgets.write(spent)

    def _micros(self, model: str, given: int, answered: int) -> int:
        """The price of a call. A million tokens cost `price` units, thus one token costs `price` micros."""
        prices = self._settings.prices
        price = prices.get(model) or prices.get(model_name(self._settings), NOTHING)
        return round(given * price.input + answered * price.output)


class _NoCheck:
    """Accepts every answer."""

    def __call__(self, completion: Completion) -> Completion:
        return completion


class _SchemaCheck:
    """Accepts answers that are JSON and fit a schema."""

    def __init__(self, schema: dict[str, Any]) -> None:
        try:
            jsonschema = import_module("jsonschema")
        except ImportError as error:
            reason = f"answers by a schema need the extra 'llm' ({error}): pip install 'reverie[llm]'"
            raise InvalidSettingError("llm.preset", "…", reason) from error
        self._schema = schema
        self._validator = jsonschema.validators.validator_for(schema)(schema)

    def __call__(self, completion: Completion) -> Completion:
        try:
            text, value = _json_in(completion.text)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise BadAnswerError(f"the answer is not JSON: {error}", completion) from error
        asked = _only_asked(value, self._schema)
        problem = self._problem_of(asked)
        if problem is not None:
            without_nulls = _without_nulls(asked)  # many models write null for what is not there
            if self._problem_of(without_nulls) is None:
                asked, problem = without_nulls, None
        if problem is not None:
            wanted = msgspec.json.encode(problem.validator_value).decode()[:300]
            # The message of the problem itself has parts of the answer, which must not get into logs.
            reason = (
                f"the answer does not fit the schema at {problem.json_path}: {problem.validator} {wanted}"
            )
            is_list_itself = problem.validator == "maxItems" and len(problem.absolute_path) <= 1
            raise (AnswerTooLongError if is_list_itself else BadAnswerError)(reason, completion)
        if asked is not value:
            text = msgspec.json.encode(asked).decode()
        return msgspec.structs.replace(completion, text=text)

    def _problem_of(self, value: Any) -> Any:
        """The first thing in a value that does not fit the schema; None if it fits."""
        return next(iter(self._validator.iter_errors(value)), None)


def _json_in(answer: str) -> tuple[str, Any]:
    """The JSON in an answer, and its value; thoughts before it and words around a fence are left out."""
    text = THOUGHT.sub("", answer, count=1)
    try:
        return text, msgspec.json.decode(text)
    except msgspec.DecodeError:
        fenced = FENCE.search(text)
        if fenced is None:
            raise
        return fenced[1], msgspec.json.decode(fenced[1])


def _only_asked(value: Any, schema: Any) -> Any:
    """The value without the members that the schema forbids: nobody will read them."""
    if isinstance(value, dict) and isinstance(schema, dict) and isinstance(schema.get("properties"), dict):
        properties = schema["properties"]
        is_closed = schema.get("additionalProperties") is False
        kept = {
            name: _only_asked(part, properties.get(name))
            for name, part in value.items()
            if name in properties or not is_closed
        }
        is_same = kept.keys() == value.keys() and all(part is value[name] for name, part in kept.items())
        return value if is_same else kept
    if isinstance(value, list) and isinstance(schema, dict):
        parts = [_only_asked(part, schema.get("items")) for part in value]
        return value if all(map(is_, parts, value)) else parts
    return value


def _without_nulls(value: Any) -> Any:
    """The value without the members that are null."""
    if isinstance(value, dict):
        return {name: _without_nulls(part) for name, part in value.items() if part is not None}
    return [_without_nulls(part) for part in value] if isinstance(value, list) else value


def _checker(schema: dict[str, Any] | None) -> _NoCheck | _SchemaCheck:
    return _NoCheck() if schema is None else _SchemaCheck(schema)


def _repair(error: BadAnswerError, room: int) -> list[ChatMessage]:
    """The messages that follow the prompt, to ask for a better answer.

    The bad answer is among them if it has at most `room` tokens.
    """
    text = (
        f"Your last answer cannot be used: {error.reason}. Answer again, completely and without this problem."
    )
    wish = ChatMessage("user", text)
    bad = "" if error.completion is None else error.completion.text
    if not bad.strip() or tokens_in(bad) > room:
        return [wish]
    return [ChatMessage("assistant", bad), wish]


def _call_key(key: str, prompt: Sequence[ChatMessage], schema: dict[str, Any] | None, number: int) -> str:
    """The idempotency key of a call. The provider cannot read the names of users from it."""
    asked = msgspec.json.encode([prompt, schema], order="sorted")
    return f"{_digest(key.encode())}-{_digest(asked)}-{number}"


def _digest(value: bytes) -> str:
    return hashlib.sha256(value).hexdigest()[:32]
