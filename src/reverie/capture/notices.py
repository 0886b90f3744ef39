"""Notices for the user of an agent, beside the context of a session: what keeps memory from working."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from reverie.capture.hook_log import recent_problems
from reverie.observe.rules import BUDGET_SPENT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from reverie.observe.alert import Alert

__all__ = ["ContextNotices"]

NOTICED = frozenset({"breaker_open", BUDGET_SPENT})
"""The alerts that are told: work rests because a key was refused, or a quota or budget is spent."""


class ContextNotices:
    """Writes the notice that the next session shows."""

    def __init__(self, folder: Path, alerts: Callable[[], Awaitable[list[Alert]]]) -> None:
        """`folder` is the data folder, where hooks leave their problems."""
        self._folder = folder
        self._alerts = alerts

    async def text(self) -> str | None:
        """The notice; None if all is well."""
        told = [f"{alert.message}. {alert.remedy}" for alert in await self._alerts() if alert.rule in NOTICED]
        problems = await asyncio.to_thread(recent_problems, str(self._folder))
        lines = [*told, *problems]
        return "Reverie: " + "\n".join(lines) if lines else None
