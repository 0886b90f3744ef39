"""The budgets of tenants: how many tokens, and how much money, each may spend on a day."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Literal

import msgspec

from reverie.base.clock import from_epoch_ms
from reverie.failures import BudgetError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

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


class _Account:
    """What a tenant has spent on a day, and what its calls under way may cost."""

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
        self._limits = (settings.tokens_per_day, None if money is None else round(money * 1_000_000))
        self._accounts: dict[Tenant, _Account] = {}
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
    async def reserve(self, tenant: Tenant, tokens: int, micros: int) -> AsyncIterator[None]:
        """Make a call inside of this context that costs at most this much.

        `BudgetError` if the budget is spent. If only the calls under way may spend its rest, the call waits
        until they have ended.
        """
        account = await self._open(tenant)
        account.reserved[0] += tokens
        account.reserved[1] += micros
        account.calls += 1
        try:
            yield
        finally:
            account.reserved[0] -= tokens
            account.reserved[1] -= micros
            account.calls -= 1
            account.ended.set()
            account.ended = asyncio.Event()

    async def write(self, spent: Spent) -> None:
        """Write the cost of a call to the ledger, and count it."""
        await self._ledger.write_spent([spent])
        account = self._accounts.get((spent.user_id, spent.mem_cube_id))
        if account is not None and account.day == spent.day:
            tokens, micros = account.spent  # until the sums are read again, a repeated call counts twice
            account.spent = (tokens + spent.input_tokens + spent.output_tokens, micros + spent.micros)

    async def _open(self, tenant: Tenant) -> _Account:
        """The account of a tenant, as soon as its budget has room."""
        while True:
            account = await self._account(tenant)
            for what, limit, spent in zip(("tokens", "money"), self._limits, account.spent, strict=True):
                if limit is not None and spent >= limit:
                    error = self._exhausted(tenant, account.day, what, spent, limit)
                    if self._on_spent is not None:
                        await self._on_spent(self._spent[tenant])
                    raise error
            together = [sum(pair) for pair in zip(account.spent, account.reserved, strict=True)]
            full = any(
                limit is not None and amount >= limit
                for limit, amount in zip(self._limits, together, strict=True)
            )
            if not full or not account.calls:
                return account
            await account.ended.wait()

    async def _account(self, tenant: Tenant) -> _Account:
        """The account of a tenant for the present day, with sums that are not too old."""
        day, now = self.day, self._clock.now()
        account = self._accounts.get(tenant)
        if account is None or account.day != day:
            self._accounts.pop(tenant, None)
            account = self._accounts[tenant] = _Account(day)
            self._forget_idle()
        is_fresh = account.known_at is not None and 0 <= now - account.known_at <= CACHE_MS
        if self._limits != (None, None) and not is_fresh:
            before = account.spent
            spent = await self._ledger.spent_on(tenant, day)
            if account.spent == before:  # else a call has ended meanwhile, which may be missing in the sums
                account.spent, account.known_at = spent, now
        return account

    def _forget_idle(self) -> None:
        for tenant, account in list(self._accounts.items())[:-MOST_TENANTS]:
            if not account.calls:
                del self._accounts[tenant]

    def _exhausted(self, tenant: Tenant, day: str, what: str, spent: int, limit: int) -> BudgetError:
        user_id, cube = tenant
        kind: Literal["tokens", "money"] = "tokens" if what == "tokens" else "money"
        self._spent[tenant] = SpentBudget(user_id=user_id, mem_cube_id=cube, day=day, what=kind)
        if len(self._spent) > MOST_TENANTS:
            del self._spent[next(iter(self._spent))]
        left_s = (DAY_MS - self._clock.now() % DAY_MS) / 1000
        amounts = f"{spent} of {limit} tokens" if kind == "tokens" else f"{spent / 1e6:g} of {limit / 1e6:g}"
        return BudgetError(
            f"the {kind} budget of the tenant {user_id}/{cube} for {day} (UTC) is spent: {amounts} "
            f"(llm.{kind}_per_day); its model work goes on with the next day",
            retry_after=left_s + random.uniform(1, JITTER_S),  # noqa: S311  jitter, not a secret
        )
