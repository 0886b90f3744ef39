"""Write the page that names every setting of a model, from the settings themselves."""

from __future__ import annotations

import inspect
import json
import re
from collections import defaultdict
from typing import TYPE_CHECKING

from reverie.configuration.fields import Field, Place, all_fields, find

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import BaseModel

__all__ = ["page"]

OPENING = """# Settings

<!-- Written by `make pages` from the settings themselves: change them there, not here. -->

A setting has its default, unless it is set in one of these places; the later one wins:

1. `reverie.yaml` in the working folder, else in the configuration folder of the platform,
2. environment variables: those of the tables below, and [other names](#other-names),
3. arguments, such as `--url`, or `load_settings(queue={"url": "memory://"})` in a program.

```yaml
queue: {url: "sqlite:///reverie.db", max_depth: 100000}
labels:
  export: {level: 2, timeout_s: 30}
```

In the environment `__` leads into a group: `REVERIE_QUEUE__MAX_DEPTH=100000`. A variable may also set a
whole group, as JSON: `REVERIE_LABELS='{"export": {"level": 2}}'`. Names of variables may be in capitals or
not; what they name is always in small letters, so a label with capitals is set by such JSON or in the file.
`null` stands for nothing.

`reverie config show` lists what is in force and where it comes from, `reverie config check` what is wrong.
`reverie config reload` lets a worker in the background read the section `scheduler` anew; other settings are
read when a process starts ([operation](operation.md#changing-settings)).
A bad value, or a name that does not exist, is refused when a process starts: the error says where it was
set, its name, its value, and what is allowed.

```console
$ .venv/bin/reverie config check
ok
```
"""
OTHER = """## Other names

These variables set the same as the setting beside them. `REVERIE_…` wins over them.

| environment variable | setting | wins over the file |
|---|---|---|
"""
TABLE = """| setting | environment variable | type | unit | default | allowed | meaning |
|---|---|---|---|---|---|---|
"""
DEFAULT = re.compile(r"[;,] default:? (.+)$")


def page(model: type[BaseModel], other_names: Mapping[str, Place], default_names: Mapping[str, Place]) -> str:
    """The whole page, in Markdown. `other_names` set a setting, `default_names` replace its default."""
    groups: defaultdict[Place, list[Field]] = defaultdict(list)
    for field in all_fields(model):
        groups[field.place[:-1]].append(field)
    others = "".join(
        f"| `{name}` | `{'.'.join(place)}` | {wins} |\n"
        for names, wins in ((other_names, "yes"), (default_names, "no: it replaces the default"))
        for name, place in names.items()
    )
    sections = [_section(model, place, fields) for place, fields in groups.items()]
    return "\n".join([OPENING, *sections, OTHER + others])


def _section(model: type[BaseModel], place: Place, fields: list[Field]) -> str:
    title = f"`{'.'.join(place)}`" if place else "General"
    intro = f"{_first_line(find(model, place))}\n\n" if place else ""
    return f"## {title}\n\n{intro}{TABLE}{''.join(_row(field) for field in fields)}"


def _first_line(model: Field | type[BaseModel] | None) -> str:
    assert isinstance(model, type)
    return inspect.cleandoc(model.__doc__ or "").splitlines()[0]


def _row(field: Field) -> str:
    meaning, default = field.description, _code(field.default) if not field.computed else ""
    told = DEFAULT.search(meaning)
    if told and (field.computed or field.default is None):
        meaning, default = meaning[: told.start()], told[1]
    cells = [
        f"`{field.name}`",
        f"`{field.variable}`",
        field.kind,
        field.unit,
        default,
        field.allowed,
        meaning,
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _code(value: object) -> str:
    if value == "":
        return "nothing"
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"
