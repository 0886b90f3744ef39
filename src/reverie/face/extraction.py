"""`scheduler.extraction`: what to extract for a cube, and extracting turns that were kept before."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from reverie.base.bridge import Bridge, blocking
from reverie.errors import InvalidMessageError, InvalidSelectionError, ReverieError, WaitTimeoutError
from reverie.handlers.extraction import MOST_TURNS, OVERHEAD, prompt_tokens
from reverie.handlers.mem_read import ReadInput, lack_of_room, room_for_turns
from reverie.memory.buffers import READING, KeepsBuffers
from reverie.memory.extraction import Extraction, KeepsCubes, check_extraction, merged
from reverie.memory.queries import KeepsUnread
from reverie.memory.tenants import tenants_of
from reverie.message import Message, check_ids, derived_id
from reverie.models.interface import ModelMissingError
from reverie.models.openai_chat import model_name
from reverie.models.tokens import tokens_in
from reverie.principal import current_principal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from reverie.face.scheduler import AsyncScheduler
    from reverie.memory.interface import Tenant

__all__ = ["AsyncExtractions", "ExtractionInForce", "ExtractionPlan", "ExtractionProgress", "Extractions"]

PAGE = 500
"""How many turns are read in one step."""
AT_ONCE = 20
"""How many messages of one run wait or run at the same time."""
MOST_BUFFERS = 1000
"""How many buffers are looked at for turns that were given up."""
ANSWER_SHARE = 0.3
"""About how many tokens of facts come out of a token of turns."""


class ExtractionInForce(Extraction, frozen=True, kw_only=True, omit_defaults=False):
    """What is extracted for one cube, and where that was set."""

    user_id: str
    mem_cube_id: str
    own: tuple[str, ...] = ()
    """The names of the fields that were set for the cube itself; the others follow the settings."""

    @property
    def of_cube(self) -> Extraction:
        """What was set for the cube itself; fields that follow the settings are None."""
        return Extraction(**{name: getattr(self, name) for name in self.own})


class ExtractionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What extracting the turns that were kept so far would take; tokens and money are estimates."""

    tenants: int = 0
    turns: int = 0
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = None
    """In the currency of `llm.prices`; None if the model has no price there."""
    days: int | None = 0
    """Days until the tenant with the most turns is done, within `llm.tokens_per_day`; None: never."""
    given_up: int = 0
    """Turns that are not among these, because several runs have failed on them; `retry` lets them be read."""
    model: str = ""
    """The name of the model; empty if no language model is set up."""


class ExtractionProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run has come."""

    turns: int = 0
    """Turns that are read now, by this run or by another one."""
    failed: int = 0
    """Messages that ended as dead letters; `reverie dead` shows why."""
    waiting: int = 0
    """Messages that are put off: a budget is spent, the model is not there, or no worker runs."""
    passed_over: int = 0
    """Turns whose message was ended by a worker that has no language model."""


class _Portion(NamedTuple):
    """Turns that one message reads, mostly with one call."""

    tenant: Tenant
    ids: tuple[str, ...]
    tokens: int
    room: int
    """Tokens of turns that fit into one prompt."""
    besides: int
    """Tokens that a prompt has without them."""


class AsyncExtractions:
    """Sets what to extract, and extracts turns that were kept without a model."""

    def __init__(self, scheduler: AsyncScheduler) -> None:
        self._scheduler = scheduler

    async def get(self, *, user_id: str, mem_cube_id: str = "") -> Extraction:
        """What is extracted for a cube: its own, and what it does not set from the settings."""
        store, tenant = await self._cubes(user_id, mem_cube_id)
        by_settings = self._scheduler.runtime.settings.extraction.of_cube(tenant[1])
        return merged(by_settings, await store.extraction(tenant))

    async def in_force(self, *, user_id: str, mem_cube_id: str = "") -> ExtractionInForce:
        """What is extracted for a cube, and which fields were set for the cube itself."""
        store, tenant = await self._cubes(user_id, mem_cube_id)
        own = msgspec.structs.asdict(await store.extraction(tenant))
        by_settings = self._scheduler.runtime.settings.extraction.of_cube(tenant[1])
        names = tuple(name for name, value in own.items() if value is not None)
        fields = msgspec.structs.asdict(by_settings) | {name: own[name] for name in names}
        return ExtractionInForce(user_id=tenant[0], mem_cube_id=tenant[1], own=names, **fields)

    async def set(self, extraction: Extraction, *, user_id: str, mem_cube_id: str = "") -> None:
        """Set what to extract for a cube from now on. Fields that are None follow the settings.

        `InvalidMessageError` if a text is too long, the schema is not the JSON schema of an object, or all of
        it together leaves no room for turns in a prompt.
        """
        check_extraction(extraction)
        store, tenant = await self._cubes(user_id, mem_cube_id)
        runtime = self._scheduler.runtime
        in_force = merged(runtime.settings.extraction.of_cube(tenant[1]), extraction)
        if problem := lack_of_room(runtime.handler_options, in_force):
            raise InvalidMessageError("extraction", "…", problem)
        await self._scheduler.runtime.audit.note("extraction.set", [tenant[1]], user_id)
        await store.set_extraction(tenant, extraction)

    async def plan(self, *, user_id: str | None = None, mem_cube_id: str | None = None) -> ExtractionPlan:
        """What extracting the turns that no run has read would take."""
        llm = self._scheduler.runtime.settings.llm
        tenants: dict[Tenant, int] = {}
        turns = calls = given = answered = 0
        async for portion in self._portions(user_id, mem_cube_id):
            pieces = -(-portion.tokens // portion.room)  # a long turn is read in several
            of_call = portion.tokens + pieces * portion.besides
            of_answer = round(portion.tokens * ANSWER_SHARE)
            tenants[portion.tenant] = tenants.get(portion.tenant, 0) + of_call + of_answer
            turns += len(portion.ids)
            calls += pieces
            given += of_call
            answered += of_answer
        model = model_name(llm)
        price = llm.prices.get(model)
        most = max(tenants.values(), default=0)
        days: int | None = 1 if most else 0
        if most and llm.tokens_per_day is not None:
            days = -(-most // llm.tokens_per_day) if llm.tokens_per_day else None
        return ExtractionPlan(
            tenants=len(tenants),
            turns=turns,
            calls=calls,
            input_tokens=given,
            output_tokens=answered,
            cost=None if price is None else round((given * price.input + answered * price.output) / 1e6, 4),
            days=days,
            given_up=await self._given_up(user_id, mem_cube_id),
            model=model,
        )

    async def run(
        self,
        *,
        user_id: str | None = None,
        mem_cube_id: str | None = None,
        on_progress: Callable[[ExtractionProgress], None] = lambda _: None,
    ) -> ExtractionProgress:
        """Extract the turns that no run has read, within the budgets; needs a worker, here or elsewhere.

        It can be broken off at any time: what was handed over goes on, and another run does the rest.
        """
        runtime = self._scheduler.runtime
        if not runtime.models.has_language_model:
            raise ModelMissingError("language model", "llm.preset")
        store = runtime.store
        done = failed = waiting = passed_over = 0
        under_way: list[tuple[Message, _Portion]] = []

        def progress() -> ExtractionProgress:
            return ExtractionProgress(turns=done, failed=failed, waiting=waiting, passed_over=passed_over)

        async def settle(most: int) -> None:
            nonlocal done, failed, waiting, passed_over
            while len(under_way) > most:
                message, portion = under_way.pop(0)
                state = await self._ended(message)
                assert isinstance(store, KeepsUnread)
                unread = len(await store.unread(portion.tenant, portion.ids))
                done += len(portion.ids) - unread
                passed_over += unread if state == "completed" else 0
                failed += state == "failed"
                waiting += state == "waiting"
                on_progress(progress())

        async for portion in self._portions(user_id, mem_cube_id):
            under_way.append((await self._hand_over(portion), portion))
            await settle(AT_ONCE)
        await settle(0)
        return progress()

    async def _hand_over(self, portion: _Portion) -> Message:
        """Submit the message that reads a portion, unless one of an earlier run is still under way.

        Its turns are unread: a message of an earlier run that has ended has not read them.
        """
        for number in count():
            message = _message_for(portion, number)
            (receipt,) = await self._scheduler.submit_messages([message])
            if receipt.status == "accepted":
                return message
            (item,) = await self._scheduler.status(message.user_id, message.item_id)
            if item.status in {"waiting", "in_progress"}:
                return message
        raise AssertionError("unreachable")  # pragma: no cover

    async def _given_up(self, user_id: str | None, mem_cube_id: str | None) -> int:
        """How many turns of some tenants, of all by default, were given up."""
        store = self._scheduler.runtime.store
        found = await store.failed_buffers(MOST_BUFFERS) if isinstance(store, KeepsBuffers) else []
        return sum(
            state.rows
            for state in found
            if user_id in {None, state.key.user_id}
            and mem_cube_id in {None, state.key.project_id}
            and current_principal.get().may_touch(*state.key.tenant)
        )

    async def _ended(self, message: Message) -> str:
        """How a message has ended; `waiting` if it was put off, which may take until tomorrow."""
        scheduler = self._scheduler
        while True:
            try:
                item = await scheduler.wait(message.item_id, user_id=message.user_id, timeout=LOOK_S)
            except WaitTimeoutError:
                (item,) = await scheduler.status(message.user_id, message.item_id)
                labels = await scheduler.runtime.backend.views.labels()
                is_handled = any(label.handled for label in labels if label.label == message.label)
                if item.status == "waiting" and (item.error is not None or not is_handled):
                    return "waiting"
                continue
            return "completed" if item.status == "completed" else "failed"

    async def _portions(self, user_id: str | None, mem_cube_id: str | None) -> AsyncIterator[_Portion]:
        """The turns that no run has read, in portions that fit into one prompt."""
        await self._scheduler.open()
        runtime = self._scheduler.runtime
        store = runtime.store
        if not isinstance(store, KeepsUnread):
            raise ReverieError("this memory store does not know which turns were read for facts")
        if mem_cube_id is not None and user_id is None:
            raise InvalidSelectionError("mem_cube_id needs a user_id: ids of cubes are per user")
        principal = current_principal.get()
        if user_id is not None:
            principal.check_touch(user_id, () if mem_cube_id is None else (mem_cube_id,))
        runtime.reads.check_ungoverned("extraction")
        async for tenant in tenants_of(store, user_id=user_id, mem_cube_id=mem_cube_id):
            if not principal.may_touch(*tenant):
                continue
            extraction = await self.get(user_id=tenant[0], mem_cube_id=tenant[1])
            room, besides = room_for_turns(runtime.handler_options, extraction), prompt_tokens(extraction)
            ids: list[str] = []
            tokens = after = 0
            while rows := await store.unread_turns(tenant, after, PAGE):
                after = rows[-1][0]
                for _, memory_id, text in rows:
                    size = tokens_in(text) + OVERHEAD
                    if ids and (tokens + size > room or len(ids) == MOST_TURNS):
                        yield _Portion(tenant, tuple(ids), tokens, room, besides)
                        ids, tokens = [], 0
                    ids.append(memory_id)
                    tokens += size
            if ids:
                yield _Portion(tenant, tuple(ids), tokens, room, besides)

    async def _cubes(self, user_id: str, mem_cube_id: str) -> tuple[KeepsCubes, Tenant]:
        runtime = self._scheduler.runtime
        cube = mem_cube_id or self._scheduler.memory.default_cube or user_id
        check_ids(runtime.limits, user_id=user_id, mem_cube_id=cube)
        await self._scheduler.open()
        if not isinstance(runtime.store, KeepsCubes):
            raise ReverieError("this memory store keeps no settings of single cubes")
        return runtime.store, (user_id, cube)


LOOK_S = 2.0
"""After how many seconds a run looks whether a message was put off."""


def _message_for(portion: _Portion, number: int) -> Message:
    """The message that reads a portion, for the time `number`; it is the same message in every process."""
    user_id, cube = portion.tenant
    again = (str(number),) if number else ()
    return Message(
        user_id=user_id,
        mem_cube_id=cube,
        label=READING,
        item_id=derived_id(user_id, cube, "extract", *again, *portion.ids),
        content=msgspec.json.encode(ReadInput(memory_ids=portion.ids, only_unread=True)).decode(),
    )


class Extractions:
    """Like `AsyncExtractions`, for code that blocks."""

    def __init__(self, inner: AsyncExtractions, bridge: Bridge) -> None:
        self._inner = inner
        self._bridge = bridge

    get = blocking(AsyncExtractions.get)
    in_force = blocking(AsyncExtractions.in_force)
    set = blocking(AsyncExtractions.set)
    plan = blocking(AsyncExtractions.plan)
    run = blocking(AsyncExtractions.run)
