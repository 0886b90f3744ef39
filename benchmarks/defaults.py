"""The shipped defaults, with which every measurement runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reverie.settings import load_settings, settings_file

if TYPE_CHECKING:
    from reverie.settings import Settings

__all__ = ["shipped_settings"]


def shipped_settings(url: str, **sections: dict[str, Any]) -> Settings:
    """The shipped defaults with the queue at `url`; ends the program if other settings are in force here.

    Memories are kept beside the queue: in the same file, or in the folder of the server's socket. `sections`
    has the few settings that a measurement needs besides, such as the language model.
    """
    changed = sorted(name for name in os.environ if name.startswith("REVERIE_"))
    if file := settings_file():
        changed.append(str(file))
    if changed:
        raise SystemExit(
            f"the benchmarks measure the shipped defaults; take these away: {', '.join(changed)}"
        )
    queue = {
        "url": url,
        "allow_volatile": True,
    }  # allow_volatile accepts a server without persistence, and changes nothing else
    beside = {"data_dir": Path(url.removeprefix("unix://")).parent} if url.startswith("unix:") else {}
    return load_settings(queue=queue, **beside, **sections)
