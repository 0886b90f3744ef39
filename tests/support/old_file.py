"""A file with memories as the last release before the search of today left it, by plain SQL."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import apsw

FROZEN = Path(__file__).parents[1] / "frozen"
MIGRATIONS = 4
_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003134f"
_TOKEN = re.compile(f"[{_UNSPACED}]+|[^\\W{_UNSPACED}]+")
_IS_UNSPACED = re.compile(f"[{_UNSPACED}]").match
INSERT = """
INSERT INTO memory_items (
  user_id, id, project_id, server_session_id, kind, tier, text, tags, info, sources, created_at_epoch,
  updated_at_epoch, version, superseded_by, access_count, accessed_at_epoch
) VALUES (
  :user_id, :id, :project_id, :session_id, :kind, :tier, :text, :tags, :info, :sources, :created_at,
  :created_at, :version, :superseded_by, :access_count, :accessed_at
) RETURNING seq
"""
NOTHING: dict[str, Any] = {
    "user_id": "ann",
    "session_id": None,
    "kind": "turn",
    "tier": "long_term",
    "tags": (),
    "info": None,
    "sources": (),
    "created_at": 1_700_000_000_000,
    "version": 1,
    "superseded_by": None,
    "access_count": 0,
    "accessed_at": None,
}


def old_index_words(text: str) -> str:
    """The words of a text as the old index has them, separated by spaces."""
    return " ".join(" ".join(token) if _IS_UNSPACED(token) else token for token in _TOKEN.findall(text))


def build_old_file(path: Path, texts: dict[str, str | dict[str, Any]], *, secure: bool = False) -> None:
    """Write a file with memories of ann: id → text, or the columns of the item.

    The last release did not overwrite what it had deleted; with `secure` this file has no such remains.
    """
    file = apsw.Connection(str(path))
    file.execute(f"PRAGMA secure_delete = {secure}")
    file.execute("PRAGMA journal_mode = WAL")
    file.execute("CREATE TABLE schema_versions (room TEXT PRIMARY KEY, version INTEGER)")
    for number in range(1, MIGRATIONS + 1):
        file.execute((FROZEN / f"memory_{number:04}.sql").read_text(encoding="utf-8"))
    file.execute("INSERT INTO schema_versions VALUES ('memory', ?)", (MIGRATIONS,))
    with file:
        for name, given in texts.items():
            item = NOTHING | {"id": name} | ({"text": given} if isinstance(given, str) else given)
            item.setdefault("project_id", item["user_id"])
            item |= {"tags": json.dumps(item["tags"]), "sources": json.dumps(item["sources"])}
            seq = file.execute(INSERT, item).get
            if item["superseded_by"] is None:
                words = (seq, old_index_words(item["text"]))
                file.execute("INSERT INTO memory_words (rowid, words) VALUES (?, ?)", words)
    file.close()
