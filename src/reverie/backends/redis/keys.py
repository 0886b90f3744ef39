"""The names of all keys on the server.

| key | what it is |
|---|---|
| `{prefix}:{user_id}:{mem_cube_id}:{label}` | a lane: the stream of its messages; gone when drained |
| `{prefix}:lanes:{user_id}` | hash: the counts of a user's lanes that have work (see `lua/lanes.lua`) |
| `{prefix}:ready:{label}` | sorted set: the lanes that may be served, by their turn |
| `{prefix}:resting` | sorted set: until when lanes rest, drained ones too |
| `{prefix}:labels` | hash: how much each label has, and all together (see `lua/scopes.lua`) |
| `{prefix}:unordered` | set: labels of which lanes were served without order |
| `{prefix}:parked` | hash: labels of the lanes that wait until their tenant has fewer in progress |
| `{prefix}:arrivals` | sorted set: when the rate of each tenant allows the next message, if not now |
| `{prefix}:leases` | sorted set: when the lease of each message that is claimed runs out |
| `{prefix}:claimed`, `{prefix}:claims` | sorted set: when each claim was made; hash: what it still holds |
| `{prefix}:delayed`, `{prefix}:due` | hash: bodies of messages that wait aside; sorted set: when due |
| `{prefix}:deadlines` | sorted set: by when waiting messages must have started |
| `{prefix}:dependants:{item}` | set: the items of the same user that wait for this one, until it ends |
| `{prefix}:unique:{lane}:{unique_key}` | sorted set: the items that have the key; expires after its window |
| `{prefix}:memos:{item}` | hash: what runs of a message have kept, by step |
| `{prefix}:history:{item}` | list: how its runs ended that did not complete it, the last 20; as JSON |
| `{prefix}:dead` | hash: the bodies of dead letters and cancelled messages |
| `{prefix}:failed`, `{prefix}:cancelled` | sorted sets: these, by their number |
| `{prefix}:expiry` | sorted set: when the status of ended items is removed |
| `{prefix}:paused` | hash: why labels are paused |
| `{prefix}:workers`, `{prefix}:alive` | hash: what workers handle; sorted set: until when they are alive |
| `{prefix}:horizon` | the next moment `advance` is due |
| `{prefix}:wake:{label}`, `{prefix}:wake_time`, `{prefix}:wake_clock` | lists of tokens that end a wait |
| `{prefix}:offers`, `{prefix}:hand:{worker}` | hash: what idle workers ask for; list: what they got |
| `{prefix}:worker:{worker}` | no key but a channel: who listens to it is there |
| `{prefix}:shared:{key}` | what workers share about a thing they call, as JSON; expires |
| `{prefix}:opened` | which of those have an open breaker, and until when |
| `{prefix}:news:{database}` | no key but a channel: what processes tell each other |
| `{prefix}:replicated` | no key but a channel that nobody hears (see `replication.py`) |
| `{prefix}:version` | what version these keys have (see `library.py`) |
| `{prefix}:clock` | only in tests: the time, which then stands still |
| `{status_prefix}:task_meta:{user_id}` | hash: how each item stands, as JSON (see `lua/items.lua`) |
| `{status_prefix}:task_items:{user_id}:{task_id}` | set: the items of a business task |
| `{trigger_prefix}:task_type:{task_type}` | hash: a task type, as it is configured; version; enabled |
| `{trigger_prefix}:task_types` | set: all of them |
| `{trigger_prefix}:task:{task_type}:{user_key}` | hash: a user's task; expires when it is finished |
| `{trigger_prefix}:periodic:{task_type}` | hash: the same for a type that belongs to no user |
| `{trigger_prefix}:tasks:{task_type}` | sorted set: the user keys of its tasks, in their order |
| `{trigger_prefix}:queue:{task_type}` | sorted set: user keys, by when they are due; not while they run |
| `{trigger_prefix}:blocked:{task_type}` | sorted set: those that wait for tasks they depend on |
| `{trigger_prefix}:finished:{task_type}` | sorted set: when finished tasks are forgotten |
| `{trigger_prefix}:last_exec:{task_type}:{user_key}` | when a run last ended well; expires |
| `{trigger_prefix}:lock:{task_type}:{user_key}` | the item that is its run, while that is under way |
| `{trigger_prefix}:statistics:{task_type}` | hash: what is counted of a type |

How ids are written stands in `backends/lane_keys.py`. `{item}` is a user's encoded id, `:` and the id of an
item, encoded together once more. `{status_prefix}` is `memos` for the queue with the default prefix, for
others their prefix and `-status`; `{trigger_prefix}` is `scheduler`, or their prefix and `-scheduler`. A lane
has three parts after the prefix, the queue's own keys have one, two or five. `lua/trigger_hashes.lua` lists
the fields of a task's hash. A user key comes last and is not encoded: no two user keys are alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reverie.backends.lane_keys import DEFAULT_PREFIX, decode_id, encode_id, lane_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reverie.message import Key, Lane

__all__ = ["DEFAULT_PREFIX", "GROUP", "Keys", "decode_id", "encode_id"]

STATUS_PREFIX = "memos"
TRIGGER_PREFIX = "scheduler"
GROUP = "scheduler_group"


class Keys:
    """Names for one queue."""

    def __init__(self, prefix: str = DEFAULT_PREFIX) -> None:
        self.prefix = prefix
        is_default = prefix == DEFAULT_PREFIX
        self.status_prefix = STATUS_PREFIX if is_default else f"{prefix}-status"
        self.trigger_prefix = TRIGGER_PREFIX if is_default else f"{prefix}-scheduler"

    def lane(self, lane: Lane) -> str:
        """What follows the prefix in the key of a lane's stream."""
        user = encode_id(lane.user_id)
        cube = user if lane.mem_cube_id == lane.user_id else encode_id(lane.mem_cube_id)
        return f"{user}:{cube}:{encode_id(lane.label)}"

    def stream(self, lane: Lane) -> str:
        """The stream of a lane."""
        return lane_key(lane, self.prefix)

    def task_meta(self, user_id: str) -> str:
        """The hash of a user's items."""
        return f"{self.status_prefix}:task_meta:{encode_id(user_id)}"

    def task_items(self, user_id: str, task_id: str) -> str:
        """The set of the items of a business task."""
        return f"{self.status_prefix}:task_items:{encode_id(user_id)}:{encode_id(task_id)}"

    def memos(self, key: Key) -> str:
        """The hash of what the runs of a message have kept."""
        return f"{self.prefix}:memos:{encode_id(f'{encode_id(key.user_id)}:{key.item_id}')}"

    def news(self, database: int) -> str:
        """The channel on which processes tell each other something; channels know no databases."""
        return f"{self.prefix}:news:{database}"

    def hand(self, worker: str) -> str:
        """The list in which a worker that waits is given work."""
        return f"{self.prefix}:hand:{encode_id(worker)}"

    def worker(self, worker: str) -> str:
        """The channel that a worker listens to as long as it is there."""
        return f"{self.prefix}:worker:{encode_id(worker)}"

    @property
    def replicated(self) -> str:
        """The channel of what is published only to be replicated."""
        return f"{self.prefix}:replicated"

    @property
    def wake_clock(self) -> str:
        """The list that every waiter blocks on; only tests leave something there."""
        return f"{self.prefix}:wake_clock"

    def wake(self, labels: Sequence[str]) -> list[str]:
        """The lists a waiter blocks on; without labels it waits for time."""
        lists = [f"{self.prefix}:wake:{encode_id(label)}" for label in labels]
        return [*(lists or [f"{self.prefix}:wake_time"]), self.wake_clock]
