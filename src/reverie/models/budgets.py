"""The budgets of tenants: how many tokens, and how much money, each may spend on a day."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from itertools import islice
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from reverie.base.clock import from_epoch_ms
from reverie.failures import BudgetError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

    from reverie.base.clock import Clock
    from reverie.models.settings import LlmSettings
    from reverie.models.usage import Ledger, Spent, Usage

__all__ = ["Budgets", "SpentBudget", "spent_budgets"]

CACHE_MS = 5_000
"""How long the sums of the ledger are believed, in milliseconds: other processes spend, too."""
JITTER_S = 10.0
"""Tenants whose budget was spent do not all begin in the first second of the next day."""
MOST_TENANTS = 10_000
"""The most tenants whose sums are remembered."""
DAY_MS = 24 * 3600 * 1000

Tenant = tuple[str, str]
UPKEEP_LABELS = ("mem_organize", "memory_compression")
"""The labels of upkeep that ask the model: together they have a share of the tenant's budget."""


class SpentBudget(msgspec.Struct, frozen=True, kw_only=True):
    """A budget that a tenant has spent."""

    user_id: str
    mem_cube_id: str
    day: str
    what: Literal["tokens", "money"]


def spent_budgets(usage: Iterable[Usage], settings: LlmSettings) -> list[SpentBudget]:
    """The budgets that are spent, by the sums of one day."""
    sums: dict[tuple[str, str, str], list[int]] = {}
    for row in usage:
        own = sums.setdefault((row.user_id, row.mem_cube_id, row.day), [0, 0])
        own[0] += row.tokens
        own[1] += row.micros
    money = settings.money_per_day
    limits = (settings.tokens_per_day, None if money is None else round(money * 1_000_000))
    kinds: tuple[Literal["tokens", "money"], ...] = ("tokens", "money")
    return [
        SpentBudget(user_id=user_id, mem_cube_id=cube, day=day, what=what)
        for (user_id, cube, day), amounts in sums.items()
        for what, limit, amount in zip(kinds, limits, amounts, strict=True)
        if limit is not None and amount >= limit
    ]


class _Purse(NamedTuple):
    """The budget of a tenant, or the share of it that upkeep has."""

    tenant: Tenant
    of_upkeep: bool


class _Account:
    """What was spent on a day of one budget, and what the calls under way may cost."""

    def __init__(self, day: str) -> None:
        self.day = day
        self.spent = (0, 0)
        """Tokens and micros."""
        self.known_at: int | None = None
        self.reserved = [0, 0]
        self.calls = 0
        self.ended = asyncio.Event()


