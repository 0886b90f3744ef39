"""The error about a settings file of an agent."""

from __future__ import annotations

from reverie.errors import ReverieError

__all__ = ["AgentFileError"]


class AgentFileError(ReverieError):
    """A settings file of an agent was not changed."""

    def __init__(self, where: object, reason: str) -> None:
        """Name the file, with line and column if they are known, and say what to do."""
        self.where, self.reason = str(where), reason
        super().__init__(f"{where} {reason}")
