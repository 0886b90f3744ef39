"""`scheduler.upkeep`: what upkeep would do, doing it now, and taking the last pass back."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from reverie.base.bridge import Bridge, blocking
from reverie.dispatch.upkeep import upkeep_of
from reverie.effect import UndoPass
from reverie.errors import UnknownItemError, WaitTimeoutError
from reverie.handlers import mem_organize, memory_compression
from reverie.handlers.grouping import TIERS, find_groups
from reverie.handlers.upkeep import UpkeepInput, window_start
from reverie.memory.queries import KeepsUnread
from reverie.memory.tenants import tenants_of
from reverie.memory.upkeep import PASSES_KEPT
from reverie.message import Message, check_ids, new_item_id
from reverie.models.openai_chat import model_name
from reverie.models.tokens import tokens_in
from reverie.principal import current_principal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from reverie.backends.views import ItemStatus
    from reverie.dispatch.options import HandlerOptions
    from reverie.face.scheduler import AsyncScheduler
    from reverie.handlers.grouping import Reads, Rules
    from reverie.memory.interface import MemoryStore, Tenant
    from reverie.memory.item import MemoryItem
    from reverie.memory.upkeep import ChangedItem, Pass

__all__ = ["AsyncUpkeep", "PlannedGroup", "UndonePass", "Upkeep", "UpkeepPlan", "UpkeepProgress"]

MOST_LISTED = 100
"""How many groups of each kind a plan lists; its numbers count all of them."""
LONGEST_TEXT = 200
"""How many characters of each text a plan shows."""
MOST_COUNTED = 10_000
"""Up to how many memories that nobody has asked for a plan counts in a cube."""
ORGANIZE_TOKENS = 60
"""About how many tokens an answer about similar memories has."""
COMPRESSED = 0.6
"""About how many tokens are left of a token that is compressed."""
LOOK_S = 2.0
"""After how many seconds a run looks whether its messages were put off."""
PROMPTS = {
    "mem_organize": mem_organize.organize_prompt,
    "memory_compression": memory_compression.compress_prompt,
}
RULES: tuple[Rules, ...] = (mem_organize.RULES, memory_compression.RULES)


class PlannedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Memories that upkeep would merge, or let the language model decide upon."""

    label: str
    """The label of the upkeep that would do it."""
    mem_cube_id: str
    memory_ids: tuple[str, ...]
    texts: tuple[str, ...]
    """Their texts, the long ones shortened."""


class UpkeepPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What upkeep would do for a user now. Tokens and money are estimates."""

    changed: int = 0
    """Memories that were written or changed since the last pass."""
    merges: int = 0
    """Groups of memories that say the same, and would become one."""
    groups: int = 0
    """Groups of similar memories that the language model would decide upon; without one they stay."""
    archived: int = 0
    """Memories that would move to the archive, counted up to 10,000 in a cube."""
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = None
    """In the currency of `llm.prices`; None if the model has no price there."""
    model: str = ""
    """The name of the model; empty if no language model is set up."""
    merged: tuple[PlannedGroup, ...] = ()
    similar: tuple[PlannedGroup, ...] = ()


class UpkeepProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run of upkeep has come, in messages."""

    pass_id: str
    done: int = 0
    total: int = 0
    """Grows while groups are found."""
    failed: int = 0
    """Messages that ended as dead letters; `reverie dead` shows why."""
    waiting: int = 0
    """Messages that are put off: the budget of upkeep is spent, the model is not there, or no worker runs."""
    changes: int = 0
    """Changes of memories, when the run has ended."""


class UndonePass(msgspec.Struct, frozen=True, kw_only=True):
    """A pass that was taken back."""

    pass_id: str
    label: str
    began_at: int
    mem_cube_ids: tuple[str, ...]
    changes: int


class StoreReads:
    """See `reverie.handlers.grouping.Reads`: directly of a store."""

    def __init__(self, store: MemoryStore, tenant: Tenant) -> None:
        upkeep = upkeep_of(store)
        self._store, self._tenant = store, tenant
        self.items = partial(store.items, tenant)
        self.changed = partial(upkeep.changed, tenant)
        self.similar = partial(upkeep.similar, tenant)
        self.coldest = partial(upkeep.coldest, tenant)
        self.tier_counts = partial(upkeep.tier_counts, tenant)
        self.judged = partial(upkeep.judged, tenant)
        self.until = partial(upkeep.upkeep_until, tenant)

    async def unread(self, memory_ids: Sequence[str]) -> list[str]:
        """See `KeepsUnread.unread`."""
        if not isinstance(self._store, KeepsUnread):
            return list(memory_ids)
        return await self._store.unread(self._tenant, memory_ids)