class Budgets:
    """Checks and counts what tenants spend. Calls under way count with what they may cost at most."""

    def __init__(
        self,
        ledger: Ledger,
        settings: LlmSettings,
        clock: Clock,
        on_spent: Callable[[SpentBudget], Awaitable[None]] | None = None,
    ) -> None:
        """`on_spent` is called with each budget that refuses a call; it must not fail."""
        self._ledger = ledger
        self._on_spent = on_spent
        self._clock = clock
        money = settings.money_per_day
        whole = (settings.tokens_per_day, None if money is None else round(money * 1_000_000))
        share = [None if limit is None else round(limit * settings.upkeep_share) for limit in whole]
        self._limits: dict[bool, Sequence[int | None]] = {False: whole, True: share}
        """Tokens and micros of a day: of a tenant, and of its upkeep (True)."""
        self._accounts: dict[_Purse, _Account] = {}
        self._spent: dict[Tenant, SpentBudget] = {}

    @property
    def day(self) -> str:
        """The present day in UTC."""
        return from_epoch_ms(self._clock.now()).date().isoformat()

    def spent(self) -> list[SpentBudget]:
        """The budgets of the present day that are spent, as far as this process has met them."""
        self._spent = {tenant: one for tenant, one in self._spent.items() if one.day == self.day}
        return list(self._spent.values())

    @asynccontextmanager
    async def reserve(self, tenant: Tenant, tokens: int, micros: int, label: str = "") -> AsyncIterator[None]:
        """Make a call of a label inside of this context that costs at most this much.

        `BudgetError` if the budget, or the share of upkeep, is spent. If only the calls under way may spend
        its rest, the call waits until they have ended.
        """
        accounts = [await self._open(purse) for purse in _purses(tenant, label)]
        for account in accounts:
            account.reserved[0] += tokens
            account.reserved[1] += micros
            account.calls += 1
        try:
            yield
        finally:
            for account in accounts:
                account.reserved[0] -= tokens
                account.reserved[1] -= micros
                account.calls -= 1
                account.ended.set()
                account.ended = asyncio.Event()

    async def write(self, spent: Spent) -> None:
        """Write the cost of a call to the ledger, and count it."""
        await self._ledger.write_spent([spent])
        for purse in _purses((spent.user_id, spent.mem_cube_id), spent.label):
            account = self._accounts.get(purse)
            if account is not None and account.day == spent.day:
                tokens, micros = account.spent  # until the sums are read again, a repeated call counts twice
                account.spent = (tokens + spent.input_tokens + spent.output_tokens, micros + spent.micros)

    async def _open(self, purse: _Purse) -> _Account:
        """The account of a budget, as soon as it has room."""
        limits = self._limits[purse.of_upkeep]
        while True:
            account = await self._account(purse)
            for what, limit, spent in zip(("tokens", "money"), limits, account.spent, strict=True):
                if limit is not None and spent >= limit:
                    error = self._exhausted(purse, account.day, what, spent, limit)
                    exhausted = self._spent.get(purse.tenant)
                    if self._on_spent is not None and exhausted is not None:
                        await self._on_spent(exhausted)
                    raise error
            together = [sum(pair) for pair in zip(account.spent, account.reserved, strict=True)]
            full = any(
                limit is not None and amount >= limit for limit, amount in zip(limits, together, strict=True)
            )
            if not full or not account.calls:
                return account
            await account.ended.wait()

    async def _account(self, purse: _Purse) -> _Account:
        """The account of a budget for the present day, with sums that are not too old."""
        day, now = self.day, self._clock.now()
        account = self._accounts.get(purse)
        if account is None or account.day != day:
            self._accounts.pop(purse, None)
            account = self._accounts[purse] = _Account(day)
            self._forget_idle()
        is_fresh = account.known_at is not None and 0 <= now - account.known_at <= CACHE_MS
        if any(limit is not None for limit in self._limits[purse.of_upkeep]) and not is_fresh:
            before = account.spent
            labels = UPKEEP_LABELS if purse.of_upkeep else ()
            spent = await self._ledger.spent_on(purse.tenant, day, labels)
            if account.spent == before:  # else a call has ended meanwhile, which may be missing in the sums
                account.spent, account.known_at = spent, now
        return account

    def _forget_idle(self) -> None:
        excess = max(0, len(self._accounts) - MOST_TENANTS)
        for purse in list(islice(self._accounts, excess)):
            if not self._accounts[purse].calls:
                del self._accounts[purse]

    def _exhausted(self, purse: _Purse, day: str, what: str, spent: int, limit: int) -> BudgetError:
        user_id, cube = purse.tenant
        kind: Literal["tokens", "money"] = "tokens" if what == "tokens" else "money"
        if not purse.of_upkeep:
            self._spent[purse.tenant] = SpentBudget(user_id=user_id, mem_cube_id=cube, day=day, what=kind)
            if len(self._spent) > MOST_TENANTS:
                del self._spent[next(iter(self._spent))]
        left_s = (DAY_MS - self._clock.now() % DAY_MS) / 1000
        amounts = f"{spent} of {limit} tokens" if kind == "tokens" else f"{spent / 1e6:g} of {limit / 1e6:g}"
        whose, setting = ("", "") if not purse.of_upkeep else (" for upkeep", " * llm.upkeep_share")
        return BudgetError(
            f"the {kind} budget of the tenant {user_id}/{cube}{whose} for {day} (UTC) is spent: {amounts} "
            f"(llm.{kind}_per_day{setting}); its model work goes on with the next day",
            retry_after=left_s + random.uniform(1, JITTER_S),  # noqa: S311  jitter, not a secret
        )


def _purses(tenant: Tenant, label: str) -> list[_Purse]:
    """The budgets that pay for a call: that of upkeep first, because it is spent first."""
    of_upkeep = [_Purse(tenant, of_upkeep=True)] if label in UPKEEP_LABELS else []
    return [*of_upkeep, _Purse(tenant, of_upkeep=False)]
