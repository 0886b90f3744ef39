"""`reverie worker`: run handlers in the foreground, or in the background of a data folder."""

from __future__ import annotations

import sys
from functools import partial
from io import TextIOWrapper
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from reverie.cli.app import settings_or_default
from reverie.cli.options import App, Json, Url
from reverie.cli.output import note, plain, print_json, say, set_up_logs, show_error, shown_errors

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from reverie.cli.daemon.background import Background
    from reverie.cli.daemon.launch import Launch
    from reverie.cli.daemon.state import Daemon, DaemonState
    from reverie.cli.reload import Reloaded, Reloader
    from reverie.dispatch.supervisor import Supervisor
    from reverie.face.scheduler import Scheduler
    from reverie.settings import Settings

    Reload = Callable[[], Awaitable[Reloaded]]

__all__ = ["worker_cli"]

worker_cli = typer.Typer()

NOT_RUNNING = 3
"""The exit code of `worker status` if no worker runs in the background."""

Processes = Annotated[
    Optional[int],  # noqa: UP045
    typer.Option(min=1, help="Worker processes to keep running. Default: the setting worker.processes, 1."),
]
Drain = Annotated[bool, typer.Option("--drain", help="Run what is ready now, then end.")]
Now = Annotated[bool, typer.Option("--now", help="Do not wait for handlers that run.")]
Hidden = Annotated[Optional[int], typer.Option(hidden=True)]  # noqa: UP045


@worker_cli.callback(invoke_without_command=True)
def worker(
    context: typer.Context,
    *,
    url: Url = None,
    app: App = None,
    drain: Drain = False,
    processes: Processes = None,
    lifeline: Hidden = None,
    ready: Hidden = None,
) -> None:
    """Run handlers until it is stopped, without a server; without a command it is `worker run`.

    Example: reverie worker --app app:scheduler --processes 4
    """
    if context.invoked_subcommand is None:
        _run(url, app, drain=drain, processes=processes, lifeline=lifeline, ready=ready)
    elif url or app or drain or processes:
        raise typer.BadParameter(
            f"give options behind the command: reverie worker {context.invoked_subcommand} …"
        )


@worker_cli.command()
def run(
    *,
    url: Url = None,
    app: App = None,
    drain: Drain = False,
    processes: Processes = None,
    daemon: Annotated[Optional[str], typer.Option(hidden=True)] = None,  # noqa: UP045
    try_out: Annotated[bool, typer.Option("--try-out", hidden=True)] = False,
) -> None:
    """Run handlers here until it is stopped (Ctrl-C or SIGTERM).

    Example: reverie worker run --app app:scheduler
    """
    if try_out:
        _try_out(url, app, processes)
        return
    _run(url, app, drain=drain, processes=processes, daemon=daemon)


@worker_cli.command()
def start(
    url: Url = None,
    app: App = None,
    processes: Processes = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget the options of last time.")] = False,
    json: Json = False,
) -> None:
    """Start a worker in the background, one for each data folder; returns when it takes work.

    Without options it is started as last time. Exit code 1 if one runs already with other options.

    Example: reverie worker start --app app:scheduler
    """
    with shown_errors():
        from reverie.cli.daemon.launch import here, names_anew
        from reverie.settings import load_settings

        daemon = _daemon(load_settings())
        given, last = _options(url, app, processes), daemon.last_launch()
        if last is None or fresh or given or names_anew(last) or not (last.options or last.environment):
            last = here(given)
        _start(daemon, last, given, json=json)


@worker_cli.command()
def stop(now: Now = False, json: Json = False) -> None:
    """Stop the worker in the background; handlers that run get worker.grace_s seconds to finish.

    Example: reverie worker stop
    """
    with shown_errors():
        settings = settings_or_default()
        daemon = _daemon(settings)
        state = _stop(settings, daemon, now=now)
        _answer(daemon, state, "stopped" if state else "not_running", json=json)


@worker_cli.command()
def restart(
    url: Url = None, app: App = None, processes: Processes = None, now: Now = False, json: Json = False
) -> None:
    """Stop the worker in the background and start it as it was started, but for the options given here.

    If the new one could not start, the one that runs goes on.

    Example: reverie worker restart --processes 4
    """
    with shown_errors():
        from reverie.cli.daemon.control import try_out as try_launch
        from reverie.cli.daemon.launch import here, like_last
        from reverie.errors import DaemonError
        from reverie.settings import load_settings

        settings = load_settings()
        daemon = _daemon(settings)
        last, given = daemon.last_launch(), _options(url, app, processes)
        launch = here(given) if last is None else like_last(last, given)
        try:
            try_launch(launch)
        except DaemonError as error:
            state = daemon.running()
            goes_on = "" if state is None else f"; the one that runs (process {state.pid}) goes on as it was"
            raise DaemonError(f"{error}{goes_on}") from error
        _stop(settings, daemon, now=now)
        _start(daemon, launch, given, json=json)