class AsyncUpkeep:
    """Plans, runs and undoes upkeep."""

    def __init__(self, scheduler: AsyncScheduler) -> None:
        self._scheduler = scheduler

    async def plan(self, *, user_id: str, mem_cube_id: str | None = None) -> UpkeepPlan:
        """What upkeep would do with the memories of a user, and what that would cost. Nothing is changed."""
        counting = _Counting(self._scheduler)
        async for tenant in self._tenants(user_id, mem_cube_id):
            reads = StoreReads(self._scheduler.runtime.store, tenant)
            for rules in RULES:
                await counting.count_groups(reads, rules, tenant[1])
            await counting.count_archived(reads)
        return counting.plan()

    async def run(
        self,
        *,
        user_id: str,
        mem_cube_id: str | None = None,
        on_progress: Callable[[UpkeepProgress], None] = lambda _: None,
    ) -> UpkeepProgress:
        """Organise, archive and compress the memories of a user now; needs a worker, here or elsewhere.

        All of it is one pass, which `undo` takes back. It can be broken off at any time: what was handed over
        goes on.
        """
        state = UpkeepProgress(pass_id=new_item_id())
        tenants = [tenant async for tenant in self._tenants(user_id, mem_cube_id)]
        for rules in RULES:
            messages = [_first_message(tenant, rules.label, state.pass_id) for tenant in tenants]
            if messages:
                await self._scheduler.submit_messages(messages)
                state = await self._ended(user_id, state, on_progress)
        passes = [one for tenant in tenants for one in await self._passes(tenant) if one.id == state.pass_id]
        return msgspec.structs.replace(state, changes=sum(one.changes for one in passes))

    async def undo(self, *, user_id: str, mem_cube_id: str | None = None) -> UndonePass | None:
        """Take the last pass of upkeep back that is not undone yet; None if there is none.

        Merged, replaced and archived memories are again what they were. What was deleted since stays deleted,
        and a memory that somebody has changed since stays as it is. What was undone is not done again.
        """
        found: dict[Tenant, list[Pass]] = {}
        async for tenant in self._tenants(user_id, mem_cube_id):
            found[tenant] = [one for one in await self._passes(tenant) if one.undone_at is None]
        last = max((one for own in found.values() for one in own), key=_began, default=None)
        if last is None:
            return None
        own = {tenant: one for tenant, passes in found.items() for one in passes if one.id == last.id}
        for tenant in own:
            await self._scheduler.runtime.store.change(tenant, [UndoPass(pass_id=last.id)])
        return UndonePass(
            pass_id=last.id,
            label=last.label,
            began_at=last.began_at,
            mem_cube_ids=tuple(cube for _, cube in own),
            changes=sum(one.changes for one in own.values()),
        )

    async def _passes(self, tenant: Tenant) -> list[Pass]:
        return await upkeep_of(self._scheduler.runtime.store).passes(tenant, PASSES_KEPT)

    async def _tenants(self, user_id: str, mem_cube_id: str | None) -> AsyncIterator[Tenant]:
        """The tenants of a user that the caller may touch; under governance, upkeep is for admins."""
        runtime, principal = self._scheduler.runtime, current_principal.get()
        check_ids(runtime.limits, user_id=user_id, mem_cube_id=mem_cube_id)
        principal.check_touch(user_id, () if mem_cube_id is None else (mem_cube_id,))
        runtime.reads.check_ungoverned("upkeep")
        await self._scheduler.open()
        async for tenant in tenants_of(runtime.store, user_id=user_id, mem_cube_id=mem_cube_id):
            if principal.may_touch(*tenant):
                yield tenant

    async def _ended(
        self, user_id: str, state: UpkeepProgress, on_progress: Callable[[UpkeepProgress], None]
    ) -> UpkeepProgress:
        """Wait until all messages of a pass have ended, or are put off."""
        scheduler = self._scheduler
        while True:
            rows = await scheduler.status(user_id, state.pass_id)
            left = [row for row in rows if not row.status.ended]
            state = msgspec.structs.replace(
                state,
                done=len(rows) - len(left),
                total=len(rows),
                failed=sum(row.status == "failed" for row in rows),
            )
            on_progress(state)
            if not left:
                return state
            try:
                await scheduler.wait(left[0].item_id, user_id=user_id, timeout=LOOK_S)
            except (WaitTimeoutError, UnknownItemError):
                if await self._are_put_off(await scheduler.status(user_id, state.pass_id)):
                    return msgspec.structs.replace(state, waiting=len(left))

    async def _are_put_off(self, rows: Sequence[ItemStatus]) -> bool:
        """Whether all messages that have not ended wait for something that may take long."""
        labels = await self._scheduler.runtime.backend.views.labels()
        handled = {label.label for label in labels if label.handled}
        left = [row for row in rows if not row.status.ended]
        waiting = [row for row in left if row.status == "waiting"]
        held = {row.task_type for row in waiting if row.error is not None}
        return len(waiting) == len(left) and all(
            row.task_type in held or row.task_type not in handled for row in left
        )


