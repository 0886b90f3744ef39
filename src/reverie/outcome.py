"""Outcomes: what a handler's run means for its message.

A handler returns an outcome. `Retry`, `Snooze`, `Cancel` and `Bury` may also be raised, which reads well deep
inside a call. Returning None means `Done()`. Any other exception is a failed run, retried with backoff.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.effect import Effect
    from reverie.message import Message

__all__ = ["Bury", "Cancel", "Died", "Done", "Outcome", "Retry", "Snooze", "delay_of"]

LONGEST_DELAY_S = 10 * 365 * 24 * 3600
"""Ten years: the longest delay that a handler can ask for."""


@dataclass(frozen=True, slots=True)
class Done:
    """The work is complete. Effects and follow-up messages take hold in the same step."""

    effects: Sequence[Effect] = ()
    follow_ups: Sequence[Message] = ()


class _Ending(Exception):  # noqa: N818  an outcome that may be raised, not an error
    """An outcome that may be raised as well as returned."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in vars(self).items())})"


class Retry(_Ending):
    """The run failed; try again, `after` seconds from now or by the label's backoff. Uses up an attempt."""

    def __init__(self, after: float | None = None, reason: str | None = None) -> None:
        super().__init__(reason)
        self.after, self.reason = after, reason


class Snooze(_Ending):
    """Not now: run again `after` seconds from now. Uses up no attempt."""

    def __init__(self, after: float, reason: str | None = None) -> None:
        super().__init__(reason)
        self.after, self.reason = after, reason


class Cancel(_Ending):
    """The work is no longer wanted: the message ends as cancelled."""

    def __init__(self, reason: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason


class Bury(_Ending):
    """No retry will help: the message becomes a dead letter that a person can read and requeue."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Died:
    """The process of a run died: a loss, not an attempt. Executors return this outcome, handlers never do."""

    reason: str


def delay_of(outcome: Retry | Snooze) -> float | None:
    """The seconds that an outcome asks to wait; None leaves them to the label's backoff.

    ValueError if `after` is not a number of seconds from 0 to ten years.
    """
    after: object = outcome.after
    if after is None and isinstance(outcome, Retry):
        return None
    if isinstance(after, bool) or not isinstance(after, int | float) or not 0 <= after <= LONGEST_DELAY_S:
        raise ValueError(
            f"{type(outcome).__name__}(after={after!r}): "
            f"after must be a number of seconds, from 0 to {LONGEST_DELAY_S} (ten years)"
        )
    return float(after)


Outcome = Done | Retry | Snooze | Cancel | Bury | Died
