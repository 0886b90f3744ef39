"""What a handler may know of the settings, and of the time."""

from __future__ import annotations

import msgspec

__all__ = ["HandlerOptions"]


class HandlerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that built-in handlers heed; `settings.py` has their meaning and their limits."""

    now: int = 0
    """The time, in epoch milliseconds, by the clock of the worker."""
    has_language_model: bool = False
    buffers: bool = False
    """Whether turns are buffered."""
    reads_buffers: bool = False
    """Whether the workers of this queue read full and old buffers; else the cluster does."""
    buffer_tokens: int = 1024
    buffer_age_s: float = 3600.0
    buffer_failures: int = 3
    buffer_lease_s: float = 600.0
    window_tokens: int = 8192
    max_output_tokens: int = 2048
    working_limit: int = 20
    retention: dict[str, int] = {}
    """For how many milliseconds items are kept, by `kind/tier`; `retention_rules` has the form."""
    long_term_limit: int = 1_000_000
    archive_after_ms: int = 180 * 24 * 3600 * 1000
    similarity: float = 0.8
    upkeep_batch: int = 200
    group_size: int = 12
    compression_interval_s: float = 1800.0
    observation_tokens_per_hour: int = 20_000
    session_timeout_ms: int = 3600 * 1000
    """A session without a hook for this long has ended: nothing is spent for it."""
