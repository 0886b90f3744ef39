"""The command `search`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from reverie.cli.app import opened_memory
from reverie.cli.options import Json, Moment, Text, Texts, Url, User, read_moment
from reverie.cli.output import memories, moment, note, one_line, plain, print_json, print_table, say

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from reverie.memory.item import MemoryItem
    from reverie.memory.query import Found, Hit

__all__ = ["commands"]

commands = typer.Typer()

RANKS = {"text_rank": "by words", "vector_rank": "by vectors"}
"""Signals that are places, from 1."""


@commands.command()
def search(
    query: Annotated[str, typer.Argument(help="What to look for.")],
    *,
    user: User,
    cubes: Annotated[
        Texts, typer.Option("--cube", help="In this cube; may be repeated. Default: all.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 10,
    kinds: Annotated[Texts, typer.Option("--kind", help="Only of this kind; may be repeated.")] = None,
    tags: Annotated[
        Texts, typer.Option("--tag", help="Only with this tag; repeated: with any of them.")
    ] = None,
    tiers: Annotated[
        Texts, typer.Option("--tier", help="Only in this tier; may be repeated. Default: all but archive.")
    ] = None,
    session: Annotated[
        Text, typer.Option("--session", help="The present conversation: what was said in it is raised.")
    ] = None,
    device: Annotated[Text, typer.Option("--device", help="Only from this device.")] = None,
    agent: Annotated[Text, typer.Option("--agent", help="Only from this agent.")] = None,
    since: Annotated[
        Moment,
        typer.Option(
            "--since", parser=read_moment, metavar="TIME", help="Only what began to hold then or later."
        ),
    ] = None,
    until: Annotated[
        Moment,
        typer.Option("--until", parser=read_moment, metavar="TIME", help="Only what began to hold before."),
    ] = None,
    as_of: Annotated[
        Moment,
        typer.Option(
            "--as-of", parser=read_moment, metavar="TIME", help="What held then, superseded or not."
        ),
    ] = None,
    reference_time: Annotated[
        Moment,
        typer.Option(
            "--reference-time",
            parser=read_moment,
            metavar="TIME",
            help='What "yesterday" in the query refers to. Default: now.',
        ),
    ] = None,
    threshold: Annotated[
        Optional[float],  # noqa: UP045  typer reads this when it runs
        typer.Option(min=0, max=1, help="Drop hits with a lower score; 0.45 is fair. Default: drop nothing."),
    ] = None,
    max_tokens: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, help="About how many tokens all texts may have together."),
    ] = None,
    preferences: Annotated[
        int, typer.Option(min=0, max=1000, help="How many preferences to find beside the other hits.")
    ] = 0,
    neighbours: Annotated[
        int, typer.Option(min=0, max=100, help="How many turns to show before and after each hit.")
    ] = 0,
    hops: Annotated[
        int, typer.Option(min=0, max=5, help="How many links away from a hit memories are shown.")
    ] = 0,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say why each hit was found, and what took how long.")
    ] = False,
    url: Url = None,
    json: Json = False,
) -> None:
    """Find what is remembered, best first.

    A TIME is an ISO date, in this machine's zone unless it has an offset, or milliseconds since 1970.

    Example: reverie search "where does Ann live" --user ann

    Example: reverie search "what did I say about tea" --user ann --since 2026-05-01 --explain
    """
    with opened_memory(url) as scheduler:
        found = scheduler.memory.search(
            query,
            user_id=user,
            mem_cube_ids=cubes or (),
            limit=limit,
            session_id=session,
            kinds=kinds or (),
            tags=tags or (),
            tiers=tiers or (),
            device_id=device,
            agent_id=agent,
            since=since,
            until=until,
            as_of=as_of,
            reference_time=reference_time,
            threshold=threshold,
            max_tokens=max_tokens,
            preferences=preferences,
            neighbours=neighbours,
            hops=hops,
            explain=explain,
        )
        for remark in _remarks(found, threshold):
            note(remark)
        if json:
            print_json(found)
            return
        if explain:
            _explain_query(found)
        if not found.hits and not found.preferences:
            note(f"nothing of {plain(user)} was found")
        _show(found.hits, "memory", explain=explain)
        _show(found.preferences, "preference", explain=explain)


def _remarks(found: Found, threshold: float | None) -> Iterator[str]:
    """What the reader should know about the whole answer."""
    for reason in found.degraded:
        yield f"the search is not as good as it could be: {reason}"
    if found.dropped:
        yield f"{memories(found.dropped)} with a score below {threshold:g} left out (--threshold)"
    if found.cut:
        yield f"{memories(found.cut)} left out, because more do not fit (--max-tokens)"
    if found.words_left_out:
        yield f"{found.words_left_out} words of the query were left out: only the rarest are searched for"


def _show(hits: Sequence[Hit], title: str, *, explain: bool) -> None:
    if explain:
        for place, hit in enumerate(hits, 1):
            _explain_hit(place, hit, title)
    elif hits:
        print_table(["score", title, "source"], [row for hit in hits for row in _rows(hit)])


def _rows(hit: Hit) -> Iterator[tuple[str, str, str]]:
    """The row of a hit, and those of the turns around it and of the memories that it is linked to."""
    yield f"{hit.score:.2f}", one_line(hit.text), _source(hit.item)
    for item in hit.neighbours:
        yield "near", one_line(item.text), _source(item)
    for item in hit.linked:
        yield "linked", one_line(item.text), _source(item)


def _source(item: MemoryItem) -> str:
    """The messages that a memory comes from; its own id if it comes from none."""
    return ", ".join(dict.fromkeys(source.item_id for source in item.sources)) or item.id


def _explain_query(found: Found) -> None:
    """Print what was understood of the query, and how long each stage took."""
    understood: dict[str, Any] = found.explanation or {}
    interval = understood.get("interval")
    timings = found.timings_ms or {}
    lines = {
        "words": ", ".join(understood.get("words") or ()) or "none",
        "names": ", ".join(understood.get("names") or ()) or "none",
        "time": f"{moment(interval[0])} until {moment(interval[1])}" if interval else "none",
        "embedder": understood.get("embedder") or "none: only words count",
        "took": f"{sum(timings.values()):.1f} ms: "
        + ", ".join(f"{stage} {took:.1f}" for stage, took in timings.items()),
    }
    for name, value in lines.items():
        say(f"{name:<10} {plain(str(value))}")


def _explain_hit(place: int, hit: Hit, title: str) -> None:
    """Print one hit with the signals and the places that made it."""
    signals = dict(hit.signals or {})
    places = [f"{signals.pop(name):g}. {words}" for name, words in RANKS.items() if name in signals]
    total = signals.pop("fused", 0.0)
    parts = sorted(signals.items(), key=lambda part: -abs(part[1]))
    say("")
    say(f"{place}. {hit.score:.2f}  {plain(one_line(hit.text))}")
    say(f"     {title} {plain(hit.item.id)} of {moment(hit.item.held_at)}, from {plain(_source(hit.item))}")
    say(f"     {total:.2f} = " + ", ".join(f"{name} {value:+.2f}" for name, value in parts))
    say(f"     place: {', '.join(places) or 'neither by words nor by vectors, but beside a hit'}")
    for label, items in (("near", hit.neighbours), ("linked", hit.linked)):
        for item in items:
            say(f"     {label}: {plain(one_line(item.text))}")
