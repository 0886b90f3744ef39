"""The catalogue of built-in handlers: one entry for each label that every installation handles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reverie.handlers.add import add
from reverie.handlers.api_mix_search import api_mix_search
from reverie.handlers.data_cleanup import data_cleanup
from reverie.handlers.embedding_refresh import embedding_refresh
from reverie.handlers.mem_archive import mem_archive
from reverie.handlers.mem_feedback import mem_feedback
from reverie.handlers.mem_organize import mem_organize
from reverie.handlers.mem_read import mem_read
from reverie.handlers.mem_update import mem_update
from reverie.handlers.memory_compression import memory_compression
from reverie.handlers.observation import observation
from reverie.handlers.pref_add import pref_add
from reverie.handlers.query import answer, query
from reverie.handlers.session import session_complete, session_init
from reverie.handlers.statistics_update import statistics_update
from reverie.handlers.summary import summary
from reverie.message import level_of
from reverie.principal import Role

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CATALOGUE", "Builtin", "Described", "handlers_page"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What the documentation says of a handler."""

    input: str
    """The content of its messages."""
    example: str
    """The content of a message, as an example."""
    effect: str
    without_model: str
    """What happens where no language model is set up."""
    idempotency: str
    """Why a message that runs twice changes memory once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Builtin:
    """A built-in handler. Fields that are None follow the settings of the label, then those of the worker."""

    label: str
    function: Callable[..., Any]
    described: Described
    batch: bool = False
    batch_size: int | None = None
    """Messages in one call of a batch handler. One: no message runs before the effects of the message before
    it in its lane are written."""
    level: int | None = None
    """The level; None means the level of the label in `LABEL_LEVELS`."""
    timeout_s: float | None = None
    max_attempts: int | None = None
    asks_model: bool = False
    """Whether it asks the language model: while `llm.credential` is refused, its messages are not claimed."""
    role: Role = Role.USER
    """The role that a caller needs to submit messages of the label."""


UPKEEP_FIELDS = (
    "`interval_seconds`, the least window; in later messages of a pass its `pass_id`, the page (`since`, "
    "`until`, `after`), or a `group` of memory ids ([upkeep](upkeep.md#messages))"
)
"""The content of all messages of upkeep."""
ABOUT_SESSION = (
    "`memorySessionId`, and if known `projectId`, `at` (epoch milliseconds), `agent`, `reason`; for an end "
    "`status` (completed or failed)"
)
"""What the messages about the begin and the end of a session have."""
CATALOGUE: tuple[Builtin, ...] = (
    Builtin(
        label="add",
        function=add,
        batch=True,
        batch_size=100,
        described=Described(
            input="a list of turns: `content`, and if known `role`, `name`, `chat_time`, `message_id`, "
            "`type` (chat or doc); any other text is one turn of the user",
            example='[{"role": "user", "name": "Ann", "content": "I moved to Lisbon in May"}]',
            effect="each turn becomes a memory of kind `turn`, and is found from then on; it enters the chat "
            "buffer, and one `mem_read` for each buffer is kept waiting",
            without_model="turns are kept word for word, nothing is buffered",
            idempotency="memory ids `{item_id}.{index}`; the rows of the buffer have the same ids",
        ),
    ),
    Builtin(
        label="mem_read",
        function=mem_read,
        batch=True,
        batch_size=1,
        asks_model=True,
        described=Described(
            input="`blob_type` (and `blob_ids`): a buffer; or `memory_ids` (with `only_unread`, those that "
            "no run has read); or `text`; any other content is the text",
            example='{"blob_type": "chat"}',
            effect="facts, events and preferences are remembered, each linked to its turns (`derived_from`); "
            "a known fact gets further sources, one that has ended its `valid_to`; turns are marked as read",
            without_model="a text is kept word for word, buffers and memories stay as they are",
            idempotency="the id of a fact derives from its normalised text; rows are done only under the "
            "token of the claim; answers of the model are kept as memos",
        ),
    ),
    Builtin(
        label="query",
        function=query,
        described=Described(
            input="`query`, and if known `session_id` and `found` (memory ids); any other text is the query",
            example='{"query": "Where does Ann live?", "found": ["moved.0"]}',
            effect="accesses are counted, the query is kept among the last 20, a `mem_update` is submitted",
            without_model="the same",
            idempotency="the item_id of the message is the id of the query",
        ),
    ),
    Builtin(
        label="answer",
        function=answer,
        described=Described(
            input="`answer`, and if known `query_item_id` and `used` (memory ids); any other text is the "
            "answer",
            example='{"answer": "In Lisbon.", "query_item_id": "q-1", "used": ["moved.0"]}',
            effect="the answer is kept with its query, accesses are counted",
            without_model="the same",
            idempotency="an answer replaces the one that its query has",
        ),
    ),
    Builtin(
        label="mem_update",
        function=mem_update,
        batch=True,
        batch_size=1,
        described=Described(
            input="`memory_ids` (may be left out)",
            example='{"memory_ids": ["moved.0"]}',
            effect="the memories that fit the last queries best move to the tier `working`, others leave it; "
            "the named memories are indexed, if they were not",
            without_model="the same",
            idempotency="moves carry the version that was read; a second run finds nothing to move",
        ),
    ),
    Builtin(
        label="mem_feedback",
        function=mem_feedback,
        batch=True,
        batch_size=1,
        asks_model=True,
        described=Described(
            input="`feedback_content`, and if known `history` (turns), `retrieved_memory_ids`, "
            "`feedback_time`, `corrected_answer` (true or false), `candidates` (memory ids: no others are "
            "looked for); any other text is the feedback",
            example='{"feedback_content": "No, I live in Porto", "retrieved_memory_ids": ["moved.0"]}',
            effect="praise raises the importance of the memories, criticism lowers it; a correction is "
            "remembered and supersedes what is wrong, which stays in history",
            without_model="words tell praise, criticism and correction apart; a correction supersedes only "
            "the memory that fits it best",
            idempotency="a correction has the id `{item_id}.0`; changes carry the version that was read",
        ),
    ),
    Builtin(
        label="mem_organize",
        function=mem_organize,
        batch=True,
        batch_size=1,
        asks_model=True,
        described=Described(
            input=f"nothing, or {UPKEEP_FIELDS}",
            example="{}",
            effect="memories that say the same become one with all sources; of facts that contradict each "
            "other, the later one replaces the earlier one, which held until then; what several facts show "
            "becomes a memory of kind `pattern`; what is over a limit moves to the archive",
            without_model="only texts that are equal after normalising are merged; similar facts are linked "
            "by `may_contradict`; limits hold in the same way",
            idempotency="ids derive from what is merged; changes carry the version that was read; decisions "
            "upon groups are kept, and answers of the model as memos",
        ),
    ),
    Builtin(
        label="memory_compression",
        function=memory_compression,
        batch=True,
        batch_size=1,
        asks_model=True,
        described=Described(
            input=f"nothing, or {UPKEEP_FIELDS}",
            example='{"interval_seconds": 1800}',
            effect="groups of similar memories that were changed since the last success become one memory "
            "each, of at most 512 tokens, which links to its sources; turns become a `summary`",
            without_model="only texts that are equal after normalising, or that another text of the same "
            "speaker and validity contains, are merged; `reverie upkeep plan` lists other groups",
            idempotency="as of `mem_organize`; each group is a message of its own",
        ),
    ),
    Builtin(
        label="mem_archive",
        function=mem_archive,
        batch=True,
        batch_size=1,
        described=Described(
            input=f"nothing, or {UPKEEP_FIELDS}",
            example="{}",
            effect="what nobody has asked for in `upkeep.archive_after_days` moves to the archive; it comes "
            "back when it is used",
            without_model="the same",
            idempotency="moves carry the version that was read; a second run finds nothing to move",
        ),
    ),
    Builtin(
        label="pref_add",
        function=pref_add,
        batch=True,
        batch_size=1,
        asks_model=True,
        described=Described(
            input="a list of turns as for `add`, or `turns`, or `memory_ids`; any other text is one turn of "
            "the user",
            example='[{"role": "user", "name": "Ann", "content": "I prefer trains to planes"}]',
            effect="explicit and implicit preferences are remembered (`info.preference_type`, "
            "`info.confidence`), each linked to the turns that show it, which are kept; further turns make a "
            "known one surer; a later one that contradicts it supersedes it",
            without_model="only what a user says in plain words (I prefer, I like, I don't like, please "
            "always …, and in Chinese), word for word; it supersedes what is equal but for its negation",
            idempotency="the id of a preference derives from its normalised text; the same turn changes "
            "nothing twice; answers of the model are kept as memos",
        ),
    ),
    Builtin(
        label="api_mix_search",
        function=api_mix_search,
        batch=True,
        batch_size=1,
        asks_model=True,
        described=Described(
            input="`query`; any other text is the query",
            example='{"query": "Where does Ann live?"}',
            effect="the search is done with further queries, over links and in the order of the model; the "
            "next search of the tenant with the same query answers with the result, until a memory of the "
            "tenant changes",
            without_model="only links are followed",
            idempotency="the result replaces the one that is kept for the query",
        ),
    ),
    Builtin(
        label="data_cleanup",
        function=data_cleanup,
        batch=True,
        batch_size=1,
        role=Role.SERVICE,
        described=Described(
            input="nothing",
            example="{}",
            effect="items past their `expires_at`, and those older than `memory.retention_s` allows, are "
            "deleted as by `memory.delete`; by default nothing else is. For the system: a message for each "
            "tenant that has some",
            without_model="the same",
            idempotency="deletions carry the version that was read; a second run finds nothing to delete",
        ),
    ),
    Builtin(
        label="embedding_refresh",
        function=embedding_refresh,
        batch=True,
        batch_size=1,
        role=Role.SERVICE,
        described=Described(
            input="nothing",
            example="{}",
            effect="the indexer looks for items without a vector of the present model, also for those that "
            "the embedder has not given before",
            without_model="the same",
            idempotency="the indexer makes no vector twice",
        ),
    ),
    Builtin(
        label="statistics_update",
        function=statistics_update,
        batch=True,
        batch_size=1,
        role=Role.SERVICE,
        described=Described(
            input="nothing",
            example="{}",
            effect="the items of the tenant are counted by kind and tier, for `observe.statistics()`. For "
            "the system: a message for each tenant that has changed",
            without_model="the same",
            idempotency="a count replaces the one of the same day",
        ),
    ),
    Builtin(
        label="session_init",
        function=session_init,
        batch=True,
        described=Described(
            input=ABOUT_SESSION,
            example='{"memorySessionId": "s-1", "projectId": "app", "agent": "claude-code"}',
            effect="the session begins, as `created`; one that is known stays as it is",
            without_model="the same",
            idempotency="sessions are known by their id",
        ),
    ),
    Builtin(
        label="observation",
        function=observation,
        batch=True,
        batch_size=20,
        asks_model=True,
        described=Described(
            input="`memorySessionId`, and `title` (with `narrative`, `facts`, `concepts`, `filesRead`, "
            "`filesModified`) or `tool` (`name`, `input`, `response`, `error`, `toolUseId`); `projectId`, "
            "`type`; `cut` names what of the tool's call was too long",
            example='{"memorySessionId": "s-1", "type": "Edit", "title": "Edited app.py", '
            '"filesModified": ["app.py"]}',
            effect="a memory of kind `observation` with title, narrative, facts and concepts, found by its "
            "files, too; the model is asked within `capture.observation_tokens_per_hour`, and never for a "
            "session that ended long ago",
            without_model="title, narrative and facts are made by rule from the tool's name, input and "
            "response",
            idempotency="the id of the memory is `{item_id}.0`; answers of the model are kept as memos",
        ),
    ),
    Builtin(
        label="summary",
        function=summary,
        batch=True,
        batch_size=1,
        asks_model=True,
        described=Described(
            input="`memorySessionId`, `projectId`; if the client has made it: `request`, `investigated`, "
            "`learned`, `completed`, `nextSteps`, or `text`; `type`: stop, compact or given",
            example='{"memorySessionId": "s-1", "projectId": "app"}',
            effect="the one summary of the session is written or brought up to date, from what was said and "
            "the titles of what was done; a summary of type compact is kept word for word",
            without_model="made by rule: the prompts, the files, the beginning of the last answer",
            idempotency="one memory for each session; nothing is written if nothing is new",
        ),
    ),
    Builtin(
        label="session_complete",
        function=session_complete,
        batch=True,
        described=Described(
            input=ABOUT_SESSION,
            example='{"memorySessionId": "s-1", "projectId": "app", "reason": "logout"}',
            effect="the session ends, unless a later hook has come meanwhile; it waits for the earlier "
            "messages of its session",
            without_model="the same",
            idempotency="an end is written once",
        ),
    ),
)
"""All built-in handlers, in the order of a conversation."""


def handlers_page() -> str:
    """The page of the documentation about the built-in handlers."""
    lines = [
        "# Built-in handlers",
        "",
        "<!-- Written by `make pages` from src/reverie/handlers/catalogue.py. -->",
        "",
        "Every installation handles these labels. A handler reads and answers with effects; they are written",
        "in the step that settles its message. A handler of yours for the same label replaces it.",
        "",
        "| label | level | content | effect | without a language model | why running twice is safe |",
        "|---|---|---|---|---|---|",
    ]
    for entry in CATALOGUE:
        level = entry.level or int(level_of(entry.label))
        told = entry.described
        cells = (f"`{entry.label}`", level, told.input, told.effect, told.without_model, told.idempotency)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += ["", "The label `webhook` delivers [events](webhooks.md). Only Reverie makes its messages."]
    lines += ["", "An example of the content of each:", ""]
    lines += ["| label | content |", "|---|---|"]
    lines += [f"| `{entry.label}` | `{entry.described.example}` |" for entry in CATALOGUE]
    return "\n".join(lines) + "\n"
