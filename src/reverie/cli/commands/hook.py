"""`reverie hook`: the same as the command `reverie-hook`, which starts faster."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

__all__ = ["hook"]


def hook(
    words: Annotated[Optional[list[str]], typer.Argument(help="The agent, and its event.")] = None,  # noqa: UP045
) -> None:
    """Keep an event of an agent, which is JSON on standard input; agents call it.

    Always ends with exit code 0. `reverie install` sets agents up to call `reverie-hook`, the same command.

    Example: reverie hook claude-code SessionStart < event.json
    """
    from reverie.capture.hook import main

    main(words or [])
