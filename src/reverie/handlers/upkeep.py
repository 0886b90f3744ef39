"""What the handlers of upkeep share: a pass over the memories that were changed, page by page.

A pass begins with one message without content. Each of its messages looks at one page of changed memories. It
merges those that say the same at once, and sends a message of its own for each group that the language model
has to decide upon: a group that fails, fails alone. All messages of a pass carry its id, to undo it by.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from reverie.configuration.section import TEN_YEARS_S
from reverie.effect import InPass, Judged, PassDone
from reverie.failures import InvalidWorkError
from reverie.handlers.grouping import (
    MOST_TOKENS,
    TIERS,
    Findings,
    find_groups,
    judged_key,
    merged_effects,
)
from reverie.message import Message
from reverie.outcome import Done

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from reverie.dispatch.context import Context
    from reverie.dispatch.options import HandlerOptions
    from reverie.effect import Effect
    from reverie.handlers.grouping import Reads, Rules
    from reverie.memory.item import MemoryItem
    from reverie.memory.upkeep import ChangedItem

    Settle = Callable[[Message, Context, HandlerOptions, Sequence[MemoryItem]], Awaitable[list[Effect]]]
    """Asks the model about a group; the answer are the effects that it leads to."""

__all__ = ["UpkeepInput", "follow_up", "merges_of", "read_input", "run_pass", "window_start"]

MOST_GROUP = 50
"""How many memories a group may have."""
OVERLAP_MS = 60_000
"""How long before a pass the next one begins: what was being written when it ran, it has not seen."""


class UpkeepInput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content of a message of upkeep. All fields may be left out."""

    interval_seconds: float | None = None
    """The least window in seconds: later changes are looked at, whenever the last pass was."""
    pass_id: str | None = None
    """The id of the pass; by default the item_id of its first message."""
    since: int | None = None
    """Look at what was changed since this moment, in epoch milliseconds; by default since the last pass."""
    until: int | None = None
    """When the pass has begun."""
    after: int = 0
    """The number of the memory after which the page begins."""
    group: tuple[str, ...] = ()
    """Decide upon these memories, and look at no others."""


def read_input(message: Message) -> UpkeepInput:
    """The content of a message of upkeep."""
    try:
        asked = msgspec.json.decode(message.content or "{}", type=UpkeepInput)
    except msgspec.DecodeError as error:
        raise InvalidWorkError(f"the content of a {message.label} message is wrong: {error}") from error
    if len(asked.group) > MOST_GROUP:
        raise InvalidWorkError(f"group: {len(asked.group)} memories, at most {MOST_GROUP} are allowed")
    if not 0 <= (asked.interval_seconds or 0) < TEN_YEARS_S:
        raise InvalidWorkError(f"interval_seconds={asked.interval_seconds}: must be 0 to {TEN_YEARS_S}")
    if asked.pass_id is None:
        asked = msgspec.structs.replace(asked, pass_id=message.item_id)
    return asked


async def run_pass(
    message: Message, ctx: Context, rules: Rules, settle: Settle, asked: UpkeepInput
) -> tuple[Done, Findings]:
    """Do the part of a pass that one message asks for; the answer tells also what was found."""
    options: HandlerOptions = await ctx.options()
    if asked.group:
        return await _decide(message, ctx, options, asked, settle), Findings([], [])
    since, until = asked.since, asked.until
    if since is None or until is None:
        since, until = await window_start(ctx.upkeep, rules, options.now, asked), options.now
    page: list[ChangedItem] = await ctx.upkeep.changed(since, asked.after, options.upkeep_batch)
    found = await find_groups(ctx.upkeep, [one.item for one in page], options, rules)
    effects: list[Effect] = [InPass(pass_id=asked.pass_id or "", label=rules.label)]
    effects += await merges_of(ctx, found, options)
    follow_ups = []
    if options.has_language_model:
        follow_ups += [
            follow_up(message, UpkeepInput(pass_id=asked.pass_id, group=tuple(item.id for item in members)))
            for members in found.groups
        ]
    if len(page) == options.upkeep_batch:
        rest = UpkeepInput(pass_id=asked.pass_id, since=since, until=until, after=page[-1].seq)
        follow_ups.append(follow_up(message, rest))
    else:
        effects.append(PassDone(label=rules.label, until=until - OVERLAP_MS))
    return Done(effects=effects, follow_ups=follow_ups), found


async def window_start(reads: Reads, rules: Rules, now: int, asked: UpkeepInput) -> int:
    """Since when changes are looked at: since the last success, and at least as long as the interval."""
    last: int | None = await reads.until(rules.label)
    return 0 if last is None else min(last, now - round((asked.interval_seconds or 0) * 1000))


async def merges_of(ctx: Context, found: Findings, options: HandlerOptions) -> list[Effect]:
    """The effects that merge memories which say the same."""
    effects: list[Effect] = []
    sizes = await ctx.models.count_tokens([members[0].text for members in found.merges])
    for members, tokens in zip(found.merges, sizes, strict=True):
        if tokens > MOST_TOKENS:
            continue
        names = [item.id for item in members]
        turns = members[0].kind == "turn" and options.has_language_model
        unread = await ctx.upkeep.unread(names) if turns else names
        effects += merged_effects(members, members[0].text, read=not unread)
    keys = tuple(judged_key("merge", members) for members in found.merges)
    return [*effects, Judged(keys=keys)] if keys else effects


def follow_up(message: Message, asked: UpkeepInput, label: str | None = None) -> Message:
    """A further message of the same pass."""
    return Message(
        user_id=message.user_id,
        mem_cube_id=message.mem_cube_id,
        label=label or message.label,
        task_id=message.task_id,
        content=msgspec.json.encode(asked).decode(),
    )


async def _decide(
    message: Message, ctx: Context, options: HandlerOptions, asked: UpkeepInput, settle: Settle
) -> Done:
    """Let the model decide upon one group. What has changed meanwhile is no part of it any more."""
    items: list[MemoryItem] = await ctx.upkeep.items(asked.group)
    members = [item for item in items if item.superseded_by is None and item.tier in TIERS]
    if len(members) < 2 or not options.has_language_model:
        return Done()
    key = judged_key(message.label, members)
    if await ctx.upkeep.judged([key]):
        return Done()
    effects = await settle(message, ctx, options, members)
    begin: Any = InPass(pass_id=asked.pass_id or "", label=message.label)
    return Done(effects=[begin, *effects, Judged(keys=(key,))])
