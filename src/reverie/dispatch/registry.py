"""The registry: the handler of each label, and how its messages are run."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Self

from pydantic import ValidationError

from reverie.configuration.section import TEN_YEARS_S
from reverie.dispatch.settings import LabelSettings, WorkerSettings
from reverie.errors import InvalidSettingError
from reverie.message import LABEL_LEVELS, Level

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from reverie.message import Message

__all__ = ["Handler", "Orchestrator", "Registry", "label_options"]


@dataclass(frozen=True, slots=True)
class Handler:
    """A label's function, with everything the worker needs to know to run it."""

    label: str
    function: Callable[..., Any]
    place: str
    """Where the function runs: `loop`, `thread`, `process`, or the import path of another place."""
    is_batch: bool
    wants_context: bool
    ordered: bool
    concurrency: int
    batch: int
    timeout_s: float
    max_attempts: int
    backoff_s: float
    max_backoff_s: float
    credential: str | Callable[[Message], str]
    """The name of the credential that the messages use, or a function that tells it from a message."""

    @property
    def import_path(self) -> str | None:
        """Where another process can import the function, as module:name; None if it cannot."""
        path = _name_of(self.function)
        return path if path is not None and _find(path) is self.function else None


HERE = frozenset({"loop", "thread"})
"""Places inside of the worker's own process."""
LEVELS = frozenset(map(int, Level))
MOST_IDLE_MS = TEN_YEARS_S * 1000


class _Numbers(dict[str, int]):
    """Numbers by label. However a number is set, `__setitem__` sees it."""

    def update(self, *others: Any, **numbers: int) -> None:
        for label, number in dict(*others, **numbers).items():
            self[label] = number

    def setdefault(self, label: str, number: int = 0) -> int:
        if label not in self:
            self[label] = number
        return self[label]

    def __ior__(self, numbers: Any) -> Self:  # type: ignore[override,misc]
        self.update(numbers)
        return self


class _Levels(_Numbers):
    """Level by label; a label that is missing has level 3."""

    def __missing__(self, label: str) -> int:
        return int(Level.BACKGROUND)

    def __setitem__(self, label: str, level: int) -> None:
        if level not in LEVELS:
            raise InvalidSettingError(f"tasks_priorities[{label!r}]", level, "must be 1, 2 or 3")
        super().__setitem__(label, int(level))