@worker_cli.command()
def status(json: Json = False) -> None:
    """Say whether a worker runs in the background: exit code 0 if it does, 3 if not.

    Example: reverie worker status
    """
    with shown_errors():
        daemon = _daemon(settings_or_default())
        state = daemon.running()
        kind = "not_running" if state is None else "running" if state.ready_at else "starting"
        _answer(daemon, state, kind, json=json)
        if state is None:
            raise typer.Exit(NOT_RUNNING)


@worker_cli.command()
def logs(
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="How many lines.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is written.")] = False,
) -> None:
    """Show the log of the worker in the background.

    Example: reverie worker logs --follow
    """
    with shown_errors():
        from reverie.cli.daemon.log import show
        from reverie.errors import DaemonError

        log = _daemon(settings_or_default()).log
        try:
            for text in show(log, lines, follow=follow):
                typer.echo(plain(text, lines=True), nl=False)
        except FileNotFoundError as error:
            raise DaemonError(f"there is no log {log}: no worker was ever started there") from error
        except KeyboardInterrupt:
            return


def _run(
    url: str | None,
    app: str | None,
    *,
    drain: bool,
    processes: int | None,
    lifeline: int | None = None,
    ready: int | None = None,
    daemon: str | None = None,
) -> None:
    with shown_errors():
        from reverie.base.own_process import set_up_process
        from reverie.cli.daemon.background import Background, tell_ready
        from reverie.runtime import Runtime

        set_up_process()
        set_up_logs()
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(line_buffering=True)  # what a handler prints appears at once
        Runtime.runs_here = True
        try:
            if daemon is not None:
                with Background(daemon, _options(url, app, processes)) as background:
                    again = _work(url, app, processes, background=background)
                    background.inherit(again)
            else:
                if lifeline is None:
                    _warn_of_daemon()
                on_ready = None if ready is None else partial(tell_ready, ready)
                again = _work(url, app, processes, drain=drain, lifeline=lifeline, on_ready=on_ready)
        finally:
            Runtime.runs_here = False
        if again:
            from reverie.cli.daemon.run import start_anew

            start_anew()


def _work(
    url: str | None,
    app: str | None,
    processes: int | None,
    *,
    drain: bool = False,
    lifeline: int | None = None,
    on_ready: Callable[[], None] | None = None,
    background: Background | None = None,
) -> bool:
    """Run handlers until the end; return whether a new process must go on with the work."""
    import asyncio

    from reverie.base.own_process import run_process
    from reverie.cli.app import scheduler_of
    from reverie.cli.daemon.run import run_until_drained, run_until_stopped
    from reverie.cli.reload import Reloader
    from reverie.cli.signals import Hangups

    scheduler = scheduler_of(url, app, runs=True)
    if background is not None:
        _refuse_memory(scheduler)
        background.keep_log(scheduler.runtime.settings.worker)
        background.watch(scheduler)
        on_ready = background.ready
    if drain:
        run_process(run_until_drained(scheduler.asynchronous))
        return False
    count = processes or scheduler.runtime.settings.worker.processes
    hangups, reloader = Hangups(), Reloader(scheduler.runtime)

    def follow(reload: Reload) -> None:
        hangups.follow(reload if background is None else partial(background.reload, reload))

    if lifeline is None and count > 1:
        options = _options(url, app, None)
        asyncio.run(
            _supervise(scheduler, options, count, on_ready=on_ready, follow=follow, reloader=reloader)
        )
        return False
    start = partial(follow, reloader.reload)
    idle_exit_s = None if background is None else scheduler.runtime.settings.capture.worker_idle_exit_s
    return run_process(
        run_until_stopped(scheduler.asynchronous, lifeline, on_ready, start, idle_exit_s=idle_exit_s)
    )


def _try_out(url: str | None, app: str | None, processes: int | None) -> None:
    """Do what a worker in the background does before it takes work."""
    with shown_errors():
        from reverie.cli.app import scheduler_of

        scheduler = scheduler_of(url, app, runs=True)
        _refuse_memory(scheduler)
        _refuse_processes(scheduler, processes or scheduler.runtime.settings.worker.processes)
        with scheduler.used():
            scheduler.open()


