"""The statements of queues with limits: their rows, what executes, what began, and what may begin."""

from __future__ import annotations

import msgspec

from .dialect import Dialect, served

KEYS = ("run_id", "node", "attempt")
CONFIGURED = ("name", "declared", "changes", "limited", "paused_at", "reason", "turn", "updated_at")
_CANDIDATE = "e.run_id, e.node, e.attempt, e.precedence, e.scheduled_for, e.queue_key, e.started_at"


class QueueStatements(msgspec.Struct, frozen=True):
    lock: str
    executing: str
    begins: str
    candidates: str
    candidates_at: str
    precedences: str
    keys: str
    values_at_once: int  # the limit of these two: an answer with fewer entries has reached the end
    heads: str
    heads_at: str
    lock_ready: str
    put_begins: str
    forget_begins: str
    set_turn: str
    # Configuration
    read: str
    lock_one: str
    insert: str
    update: str
    waiting: str
    waiting_key: str
    clock: str


def build_queues(d: Dialect) -> QueueStatements:
    """Return the statements in the dialect `d`."""
    return QueueStatements(**_counting(d), **_choosing(d), **_configuring(d), values_at_once=d.values_at_once)


def _counting(d: Dialect) -> dict[str, str]:
    """What limits are compared with: what executes, and what began."""
    return {
        # Claims on one queue take turns: only one transaction counts at a time.  A queue that another worker
        # is claiming from is skipped.
        "lock": f"""
SELECT {_columns("q")}, {d.server_now}
  FROM {d.rows("name")}
  {d.join("detent_queues", "q")} ON q.name = x.name
 {d.lock("q")} {d.skip_locked}""",
        # Everything that executes belongs to a worker that is registered.  There is no counter that a crash
        # could leave wrong.  Served by detent_executions_worker.
        "executing": f"""
SELECT e.queue, e.queue_key, COUNT(*)
  FROM detent_workers w
  {d.join("detent_executions", "e", "detent_executions_worker")}
    ON e.worker = w.id AND e.state = 'executing'
 WHERE {d.one_of("e.queue", "queue")}
 GROUP BY e.queue, e.queue_key""",
        "begins": f"""
SELECT b.queue, b.queue_key, b.begun_at, b.begins
  FROM {d.rows("queue", "queue_key", "begun_at")}
  {d.join("detent_begins", "b")}
    ON b.queue = x.queue AND b.queue_key = x.queue_key AND b.begun_at > x.begun_at""",
        "put_begins": d.upsert_unless(
            "detent_begins",
            ("queue", "queue_key", "begun_at", "begins"),
            ("queue", "queue_key", "begun_at"),
            ("begins",),
            "begins < 0",
        ),
        # Served by detent_begins_old.
        "forget_begins": "DELETE FROM detent_begins WHERE queue = :queue AND begun_at <= :before",
        "clock": f"SELECT {d.server_now}",
    }


def _choosing(d: Dialect) -> dict[str, str]:
    """What may begin next, and how much waits."""
    ready = _ready(d)
    known = f"{d.one_of('e.job', 'job')} AND {served('e')}"
    in_order = " ORDER BY e.precedence, e.scheduled_for, e.run_id LIMIT :limit"
    return {
        # The first in the order of the queue.  Nothing is locked yet: most may have to wait.
        # Served by detent_executions_ready.
        "candidates": f"SELECT {_CANDIDATE} {ready} AND {known} {in_order}",
        "candidates_at": f"""
SELECT {_CANDIDATE} {ready} AND e.precedence = :precedence AND {known} {in_order}""",
        # The precedences and the keys behind one, each with the entries of the index that were read for it.
        # Served by detent_executions_ready and detent_executions_keyed.
        "precedences": d.next_values("e.precedence", ready),
        "keys": d.next_values("e.queue_key", _keyed(d, "e")),
        # The execution of each key that is next, after `skip` others of that key.
        "heads": _heads(d, ("queue_key",), ""),
        "heads_at": _heads(d, ("queue_key", "precedence"), "AND h.precedence = x.precedence"),
        # The state is for the caller to compare: as a condition here it leads a planner to begin with all
        # that is ready.
        "lock_ready": f"""
SELECT t.run_id, t.node, t.attempt, t.state
  FROM {d.rows(*KEYS)}
  {d.join("detent_executions", "t")}
    ON t.run_id = x.run_id AND t.node = x.node AND t.attempt = x.attempt
 {d.lock("t")} {d.skip_locked}""",
        "set_turn": "UPDATE detent_queues SET turn = :turn WHERE name = :name",
        # How many wait in a queue, up to a limit: counting a million takes long.
        "waiting": f"SELECT COUNT(*) FROM (SELECT 1 {ready} LIMIT :limit) AS found",
        # A range in the order of the index, so that a planner takes that index also for a key that all have.
        "waiting_key": f"""
SELECT COUNT(*)
  FROM (SELECT 1 {_keyed(d, "e")} AND e.queue_key >= :queue_key AND e.queue_key <= :queue_key
         ORDER BY e.queue_key, e.precedence, e.scheduled_for, e.run_id
         LIMIT :limit) AS found""",
    }


def _configuring(d: Dialect) -> dict[str, str]:
    """The limits of queues: what the code declares, and what operators change."""
    return {
        "read": f"SELECT {_columns('q')} FROM detent_queues q ORDER BY q.name",
        "lock_one": f"SELECT {_columns('q')} FROM detent_queues q WHERE q.name = :name {d.lock('q')}",
        "insert": d.insert_new("detent_queues", CONFIGURED, ("name",)),
        "update": d.update(
            "detent_queues",
            CONFIGURED,
            "declared = x.declared, changes = x.changes, limited = x.limited, paused_at = x.paused_at,"
            " reason = x.reason, updated_at = x.updated_at",
            "t.name = x.name",
        ),
    }


def _columns(alias: str) -> str:
    return ", ".join(f"{alias}.{name}" for name in CONFIGURED)


def _ready(d: Dialect) -> str:
    return f"""
  FROM detent_executions e {d.by("detent_executions_ready")}
 WHERE e.state = 'ready'
   AND e.queue = :queue"""


def _keyed(d: Dialect, alias: str) -> str:
    return f"""
  FROM detent_executions {alias} {d.by("detent_executions_keyed")}
 WHERE {d.keyed(alias)}"""


def _heads(d: Dialect, columns: tuple[str, ...], place: str) -> str:
    """For each row of the batch, the next execution of its key."""
    found = f"""
{_keyed(d, "h")} AND {d.same_key("h", "x")} {place}
   AND {d.one_of("h.job", "job", batch="jobs")}
   AND {served("h")}
 ORDER BY h.queue_key, h.precedence, h.scheduled_for, h.run_id
 LIMIT 1 OFFSET :skip"""
    return d.first_of_each(_CANDIDATE, d.rows(*columns), found)
