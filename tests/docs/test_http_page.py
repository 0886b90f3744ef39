"""`docs/http.md` names every route of the table with its role, and no other route."""

from __future__ import annotations

import re
from pathlib import Path

from reverie.api.routes import ROUTES

PAGE = Path(__file__).parents[2] / "docs" / "http.md"
ROW = re.compile(r"^\| `([A-Z]+) (/\S*)` \| ([\w-]+) \| \S.* \|$", re.MULTILINE)
NAMED = re.compile(r"`([A-Z]+) (/\S*)`")


def test_the_page_names_every_route_and_its_role() -> None:
    text = PAGE.read_text(encoding="utf-8")
    table = {(route.method, route.path, route.role.title) for route in ROUTES}
    assert sorted(ROW.findall(text)) == sorted(table)
    assert {name[:2] for name in table} == set(NAMED.findall(text))
