"""How a worker's slots are shared among levels."""

from __future__ import annotations

from collections import Counter

import pytest

from reverie.backends.moves import ClaimRequest
from reverie.base.clock import SystemClock
from reverie.dispatch.pauses import Pauses
from reverie.dispatch.registry import Registry
from reverie.dispatch.settings import LabelSettings, WorkerSettings
from reverie.dispatch.slots import Slots


def slots(number: int = 8, *levels: int, **settings) -> tuple[Slots, Registry]:
    registry = Registry(WorkerSettings())
    for level in levels or (1, 2, 3):
        options = LabelSettings(level=level, concurrency=1000)
        registry.add(f"level-{level}", lambda message: None, options=options)
    return Slots(registry, WorkerSettings(slots=number, **settings), Pauses(SystemClock())), registry


def ask(given: tuple[Slots, Registry]) -> ClaimRequest:
    own, registry = given
    return own.request("w", registry.handlers)


def most(request: ClaimRequest) -> list[int]:
    return [request.levels[level].most for level in (1, 2, 3)]


def test_two_slots_are_kept_for_level_1_and_one_for_level_2() -> None:
    given = slots(8)
    assert most(ask(given)) == [7, 6, 5]
    for _ in range(5):
        given[0].take("level-3")
    assert most(ask(given)) == [2, 1, 0]
    given[0].take("level-1")
    assert most(ask(given)) == [1, 1, 0]
    given[0].give_back("level-3")
    assert most(ask(given)) == [2, 2, 1]


def test_nothing_is_reserved_for_a_level_that_has_no_handler() -> None:
    assert most(ask(slots(8, 3)))[2] == 8
    assert most(ask(slots(8, 2, 3)))[2] == 7


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_small_worker_still_does_everything(number: int) -> None:
    assert all(room >= 1 for room in most(ask(slots(number))))


def test_a_full_worker_wants_nothing() -> None:
    given = slots(2)
    given[0].take("level-3")
    given[0].take("level-3")
    request = ask(given)
    assert (request.wants, request.slots) == ({}, 0)


@pytest.mark.parametrize("free", [1, 2, 5, 21, 50])
def test_shares_follow_the_weights_however_few_are_free_at_once(free: int) -> None:
    given = slots(1000, reserved_level_1=0, reserved_level_2=0)
    for _ in range(1000 - free):
        given[0].take("level-3")
    shares: Counter[int] = Counter()
    for _ in range(2100):
        shares.update({level: room.share for level, room in ask(given).levels.items()})
    assert shares.total() == 2100 * free
    assert [round(shares[level] / shares.total() * 21, 1) for level in (1, 2, 3)] == [16, 4, 1]


def test_labels_of_which_least_is_running_come_first() -> None:
    given = slots(8)
    given[0].take("level-1")
    assert next(iter(ask(given).wants)) != "level-1"


def test_a_claim_is_enough_that_fills_the_room_of_a_level() -> None:
    given = slots(8)
    assert ask(given).enough == 7
    for _ in range(6):
        given[0].take("level-1")
    assert ask(given).enough == 2


def test_an_empty_claim_is_never_enough() -> None:
    own, registry = slots(3, 1, 3)
    own.take("level-3")
    request = own.request("w", [handler for handler in registry.handlers if handler.label == "level-3"])
    assert (list(request.wants), most(request)[2]) == (["level-3"], 0)
    assert request.enough == 1