def _first_message(tenant: Tenant, label: str, pass_id: str) -> Message:
    return Message(
        user_id=tenant[0],
        mem_cube_id=tenant[1],
        label=label,
        task_id=pass_id,
        content=msgspec.json.encode(UpkeepInput(pass_id=pass_id)).decode(),
    )


def _began(one: Pass) -> int:
    return one.began_at


class _Counting:
    """A plan while it is made."""

    def __init__(self, scheduler: AsyncScheduler) -> None:
        self._runtime = scheduler.runtime
        self._options: HandlerOptions = msgspec.structs.replace(
            self._runtime.handler_options, now=self._runtime.clock.now()
        )
        self._changed: set[str] = set()
        self._archived: set[str] = set()
        self._merges: dict[frozenset[str], PlannedGroup] = {}
        self._groups: list[PlannedGroup] = []
        self._given = self._answered = 0

    async def count_groups(self, reads: Reads, rules: Rules, cube: str) -> None:
        """Look at all that was changed since the last pass of a label."""
        options, after = self._options, 0
        interval = options.compression_interval_s if rules.label == "memory_compression" else 0
        asked = UpkeepInput(interval_seconds=interval)
        since = await window_start(reads, rules, options.now, asked)
        seen: set[frozenset[str]] = set()
        while True:
            page: list[ChangedItem] = await reads.changed(since, after, options.upkeep_batch)
            found = await find_groups(reads, [one.item for one in page], options, rules)
            self._changed |= {one.item.id for one in page}
            for members in found.merges:
                group = _planned(rules, cube, members)
                self._merges.setdefault(frozenset(group.memory_ids), group)
            for members in found.groups:
                group = _planned(rules, cube, members)
                if frozenset(group.memory_ids) not in seen:
                    seen.add(frozenset(group.memory_ids))
                    self._groups.append(group)
                    self._count_cost(rules.label, members)
            if len(page) < options.upkeep_batch:
                return
            after = page[-1].seq

    def _count_cost(self, label: str, members: Sequence[MemoryItem]) -> None:
        self._given += tokens_in(PROMPTS[label](members))
        texts = sum(tokens_in(item.text) for item in members)
        self._answered += ORGANIZE_TOKENS if label == "mem_organize" else round(texts * COMPRESSED)

    async def count_archived(self, reads: Reads) -> None:
        """Count what is over a limit, and what nobody has asked for."""
        options = self._options
        self._archived |= {item.id for item in await mem_organize.excess_of(reads, options)}
        before = options.now - options.archive_after_ms
        for tier in TIERS:
            self._archived |= {item.id for item in await reads.coldest(tier, before, MOST_COUNTED)}

    def plan(self) -> UpkeepPlan:
        """All that was counted."""
        llm = self._runtime.settings.llm
        has_model = self._runtime.models.has_language_model
        model = model_name(llm) if has_model else ""
        price = llm.prices.get(model)
        given, answered = (self._given, self._answered) if has_model else (0, 0)
        money = None if price is None else (given * price.input + answered * price.output) / 1e6
        return UpkeepPlan(
            changed=len(self._changed),
            merges=len(self._merges),
            groups=len(self._groups),
            archived=len(self._archived),
            calls=len(self._groups) if has_model else 0,
            input_tokens=given,
            output_tokens=answered,
            cost=None if money is None else round(money, 4),
            model=model,
            merged=tuple(self._merges.values())[:MOST_LISTED],
            similar=tuple(self._groups[:MOST_LISTED]),
        )


def _planned(rules: Rules, cube: str, members: Sequence[MemoryItem]) -> PlannedGroup:
    texts = (" ".join(item.text.split()) for item in members)
    return PlannedGroup(
        label=rules.label,
        mem_cube_id=cube,
        memory_ids=tuple(item.id for item in members),
        texts=tuple(text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…" for text in texts),
    )


class Upkeep:
    """Like `AsyncUpkeep`, for code that blocks."""

    def __init__(self, inner: AsyncUpkeep, bridge: Bridge) -> None:
        self._inner = inner
        self._bridge = bridge

    plan = blocking(AsyncUpkeep.plan)
    run = blocking(AsyncUpkeep.run)
    undo = blocking(AsyncUpkeep.undo)
