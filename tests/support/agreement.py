"""Whether the tables of a memory store agree: items, words, vectors, counts, links and history.

The checker reads the tables by itself, with no code of the store but the tokenizer, and says all that is
wrong at once.
"""

from __future__ import annotations

import struct
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

import apsw
import msgspec

from reverie.effect import Source
from reverie.memory.prepare import Indexable, speaker_of
from reverie.memory.words import index_words

if TYPE_CHECKING:
    from pathlib import Path

ITEMS = """
SELECT seq, user_id, id, project_id, tenant, tier, superseded_by, server_session_id, kind,
  coalesce(valid_from_epoch, created_at_epoch) AS held_at, importance, access_count, worth_epoch, text, title,
  narrative, facts, sources, valid_from_epoch, version
FROM memory_items
"""
MEMORY_TABLES = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE 'memory!_%' ESCAPE '!'"


class Table(NamedTuple):
    """The rows of a table, each as a dictionary."""

    rows: list[dict[str, Any]]

    def by(self, *columns: str) -> dict[Any, dict[str, Any]]:
        return {tuple(row[name] for name in columns): row for row in self.rows}


class Agreement:
    """What a file says about its memories, and what in it disagrees."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self.wrong: list[str] = []
        tables = {name for (name,) in connection.execute(MEMORY_TABLES)}
        self.items = self._read(ITEMS)
        for name in (
            "cards", "postings", "bits", "shelves", "tiers", "tenants", "names", "sessions",
            "links", "versions", "tombstones", "unindexed", "models", "state",
        ):  # fmt: skip
            setattr(self, name, self._read(f"SELECT * FROM memory_{name}"))
        self.has_old_index = "memory_words" in tables
        self.state_of = {row["name"]: row["value"] for row in self.state.rows}

    def _read(self, statement: str) -> Table:
        cursor = self._connection.execute(statement)
        try:
            names = [column[0] for column in cursor.get_description()]
        except apsw.ExecutionCompleteError:
            return Table([])
        return Table([dict(zip(names, row, strict=True)) for row in cursor])

    def expect(self, right: object, reason: str) -> None:
        if not right:
            self.wrong.append(reason)

    def check(self, *, indexed: bool) -> None:
        """`indexed`: the indexer has nothing left to do, so that all items must have their index."""
        self._cards(indexed=indexed)
        self._words()
        self._vectors(indexed=indexed)
        self._shelves()
        self._tiers()
        self._links()
        self._deleted()

    def _cards(self, *, indexed: bool) -> None:
        items = self.items.by("seq")
        cards = self.cards.by("seq")
        tenants = {(row["user_id"], row["project_id"]): row["tenant"] for row in self.tenants.rows}
        sessions = {row["session"]: row for row in self.sessions.rows}
        places: Counter[tuple[Any, ...]] = Counter()
        for key in cards.keys() - items.keys():
            self.expect(False, f"card {key} has no item")
        for key, item in items.items():
            if item["tenant"] is None:
                self.expect(not indexed, f"item {item['id']} has no tenant")
                self.expect(key not in cards, f"item {item['id']} has a card and no tenant")
                continue
            owner = tenants.get((item["user_id"], item["project_id"]))
            self.expect(owner == item["tenant"], f"item {item['id']} has the wrong tenant")
            card = cards.get(key)
            if card is None:
                self.expect(False, f"item {item['id']} has no card")
                continue
            past = item["superseded_by"] is not None or item["tier"] == "archive"
            self.expect(card["shelf"] == 2 * item["tenant"] + past, f"card of {item['id']}: wrong shelf")
            for own, of_item in (
                ("kind", "kind"), ("held_at_epoch", "held_at"), ("importance", "importance"),
                ("uses", "access_count"),
            ):  # fmt: skip
                self.expect(
                    card[own] == item[of_item],
                    f"card of {item['id']}: {own} is {card[own]!r}, not {item[of_item]!r}",
                )
            texts = indexable(item)
            self.expect(card["speaker"] == texts.speaker, f"card of {item['id']}: wrong speaker")
            name = (item["tenant"], texts.speaker)
            self.expect(texts.speaker is None or name in self.names.by("tenant", "name"), f"unknown {name}")
            self.expect(card["asks"] == texts.asks, f"card of {item['id']}: wrong asks")
            alive = item["superseded_by"] is None
            self.expect((item["worth_epoch"] is not None) == alive, f"worth of {item['id']} is wrong")
            if item["server_session_id"] is None:
                self.expect(card["session"] is None, f"card of {item['id']} has a session")
            else:
                session = sessions.get(card["session"])
                found = session and (session["tenant"], session["server_session_id"])
                self.expect(
                    found == (item["tenant"], item["server_session_id"]),
                    f"card of {item['id']}: wrong session",
                )
                self.expect(session and 1 <= card["place"] <= session["places"], f"{item['id']}: wrong place")
                places[card["session"], card["place"]] += 1
        self.expect(all(n == 1 for n in places.values()), "two items have one place in a conversation")

    def _words(self) -> None:
        postings: dict[int, dict[str, tuple[int, int, int]]] = {}
        for row in self.postings.rows:
            own = postings.setdefault(row["seq"], {})
            self.expect(row["word"] not in own, f"word {row['word']!r} of {row['seq']} is on two shelves")
            own[row["word"]] = (row["shelf"], row["times"], row["length"])
        items, cards = self.items.by("seq"), self.cards.by("seq")
        self.expect(not {(seq,) for seq in postings} - cards.keys(), "words of items without a card")
        for key, card in cards.items():
            if key not in items:
                continue
            item = items[key]
            times = Counter(index_words(indexable(item).for_words))
            length = times.total()
            expected = {word: (card["shelf"], n, length) for word, n in times.items()}
            self.expect(card["length"] == length, f"card of {item['id']}: wrong length")
            self.expect(card["words"].split() == list(times), f"card of {item['id']}: wrong words")
            self.expect(postings.get(key[0], {}) == expected, f"wrong words of {item['id']}")

    def _vectors(self, *, indexed: bool) -> None:
        rebuilding = "rebuild" in self.state_of
        cards = self.cards.by("seq")
        unindexed = {row["seq"] for row in self.unindexed.rows}
        self.expect(unindexed <= {seq for (seq,) in self.items.by("seq")}, "unindexed has unknown items")
        bits: Counter[tuple[int, int, int, int]] = Counter()
        for row in self.bits.rows:
            seqs = [seq for (seq,) in struct.iter_unpack("<q", row["seqs"])]
            self.expect(0 < len(seqs) <= 24, f"block {row['block']} has {len(seqs)} items")
            self.expect(len(row["bits"]) % len(seqs) == 0, f"block {row['block']} has bits of odd length")
            for seq in seqs:
                bits[row["shelf"], row["embedder"], row["block"], seq] += 1
        self.expect(all(n == 1 for n in bits.values()), "an item is twice in a block")
        expected = {
            (card["shelf"], card["embedder"], card["block"], card["seq"])
            for card in self.cards.rows
            if card["embedder"] is not None
        }
        self.expect(not bits.keys() - expected, f"vectors without a card: {bits.keys() - expected}")
        lost = expected - bits.keys()
        self.expect(rebuilding or not lost, f"items have lost their vectors: {lost}")
        for (seq,), card in cards.items():
            has_vector = card["vector"] is not None
            self.expect(has_vector == (card["embedder"] is not None), f"card {seq}: vector without embedder")
        if indexed:
            self.expect(not unindexed, f"items are left to the indexer: {unindexed}")
            tokenizer, _, embedder = self.state_of.get("models", "").partition("/")
            wanted = None if embedder == "None" else int(embedder)
            makers = {(card["tokenizer"], card["embedder"]) for card in self.cards.rows}
            if wanted is None:
                makers = {(tokenizer_, None) for tokenizer_, _ in makers}
            self.expect(
                makers <= {(int(tokenizer), wanted)}, f"cards by {makers}, not {tokenizer}/{embedder}"
            )

    def _shelves(self) -> None:
        counted: dict[int, list[int]] = {}
        for card in self.cards.rows:
            sums = counted.setdefault(card["shelf"], [0, 0])
            sums[0] += 1
            sums[1] += card["length"]
        found = {row["shelf"]: [row["items"], row["words"]] for row in self.shelves.rows}
        for shelf in counted.keys() | found.keys():
            self.expect(
                found.get(shelf, [0, 0]) == counted.get(shelf, [0, 0]),
                f"shelf {shelf} has {counted.get(shelf)}, but counts {found.get(shelf)}",
            )

    def _tiers(self) -> None:
        alive = [row for row in self.items.rows if row["tenant"] is not None and row["superseded_by"] is None]
        counted = Counter((row["tenant"], row["tier"]) for row in alive)
        found = {(row["tenant"], row["tier"]): row["items"] for row in self.tiers.rows if row["items"]}
        self.expect(found == dict(counted), f"tiers have {dict(counted)}, but count {found}")

    def _links(self) -> None:
        known = {(row["user_id"], row["id"]): row["project_id"] for row in self.items.rows}
        for row in self.links.rows:
            ends = {known.get((row["user_id"], row[end])) for end in ("source_id", "target_id")}
            self.expect(None not in ends and len(ends) == 1, f"a link leads nowhere: {row}")
        buried = {(row["user_id"], row["id"]) for row in self.tombstones.rows}
        for row in self.items.rows:
            successor = row["superseded_by"]
            key = (row["user_id"], successor)
            self.expect(
                successor is None or key in known or key in buried, f"{row['id']} has an unknown successor"
            )
        for row in self.versions.rows:
            item = next(
                (i for i in self.items.rows if (i["user_id"], i["id"]) == (row["user_id"], row["id"])), None
            )
            self.expect(item is not None, f"history of the unknown item {row['id']}")
            self.expect(item is None or row["version"] < item["version"], f"future history of {row['id']}")

    def _deleted(self) -> None:
        buried = {(row["user_id"], row["id"]) for row in self.tombstones.rows}
        alive = {(row["user_id"], row["id"]) for row in self.items.rows}
        self.expect(not buried & alive, f"deleted items are there: {buried & alive}")
        named = {
            (row["user_id"], row[end]) for row in self.links.rows for end in ("source_id", "target_id")
        } | {(row["user_id"], row["id"]) for row in self.versions.rows}
        self.expect(not buried & named, f"links or history of deleted items: {buried & named}")


def indexable(item: dict[str, Any]) -> Indexable:
    """The texts of a row of `memory_items` that are indexed."""
    return Indexable(
        item["text"],
        item["title"],
        item["narrative"],
        tuple(msgspec.json.decode(item["facts"])) if item["facts"] else (),
        speaker_of(msgspec.json.decode(item["sources"], type=tuple[Source, ...])),
        item["valid_from_epoch"],
    )


def disagreements(connection: apsw.Connection, *, indexed: bool = False) -> list[str]:
    """All that is wrong in a database with memories."""
    with connection:  # one snapshot for all tables
        agreement = Agreement(connection)
    agreement.check(indexed=indexed)
    return agreement.wrong


def assert_agreement(path: Path | str, *, indexed: bool = False) -> None:
    """Fail if the tables of a file disagree."""
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)) as connection:
        connection.set_busy_timeout(10_000)  # the last reader of a closed store may be about to end
        wrong = disagreements(connection, indexed=indexed)
        damage = connection.execute("PRAGMA integrity_check").get
    assert wrong == []
    assert damage == "ok"