class _Rests(_Numbers):
    """Milliseconds of rest by label."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        super().__init__()
        self._on_change = on_change

    def __setitem__(self, label: str, min_idle_ms: int) -> None:
        if type(min_idle_ms) is not int or not 0 <= min_idle_ms <= MOST_IDLE_MS:
            reason = f"must be a whole number of milliseconds from 0 to {MOST_IDLE_MS}"
            raise InvalidSettingError(f"tasks_min_idle_ms[{label!r}]", min_idle_ms, reason)
        super().__setitem__(label, min_idle_ms)
        self._on_change()


class Orchestrator:
    """The level and the rest between runs of each label; both may be changed while a worker runs."""

    def __init__(self, on_change: Callable[[], None] = lambda: None) -> None:
        """`on_change` is called when the rest of a label was set."""
        self._levels = _Levels({label: int(level) for label, level in LABEL_LEVELS.items()})
        self.level: Callable[[str], int] = self._levels.__getitem__
        """The level of a label."""
        self._rests = _Rests(on_change)

    @property
    def tasks_min_idle_ms(self) -> dict[str, int]:
        """Least milliseconds between the end of one run of a lane and the start of the next, by label.

        A lane of a label with a rest gives one message a run. A change holds for runs that begin after it.
        """
        return self._rests

    @tasks_min_idle_ms.setter
    def tasks_min_idle_ms(self, rests: Mapping[str, int]) -> None:
        fresh = _Rests(lambda: None)
        fresh.update(rests)  # refuses wrong rests before anything changes
        self._rests.clear()
        self._rests.update(fresh)

    @property
    def tasks_priorities(self) -> dict[str, int]:
        """Level by label: 1 at once, 2 soon, 3 in the background. A label that is missing has level 3."""
        return self._levels

    @tasks_priorities.setter
    def tasks_priorities(self, levels: Mapping[str, int]) -> None:
        fresh = _Levels()
        fresh.update(levels)  # refuses wrong levels before anything changes
        self._levels.clear()
        self._levels.update(fresh)


class Registry:
    """The handlers of one process."""

    def __init__(
        self,
        worker: WorkerSettings | None = None,
        labels: Mapping[str, LabelSettings] | None = None,
        check_place: Callable[[str, str], object] = lambda *_: None,
    ) -> None:
        """Start empty. The settings in `labels` win over the options that a handler is registered with.

        `check_place` is given a setting and the place it names, and refuses a place that does not exist.
        """
        self._check_place = check_place
        self._worker = worker or WorkerSettings()
        self._labels = dict(labels or {})
        self._by_label: dict[str, Handler] = {}
        self.handlers: tuple[Handler, ...] = ()
        """All handlers, in the order of their registration."""
        self.get = self._by_label.get
        """The handler of a label, if this process has one."""
        self.orchestrator = Orchestrator(lambda: self.on_change())  # noqa: PLW0108  it is set later
        self.on_change: Callable[[], None] = lambda: None
        """Called when a handler was added, or the rest of a label was set."""
        self._roles: dict[str, str] = {}
        for label, settings in self._labels.items():
            self._orchestrate(label, settings)

    def add(
        self,
        label: str,
        function: Callable[..., Any] | str,
        *,
        batch: bool = False,
        options: LabelSettings | None = None,
        credential_of: Callable[[Message], str] | None = None,
    ) -> Handler:
        """Let `function`, or the function at this import path, handle `label`; the last one added wins.

        A plain handler takes (message) or (message, ctx), a batch handler (messages) or (messages, ctx).
        """
        if not label:
            raise InvalidSettingError("label", label, "a handler needs the name of its label")
        if isinstance(function, str):
            function = _import(label, function)
        if not _positional_parameters(function):
            raise InvalidSettingError(
                f"handler of {label}", function, "must take the message, or the messages"
            )
        own, configured, worker = options or LabelSettings(), self._labels.get(label), self._worker
        chosen = own.model_copy(update=configured.model_dump(exclude_none=True) if configured else {})
        place = _place(chosen, function)
        if place not in HERE:
            self._check_place(f"labels.{label}.place", place)
            _check_importable(label, function)
        concurrency = {"loop": worker.async_concurrency, "thread": worker.sync_concurrency}
        handler = Handler(
            label=label,
            function=function,
            place=place,
            is_batch=batch,
            wants_context=_wants_context(function),
            ordered=True if chosen.ordered is None else chosen.ordered,
            concurrency=chosen.concurrency or concurrency.get(place, worker.cpu_concurrency),
            batch=chosen.batch or worker.batch,
            timeout_s=chosen.timeout_s or worker.timeout_s,
            max_attempts=chosen.max_attempts or worker.max_attempts,
            backoff_s=chosen.backoff_s or worker.backoff_s,
            max_backoff_s=chosen.max_backoff_s or worker.max_backoff_s,
            credential=chosen.credential or credential_of or label,
        )
        self._by_label[label] = handler
        self.handlers = tuple(self._by_label.values())
        self._orchestrate(label, chosen)
        self.on_change()
        return handler

    def _orchestrate(self, label: str, settings: LabelSettings) -> None:
        if settings.level is not None:
            self.orchestrator.tasks_priorities[label] = settings.level
        if settings.min_idle_ms is not None:
            self.orchestrator.tasks_min_idle_ms[label] = settings.min_idle_ms
        if settings.role is not None:
            self._roles[label] = settings.role

    def role_of(self, label: str) -> str | None:
        """The weakest role that may submit a label, if the settings or its handler name one."""
        return self._roles.get(label)


def label_options(label: str, **options: Any) -> LabelSettings:
    """The options of a handler; an invalid option is refused by name."""
    try:
        return LabelSettings(**options)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InvalidSettingError(f"handler({label!r}, {where})", first.get("input"), first["msg"]) from error


def _place(chosen: LabelSettings, function: Callable[..., Any]) -> str:
    """The place of a handler: from its options, else by the kind of function."""
    natural = "loop" if inspect.iscoroutinefunction(function) else "thread"
    if chosen.place in HERE and chosen.place != natural:
        kind = "an async" if natural == "loop" else "a plain"
        reason = f"{kind} function has the place {natural}: leave the place out"
        raise InvalidSettingError("place", chosen.place, reason)
    return chosen.place or ("process" if chosen.cpu else natural)


def _import(label: str, path: str) -> Callable[..., Any]:
    if ":" not in path:
        raise InvalidSettingError(
            f"handler of {label}", path, "must take the message, or be an import path such as module:function"
        )
    try:
        function: Callable[..., Any] = resolve_name(path)
    except Exception as error:
        raise InvalidSettingError(f"handler of {label}", path, f"cannot be imported: {error!r}") from error
    return function


def _name_of(function: Callable[..., Any]) -> str | None:
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not module or not name or module == "__main__" or "<" in name:  # <lambda>, <locals>
        return None
    return f"{module}:{name}"


def _find(path: str) -> object:
    """The object at an import path, if its module is loaded."""
    module_name, _, name = path.partition(":")
    found: object = sys.modules.get(module_name)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _check_importable(label: str, function: Callable[..., Any]) -> None:
    """Refuse a handler that no other process could find.

    A function that is just being decorated is not in its module yet, and passes.
    """
    path = _name_of(function)
    if path is None or _find(path) not in (None, function):
        reason = (
            "a cpu handler runs in another process, which must be able to import it: make it a function at "
            "the top level of a module (not of the program that is started), or give its import path, "
            "module:function"
        )
        raise InvalidSettingError(f"handler of {label}", function, reason)


def _positional_parameters(function: Callable[..., Any]) -> int:
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # a builtin without a signature
        return 1
    except TypeError:  # not callable
        return 0
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return max(1, _required(parameters))
    return _required(parameters)


def _wants_context(function: Callable[..., Any]) -> bool:
    """Whether a handler takes the context: its second parameter is required, or is called `ctx`."""
    if _positional_parameters(function) >= 2:
        return True
    try:
        names = list(inspect.signature(function).parameters)
    except ValueError:
        return False
    return names[1:2] == ["ctx"]


def _required(parameters: Iterable[inspect.Parameter]) -> int:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in kinds and p.default is p.empty for p in parameters)