def _refuse_memory(scheduler: Scheduler) -> None:
    from reverie.errors import InvalidSettingError

    if scheduler.runtime.app is None and scheduler.runtime.settings.queue_url.startswith("memory:"):
        raise InvalidSettingError(
            "queue.url", "memory://", "lives in one process: no other could give it work"
        )


def _refuse_processes(scheduler: Scheduler, processes: int) -> None:
    from reverie.errors import InvalidSettingError

    if processes > 1 and scheduler.runtime.settings.queue_url.startswith("memory:"):
        raise InvalidSettingError(
            "worker.processes", processes, "memory:// lives in one process: there is only 1"
        )


async def _supervise(
    scheduler: Scheduler,
    options: dict[str, str],
    processes: int,
    *,
    on_ready: Callable[[], None] | None,
    follow: Callable[[Reload], None],
    reloader: Reloader,
) -> None:
    """Keep worker processes running. The queue is opened here first, to see that they can open it, too."""
    from reverie.cli.daemon.supervise import supervise

    async def reload(supervisor: Supervisor) -> Reloaded:
        answer = await reloader.reload()
        await scheduler.asynchronous.stop()
        if not answer.problems:
            supervisor.hang_up()
        return answer

    _refuse_processes(scheduler, processes)
    await scheduler.asynchronous.open()
    await scheduler.asynchronous.stop()
    await supervise(
        [text for option in options.items() for text in option],
        processes=processes,
        grace_s=scheduler.runtime.settings.worker.grace_s,
        on_ready=on_ready or (lambda: None),
        on_start=lambda supervisor: follow(partial(reload, supervisor)),
    )


def _daemon(settings: Settings) -> Daemon:
    from reverie.cli.daemon.state import Daemon

    return Daemon(settings.data_dir)


def _options(url: str | None, app: str | None, processes: int | None) -> dict[str, str]:
    given = {"--url": url, "--app": app, "--processes": processes}
    return {name: str(value) for name, value in given.items() if value is not None}


def _warn_of_daemon() -> None:
    from reverie.settings import load_settings

    state = _daemon(load_settings()).running()
    if state is not None:
        typer.echo(
            f"note: a worker of this data folder runs in the background, too (process {state.pid}); "
            "`reverie worker stop` ends that one",
            err=True,
        )


def _start(daemon: Daemon, launch: Launch, given: dict[str, str], *, json: bool) -> None:
    """Start the worker, and print its state and which of its options are those of last time."""
    from reverie.cli.daemon.control import start as start_daemon

    state, ran_before = start_daemon(daemon, launch)
    if not ran_before and (words := launch.words(given)):
        note(f"with the options of last time: {words}")
    _answer(daemon, state, "already_running" if ran_before else "started", json=json)
    if ran_before and not _has(state, launch):
        yours = " ".join(["reverie worker restart", *filter(None, [launch.words()])])
        show_error(f"it runs with other options, yours are ignored; to apply them: {yours}")
        raise typer.Exit(1)


def _has(state: DaemonState, launch: Launch) -> bool:
    """Whether the running worker was started with all that this launch sets."""
    other_app = "--app" in launch.options and launch.folder != state.folder
    options, variables = launch.options.items(), launch.environment.items()
    return options <= state.options.items() and variables <= state.environment.items() and not other_app


def _stop(settings: Settings, daemon: Daemon, *, now: bool) -> DaemonState | None:
    from reverie.cli.daemon.control import stop as stop_daemon
    from reverie.dispatch.supervisor import MARGIN_S

    grace_s = settings.worker.grace_s + 2 * MARGIN_S
    return stop_daemon(daemon, grace_s=grace_s, now=now, say=lambda text: typer.echo(text, err=True))


WORDS = {
    "started": "the worker is running (process {pid}), its log is {log}, its queue {queue}",
    "already_running": "the worker is already running (process {pid}), its log is {log}, its queue {queue}",
    "running": "the worker is running (process {pid}), its log is {log}, its queue {queue}",
    "starting": "the worker is starting (process {pid}), its log is {log}",
    "stopped": "the worker (process {pid}) has stopped",
    "not_running": "no worker is running in the background",
}


def _answer(daemon: Daemon, state: DaemonState | None, status: str, *, json: bool) -> None:
    about: dict[str, Any] = {"status": status, "log": str(daemon.log)}
    if state is not None:
        about |= {"pid": state.pid, "version": state.version, "started_at": state.started_at}
        about |= {"queue": state.queue or None}
    if json:
        print_json(about)
    else:
        say(WORDS[status].format(**about))
