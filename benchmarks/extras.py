"""Packages that only the benchmarks need."""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import Any

__all__ = ["require", "version_of"]


def require(module: str, package: str) -> Any:
    """Import a module of the extra `bench`."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise SystemExit(
            f"{package} is missing: install the extra `bench` (pip install 'reverie[bench]', or make bench)"
        ) from error


def version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
