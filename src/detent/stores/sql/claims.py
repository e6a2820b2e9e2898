"""Statements for claims: leases of what is ready, timers that are due, and what a claim has left."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ...kernel.rows import Claimed
from .dialect import Dialect, columns_of, served
from .graphs import KEYS, ON_KEY

_OF_EXECUTION = frozenset(
    "run_id node attempt kind job queue precedence worker token deliveries recoveries failures input topic"
    " started_at queue_key pin".split()
)
_OF_RUN = {
    "type": "type",
    "run_input": "input",
    "run_state": "state",
    "run_kind": "kind",
    "run_queue": "queue",
    "run_priority": "priority",
    "run_key": "queue_key",
}


def claimed_columns(execution: str, given: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """The fields of `Claimed`, of an execution with that alias and its run `r`; some are `given`."""
    return [
        given.get(name)
        or (f"{execution}.{name}" if name in _OF_EXECUTION else f"r.{_OF_RUN.get(name, name)}")
        for name in columns_of(Claimed)
    ]


def _claimed_columns(execution: str) -> str:
    return ", ".join(claimed_columns(execution))


def claimed(executions: str, join: str = "JOIN detent_runs r") -> str:
    """SELECT executions with their runs, in the order of `Claimed`'s fields."""
    return f"SELECT {_claimed_columns('e')} FROM {executions} {join} ON r.id = e.run_id"


_ORDER = "ORDER BY e.precedence, e.scheduled_for, e.run_id"
# A claim that had to wait for a lock may find what was made after it had looked at the clock.
_LEASED = """state = 'executing', worker = :worker, token = x.token, deliveries = t.deliveries + 1,
 started_at = COALESCE(t.started_at, CASE WHEN t.created_at > :now THEN t.created_at ELSE :now END)"""


def _lease(d: Dialect) -> str:
    """Lease, and return what was leased: a fifth less of the server's time than one after the other."""
    if not d.update_returns_joined:
        return ""
    joined = f"{d.rows(*KEYS, 'token')} JOIN detent_runs AS r ON r.id = x.run_id"
    return (
        f"UPDATE detent_executions AS t SET {_LEASED} FROM {joined}"
        f" WHERE {ON_KEY} RETURNING {_claimed_columns('t')}"
    )


def _claim(d: Dialect, place: str) -> str:
    return f"""
SELECT e.run_id, e.node, e.attempt, e.precedence, e.scheduled_for
  {_claimable(d)}
   {place}
 {_ORDER}
 LIMIT :limit
 {d.lock("e")} {d.skip_locked}"""


def _claim_at_once(d: Dialect) -> str:
    """`claim` and `lease` in one statement, which also tells how many seconds the search took.

    A worker that is not alive gets nothing.  If nothing is found, there is one row with the seconds alone.
    """
    if not d.update_returns_joined:
        return ""
    return f"""
WITH alive AS MATERIALIZED (SELECT id FROM detent_workers WHERE id = :worker FOR KEY SHARE),
     found AS MATERIALIZED (
SELECT e.run_id, e.node, e.attempt
  {_claimable(d)}
   AND EXISTS (SELECT 1 FROM alive)
 {_ORDER}
 LIMIT :limit
 {d.lock("e")} {d.skip_locked}),
     timed AS MATERIALIZED (
SELECT COUNT(*),
       CAST(EXTRACT(EPOCH FROM clock_timestamp() - statement_timestamp()) AS double precision) AS seconds
  FROM found),
     x AS (
SELECT found.*, (CAST(:tokens AS text[]))[CAST(ROW_NUMBER() OVER () AS integer)] AS token FROM found),
     leased AS (
UPDATE detent_executions AS t SET {_LEASED}
  FROM x JOIN detent_runs AS r ON r.id = x.run_id
 WHERE {ON_KEY}
RETURNING {_claimed_columns("t")}, t.scheduled_for)
SELECT timed.seconds, leased.* FROM timed LEFT JOIN leased ON TRUE"""


def _claimable(d: Dialect) -> str:
    """What is ready in one queue, of the kinds and the version that this worker serves."""
    return f"""FROM detent_executions e {d.by("detent_executions_ready")}
 WHERE e.state = 'ready'
   AND e.queue = :queue
   AND {d.one_of("e.job", "job")}
   AND {served("e")}"""


def _next_work(d: Dialect) -> str:
    """The next timer, and whether a claim has skipped something.

    One statement, so that a timer which another worker makes ready meanwhile is seen as one or the other.
    """
    if not d.skip_locked:
        return ""
    return f"""
SELECT (SELECT MIN(t.scheduled_for) FROM detent_executions t
         WHERE t.state = 'timer' AND t.scheduled_for >= :floor),
       EXISTS (SELECT 1 {_claimable(d)})"""


def claim_statements(d: Dialect) -> dict[str, str]:
    """Claims of executions, timers, and the way back to others."""
    return dict(
        # What is due in one queue, most urgent first, of the kinds that this worker knows.
        # SKIP LOCKED keeps workers from queueing behind each other.
        # Served by detent_executions_ready: its rows are only what may be claimed now.
        claim=_claim(d, ""),
        # The same for one precedence, from a time on: see claim_cursor.py.
        claim_on=_claim(d, "AND e.precedence = :precedence AND e.scheduled_for >= :floor"),
        claim_at_once=_claim_at_once(d),
        lease=_lease(d),
        claimed=d.update("detent_executions", (*KEYS, "token"), _LEASED, ON_KEY),
        claimed_runs=claimed(
            f"{d.rows(*KEYS)} {d.join('detent_executions', 'e')}"
            " ON e.run_id = x.run_id AND e.node = x.node AND e.attempt = x.attempt",
            d.join("detent_runs", "r"),
        ),
        # Timers that are due.  Those that another transaction has locked (a second promotion, a cancel) are
        # skipped, so that a claim never waits here.  Served by detent_executions_timer.
        due_timers=f"""
SELECT e.run_id, e.node, e.attempt, e.scheduled_for
  FROM detent_executions e {d.by("detent_executions_timer")}
 WHERE e.state = 'timer'
   AND e.scheduled_for <= :now
   AND e.scheduled_for >= :floor
 ORDER BY e.scheduled_for
 LIMIT :limit
 {d.lock("e")} {d.skip_locked}""",
        promote=d.update("detent_executions", KEYS, "state = 'ready'", ON_KEY),
        next_due="""
SELECT MIN(scheduled_for) FROM detent_executions WHERE state = 'timer' AND scheduled_for >= :floor""",
        next_work=_next_work(d),
        # Which attempts got somewhere before their worker died.
        progressed=f"""
SELECT DISTINCT x.run_id, x.attempt
  FROM {d.rows("run_id", "attempt")}
  {d.join("detent_steps", "s")}
    ON s.run_id = x.run_id AND s.written_by = x.attempt AND s.state NOT IN ('executing')
   AND s.kind <> 'published'""",
        # Handed back unexecuted, as if never claimed.
        release=d.update(
            "detent_executions",
            (*KEYS, "token", "state"),
            "state = x.state, token = NULL, worker = NULL, started_at = NULL",
            f"{ON_KEY} AND t.token = x.token AND t.state = 'executing'",
        ),
    )
