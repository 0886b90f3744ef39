"""The alert about tenants whose budget for the language model is spent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie import AsyncScheduler
from reverie.models.budgets import SpentBudget
from reverie.observe.rules import OF_ONE_PROCESS, budgets_spent
from reverie.settings import load_settings
from support.extractor import extract
from support.scripted_model import scripted

if TYPE_CHECKING:
    from pathlib import Path

    from reverie.testing import ManualClock


def spent(*users: str, what: str = "tokens") -> list[SpentBudget]:
    return [SpentBudget(user_id=user, mem_cube_id="home", day="2026-05-07", what=what) for user in users]


def test_no_budget_is_spent() -> None:
    assert budgets_spent([]) == []


def test_a_tenant_is_the_subject() -> None:
    (alert,) = budgets_spent(spent("ann", what="money"))
    assert (alert.id, alert.level) == ("budget_spent:ann/home", "warning")
    assert "the money budget of the tenant ann/home for 2026-05-07 (UTC) is spent" in alert.message
    assert "`reverie usage --days 1`; raise llm.money_per_day" in alert.remedy
    assert alert.rule in OF_ONE_PROCESS


def test_few_tenants_are_named_and_the_others_counted() -> None:
    assert len(budgets_spent(spent("a", "b", "c"))) == 3
    alerts = budgets_spent(spent("a", "b", "c", "d"))
    assert [alert.subject for alert in alerts] == ["a/home", "b/home", "c/home", ""]
    assert alerts[-1].message == "1 other tenant has a spent budget, too"
    assert budgets_spent(spent(*"abcdefgh"))[-1].message == "5 other tenants have a spent budget, too"


async def test_the_alert_begins_with_the_refusal_and_is_over_the_next_day(
    tmp_path: Path, clock: ManualClock
) -> None:
    with scripted() as model:
        model.answers = extract
        llm = {"preset": "custom", "url": model.url, "model": "tiny", "api_key": "k", "tokens_per_day": 15}
        settings = load_settings(queue={"url": f"sqlite:///{tmp_path / 'r.db'}"}, llm=llm)
        scheduler = AsyncScheduler(settings=settings, clock=clock)

        async def found() -> list[str]:
            return [alert.id for alert in await scheduler.observe.alerts() if alert.rule == "budget_spent"]

        await scheduler.submit("mem_read", user_id="ann", content="I like tea")
        await scheduler.runtime.drain()
        assert await found() == []
        await scheduler.submit("mem_read", user_id="ann", content="I like milk")
        await scheduler.runtime.drain()
        assert await found() == ["budget_spent:ann/ann"]
        clock.advance(24 * 3600)
        assert await found() == []
        await scheduler.stop()
