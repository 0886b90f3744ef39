"""The names of all keys on the server.

| key | what it is |
|---|---|
| `{prefix}:{user_id}:{mem_cube_id}:{label}` | a lane: the stream of its messages; gone when drained |
| `{prefix}:lanes:{user_id}` | hash: a user's lanes that have work, with counts (see `lua/lanes.lua`) |
| `{prefix}:ready:{label}` | sorted set: the lanes that may be served, by their turn |
| `{prefix}:resting` | sorted set: until when each lane rests, also drained lanes |
| `{prefix}:labels` | hash: the counts of each label, and of all together (see `lua/scopes.lua`) |
| `{prefix}:unordered` | set: labels whose lanes are served without order |
| `{prefix}:parked` | hash: by tenant, labels of lanes that wait until it has fewer in progress |
| `{prefix}:arrivals` | sorted set: when the rate of each tenant allows the next message, if not now |
| `{prefix}:leases` | sorted set: when the lease of each claimed message runs out |
| `{prefix}:claimed`, `{prefix}:claims` | sorted set: when each claim was made; hash: how many it holds |
| `{prefix}:delayed`, `{prefix}:due` | hash: bodies of messages that wait aside; sorted set: their due times |
| `{prefix}:deadlines` | sorted set: by when waiting messages must have started |
| `{prefix}:dependants:{item}` | set: the items of the same user that wait for this one, until it ends |
| `{prefix}:unique:{lane}:{unique_key}` | sorted set: the items that have the key; expires after its window |
| `{prefix}:memos:{item}` | hash: the memos of a message, by step |
| `{prefix}:history:{item}` | list: the last 20 runs that did not complete it, as JSON |
| `{prefix}:dead` | hash: the bodies of dead letters and cancelled messages |
| `{prefix}:failed`, `{prefix}:cancelled` | sorted sets: dead letters and cancelled messages, by number |
| `{prefix}:expiry` | sorted set: when the status of ended items is removed |
| `{prefix}:paused` | hash: the paused labels, and why |
| `{prefix}:workers`, `{prefix}:alive` | hash: labels of each worker; sorted set: until when it is alive |
| `{prefix}:horizon` | the next moment at which `advance` is due |
| `{prefix}:retention` | by how many milliseconds the entries of `:expiry` were dated at most |
| `{prefix}:wake_horizon` | stream of one entry, which tells all waiters for time of an earlier horizon |
| `{prefix}:wake:{label}`, `{prefix}:wake_clock` | lists of tokens that end a wait |
| `{prefix}:offers`, `{prefix}:hand:{worker}` | hash: standing requests; list: what was claimed for one |
| `{prefix}:worker:{worker}` | no key but a channel: a connected worker listens to it |
| `{prefix}:shared:{key}` | the breaker and limiter that workers share for one key, as JSON; expires |
| `{prefix}:opened` | hash: the keys that have an open breaker, and until when |
| `{prefix}:records:{kind}` | hash: the records of a kind (API keys, webhooks …), as JSON |
| `{prefix}:audit` | stream: the audit log |
| `{prefix}:news:{database}` | no key but a channel: news between processes |
| `{prefix}:replicated` | no key but a channel that nobody hears (see `replication.py`) |
| `{prefix}:version` | the version of these keys (see `library.py`) |
| `{word}:prefixes` | set: all prefixes that begin with this word, also before `:` (see `prefixes.py`) |
| `{prefix}:clock` | only in tests: the time, while the clock is stopped |
| `{status_prefix}:task_meta:{user_id}` | hash: status and details of each item, JSON (see `lua/items.lua`) |
| `{status_prefix}:task_items:{user_id}:{task_id}` | set: the items of a business task |
| `{trigger_prefix}:task_type:{task_type}` | hash: a trigger type: configuration, version, enabled |
| `{trigger_prefix}:task_types` | set: all trigger types |
| `{trigger_prefix}:task:{task_type}:{user_key}` | hash: a user's trigger; expires after it is finished |
| `{trigger_prefix}:periodic:{task_type}` | hash: the trigger of a type that belongs to no user |
| `{trigger_prefix}:tasks:{task_type}` | sorted set: the user keys of its triggers, in order |
| `{trigger_prefix}:queue:{task_type}` | sorted set: user keys by due time in seconds, for people to read |
| `{trigger_prefix}:due:{task_type}` | sorted set: user keys by due time, unless the trigger is running |
| `{trigger_prefix}:blocked:{task_type}` | sorted set: the same for triggers that wait for another one |
| `{trigger_prefix}:finished:{task_type}` | sorted set: when finished triggers are forgotten |
| `{trigger_prefix}:last_exec:{task_type}:{user_key}` | when a run last ended well; expires |
| `{trigger_prefix}:lock:{task_type}:{user_key}` | the id of the claim that holds its run; expires |
| `{trigger_prefix}:statistics:{task_type}` | hash: the statistics of a type |

`backends/lane_keys.py` says how ids are written. `{item}` is a user's encoded id, `:` and the id of an item,
encoded together once more. With the default prefix, `{status_prefix}` is `memos` and `{trigger_prefix}` is
`scheduler`; otherwise they are the prefix with `-status` and with `-scheduler`. A lane has three parts after
the prefix, the queue's own keys have one, two or five. `lua/trigger_hashes.lua` lists the fields of a
trigger's hash. A user key comes last and is not encoded: no two user keys are alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie.backends.lane_keys import DEFAULT_PREFIX, decode_id, encode_id, lane_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.message import Key, Lane

__all__ = ["DEFAULT_PREFIX", "GROUP", "OWN_SUFFIXES", "TRIGGER_KINDS", "Keys", "decode_id", "encode_id"]

STATUS_PREFIX = "memos"
TRIGGER_PREFIX = "scheduler"
OWN_SUFFIXES = ("-status", "-scheduler")
"""What follows a prefix other than the default in the keys of its statuses and of its triggers."""
STATUS_KINDS = ("task_meta", "task_items")
TRIGGER_KINDS = (
    "task_type",
    "task_types",
    "task",
    "periodic",
    "tasks",
    "queue",
    "due",
    "blocked",
    "finished",
    "last_exec",
    "lock",
    "statistics",
)
GROUP = "scheduler_group"


class Keys:
    """The names of the keys of one queue."""

    def __init__(self, prefix: str = DEFAULT_PREFIX) -> None:
        self.prefix = prefix
        own = (f"{prefix}{suffix}" for suffix in OWN_SUFFIXES)
        self.status_prefix, self.trigger_prefix = (
            (STATUS_PREFIX, TRIGGER_PREFIX) if prefix == DEFAULT_PREFIX else own
        )
        self.version = f"{prefix}:version"

    @property
    def stems(self) -> tuple[str, ...]:
        """What the keys of this queue begin with: each key is one of these, or goes on with `:`."""
        status = (f"{self.status_prefix}:{kind}" for kind in STATUS_KINDS)
        return (self.prefix, *status, *(f"{self.trigger_prefix}:{kind}" for kind in TRIGGER_KINDS))

    @property
    def prefixes(self) -> str:
        """The set of all prefixes on the server that could meet this one: see `prefixes.py`."""
        word = self.prefix.partition(":")[0]
        while shorter := next((word.removesuffix(end) for end in OWN_SUFFIXES if word.endswith(end)), None):
            word = shorter
        return f"{TRIGGER_PREFIX if word == STATUS_PREFIX else word}:prefixes"

    def lane(self, lane: Lane) -> str:
        """The name of a lane: the key of its stream without the prefix."""
        user = encode_id(lane.user_id)
        cube = user if lane.mem_cube_id == lane.user_id else encode_id(lane.mem_cube_id)
        return f"{user}:{cube}:{encode_id(lane.label)}"

    def stream(self, lane: Lane) -> str:
        """The key of a lane's stream."""
        return lane_key(lane, self.prefix)

    def task_meta(self, user_id: str) -> str:
        """The hash of a user's items."""
        return f"{self.status_prefix}:task_meta:{encode_id(user_id)}"

    def task_items(self, user_id: str, task_id: str) -> str:
        """The set of the items of a business task."""
        return f"{self.status_prefix}:task_items:{encode_id(user_id)}:{encode_id(task_id)}"

    def memos(self, key: Key) -> str:
        """The hash of a message's memos."""
        return f"{self.prefix}:memos:{encode_id(f'{encode_id(key.user_id)}:{key.item_id}')}"

    def records(self, kind: str) -> str:
        """The hash of the records of a kind."""
        return f"{self.prefix}:records:{encode_id(kind)}"

    @property
    def audit(self) -> str:
        """The stream of the audit log."""
        return f"{self.prefix}:audit"

    def news(self, database: int) -> str:
        """The channel for news between processes. It names the database, because channels belong to none."""
        return f"{self.prefix}:news:{database}"

    def hand(self, worker: str) -> str:
        """The list through which a waiting worker is given claims."""
        return f"{self.prefix}:hand:{encode_id(worker)}"

    def worker(self, worker: str) -> str:
        """The channel that a worker listens to while it is connected."""
        return f"{self.prefix}:worker:{encode_id(worker)}"

    @property
    def replicated(self) -> str:
        """The channel without listeners on which `replication.py` publishes."""
        return f"{self.prefix}:replicated"

    @property
    def wake_horizon(self) -> str:
        """The stream from which all waiters for time learn that something falls due earlier."""
        return f"{self.prefix}:wake_horizon"

    def wake(self, labels: Sequence[str]) -> list[str]:
        """The lists that a waiter for these labels blocks on; only tests leave tokens in the last one."""
        lists = [f"{self.prefix}:wake:{encode_id(label)}" for label in labels]
        return [*lists, f"{self.prefix}:wake_clock"]
