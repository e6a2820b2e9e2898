"""The statements that deciders need."""

from __future__ import annotations

import msgspec

from ...kernel.decide import EventRow, InputRow, NewInput, SnapshotRow
from .dialect import Dialect, columns_of, insert
from .graphs import KEYS, ON_KEY

ACTIVE = "('ready', 'timer', 'parked', 'held', 'executing')"
PENDING = f"(t.state IN {ACTIVE} OR t.outcome = 'dead_letter')"  # a dead timer can still be replayed


class DeciderStatements(msgspec.Struct, frozen=True):
    """Instances, events, inputs, timers, dead letters."""

    insert_instances: str
    delete_instance: str
    heads: str
    snapshots: str
    put_snapshots: str
    delete_snapshots: str
    new_events: str
    more_events: str
    of_turn: str
    insert_events: str
    bump: str
    counter: str
    events_since: str
    known_inputs: str
    insert_inputs: str
    end_inputs: str
    ignore_inputs: str
    pending_inputs: str
    inboxes: str
    depths: str
    waiting_inputs: str
    last_pending: str
    timers: str
    cancel_timers: str
    end_timers: str
    pending_timers: str
    pending_effects: str
    depth: str
    dead_letters: str
    walk_dead: str
    count_dead: str
    set_outcome: str
    observed: str
    inputs_of_instance: str
    inputs_of_decider: str
    walk_inputs: str
    blank_inputs: str
    delete_inputs: str


def build_deciders(d: Dialect, run_columns: tuple[str, ...]) -> DeciderStatements:
    """Return the statements in the dialect `d`."""
    return DeciderStatements(
        **_instances(d, run_columns),
        **_events(d),
        **_inbox(d),
        **_timers_and_effects(d),
        **_dead_letters(d),
        **_inputs(d),
    )


def _instances(d: Dialect, run_columns: tuple[str, ...]) -> dict[str, str]:
    """Instances: how they begin, how far they have come, their snapshots."""
    return dict(
        # Two processes may begin one instance: the second waits for the first, and finds it there.
        insert_instances=d.insert_new("detent_runs", run_columns, ("id",)),
        # What was begun in this transaction, and came to nothing.
        delete_instance="""
DELETE FROM detent_runs
 WHERE id = :id
   AND NOT EXISTS (SELECT 1 FROM detent_events e WHERE e.run_id = :id)
   AND NOT EXISTS (SELECT 1 FROM detent_inputs i WHERE i.run_id = :id)""",
        # How far each instance has come, and an input that waits in its inbox; asked under its lock, so that
        # neither changes.
        heads=f"""
SELECT x.id,
       (SELECT e.sequence FROM detent_events e
         WHERE e.run_id = x.id ORDER BY e.sequence DESC LIMIT 1),
       (SELECT i.seq FROM detent_inputs i {d.by("detent_inputs_pending")}
         WHERE i.run_id = x.id AND i.state = 'pending' LIMIT 1){d.hurry}
  FROM {d.rows("id")}""",
        snapshots=f"""
SELECT {", ".join(f"s.{c}" for c in columns_of(SnapshotRow))}
  FROM {d.rows("id")} {d.join("detent_snapshots", "s")} ON s.run_id = x.id""",
        put_snapshots=d.upsert_unless(
            "detent_snapshots",
            columns_of(SnapshotRow),
            ("run_id",),
            columns_of(SnapshotRow)[1:],
            "sequence < 0",
        ),
        delete_snapshots="""
DELETE FROM detent_snapshots WHERE run_id IN (SELECT id FROM detent_runs WHERE type = :type)""",
    )


def _events(d: Dialect) -> dict[str, str]:
    """Events of one instance, and of all in the order of their positions."""
    events = ", ".join(f"e.{c}" for c in columns_of(EventRow))
    return dict(
        new_events=f"""
SELECT {events} FROM {d.rows("id", "sequence")} {d.join("detent_events", "e")}
    ON e.run_id = x.id AND e.sequence > x.sequence""",
        more_events=f"""
SELECT {events} FROM detent_events e
 WHERE e.run_id = :id AND e.sequence > :after AND e.sequence <= :upto
 ORDER BY e.sequence LIMIT :limit""",
        of_turn=f"""
SELECT {events} FROM detent_events e
 WHERE e.run_id = :id AND e.turn = :turn ORDER BY e.sequence""",
        insert_events=insert(d, "detent_events", columns_of(EventRow)),
        # The last lock that a transaction takes, held until it commits: so positions commit in order.
        bump="UPDATE detent_counters SET value = value + :count WHERE name = 'events'",
        counter="SELECT value FROM detent_counters WHERE name = 'events'",
        events_since=f"""
SELECT {events} FROM detent_events e {d.by("detent_events_position")}
 WHERE e.position > :after
 ORDER BY e.position LIMIT :limit""",
    )


def _inbox(d: Dialect) -> dict[str, str]:
    """Inputs that wait, and the execution that empties the inbox."""
    return dict(
        known_inputs=f"""
SELECT i.run_id, i.input_id
  FROM {d.rows("run_id", "input_id")}
  {d.join("detent_inputs", "i", "detent_inputs_id")} ON i.run_id = x.run_id AND i.input_id = x.input_id""",
        insert_inputs=insert(d, "detent_inputs", columns_of(NewInput)),
        end_inputs=d.update(
            "detent_inputs",
            ("seq", "state", "handled_at", "from_status", "to_status"),
            "state = x.state, handled_at = x.handled_at,"
            " from_status = x.from_status, to_status = x.to_status",
            "t.seq = x.seq",
        ),
        # The instance was canceled: what waits will never be decided.
        ignore_inputs="""
UPDATE detent_inputs SET state = 'ignored', handled_at = :now WHERE run_id = :id AND state = 'pending'""",
        pending_inputs=f"""
SELECT {", ".join(f"i.{c}" for c in columns_of(InputRow))}
  FROM detent_inputs i {d.by("detent_inputs_pending")}
 WHERE i.run_id = :id AND i.state = 'pending'
 ORDER BY i.seq LIMIT :limit""",
        # The latest attempt at emptying each inbox.
        inboxes=f"""
SELECT t.run_id, t.attempt, t.state, t.outcome
  FROM {d.rows("id")} {d.join("detent_executions", "t")}
    ON t.run_id = x.id AND t.node = 'inbox'
   AND t.attempt = (SELECT MAX(l.attempt) FROM detent_executions l
                     WHERE l.run_id = x.id AND l.node = 'inbox')""",
        depths="""
SELECT r.type, COUNT(*), MIN(i.received_at), COUNT(DISTINCT i.run_id)
  FROM detent_inputs i JOIN detent_runs r ON r.id = i.run_id
 WHERE i.state = 'pending'
 GROUP BY r.type""",
        waiting_inputs=f"""
SELECT i.seq FROM detent_inputs i {d.by("detent_inputs_pending")}
 WHERE i.run_id = :id AND i.state = 'pending' ORDER BY i.seq LIMIT :limit""",
        last_pending=f"""
SELECT i.seq FROM detent_inputs i {d.by("detent_inputs_pending")}
 WHERE i.run_id = :id AND i.state = 'pending' ORDER BY i.seq DESC LIMIT 1""",
        depth=f"""
SELECT COUNT(*) FROM detent_inputs i {d.by("detent_inputs_pending")}
 WHERE i.run_id = :id AND i.state = 'pending'""",
    )


def _timers_and_effects(d: Dialect) -> dict[str, str]:
    """Executions that a decision has made, and that are not done."""
    return dict(
        # Pending timers, by their keys.  One that is firing at this moment counts, and so does a dead one.
        timers=f"""
SELECT t.run_id, t.topic, t.node, t.attempt, t.outcome
  FROM {d.rows("run_id", "name")}
  {d.join("detent_executions", "t", "detent_executions_topic")}
    ON t.run_id = x.run_id AND t.topic = x.name AND t.kind = 'timer' AND {PENDING}""",
        cancel_timers=d.update(
            "detent_executions",
            (*KEYS, "finished_at"),
            "state = 'canceled', outcome = 'canceled_by_decision', finished_at = x.finished_at",
            f"{ON_KEY} AND {PENDING}",
        ),
        # The instance has finished: cancel its timers, also the dead ones.
        end_timers=d.update(
            "detent_executions",
            ("run_id", "finished_at"),
            "state = 'canceled', outcome = 'canceled_by_finish', finished_at = x.finished_at",
            f"t.run_id = x.run_id AND t.kind = 'timer' AND {PENDING}",
        ),
        pending_timers=f"""
SELECT t.node, t.topic, t.job, t.scheduled_for, t.attempt, t.state, t.failures, t.input
  FROM detent_executions t {d.by("PRIMARY")}
 WHERE t.run_id = :id AND t.kind = 'timer' AND t.state IN {ACTIVE}
 ORDER BY t.scheduled_for, t.node""",
        # What is under way or was given up.  A new attempt has no error: that of the one before is shown.
        pending_effects=f"""
SELECT t.node, t.job, t.state, t.outcome, t.attempt, t.failures, t.scheduled_for,
       COALESCE(t.error, (SELECT p.error FROM detent_executions p
                           WHERE p.run_id = t.run_id AND p.node = t.node AND p.attempt = t.attempt - 1))
  FROM detent_executions t {d.by("PRIMARY")}
 WHERE t.run_id = :id AND t.kind = 'effect' AND (t.state IN {ACTIVE} OR t.outcome = 'dead_letter')
 ORDER BY t.created_at, t.node""",
    )


def _dead_letters(d: Dialect) -> dict[str, str]:
    """What was given up."""
    dead = "e.outcome = 'dead_letter'"
    letter = (
        "e.run_id, e.node, e.attempt, e.kind, e.job, e.input, e.error, e.failures, e.recoveries,"
        " e.finished_at, r.type"
    )
    return dict(
        dead_letters=f"""
SELECT {letter}
  FROM detent_executions e {d.by("detent_executions_dead")}
  JOIN detent_runs r ON r.id = e.run_id
 WHERE {dead} AND e.finished_at >= :since {d.dead}
   AND (:type = '' OR r.type = :type) AND (:id = '' OR e.run_id = :id)
 ORDER BY e.finished_at DESC LIMIT :limit""",
        # The same, longest ago first: from a place on, up to a moment.
        walk_dead=f"""
SELECT {letter}
  FROM detent_executions e {d.by("detent_executions_dead")}
  JOIN detent_runs r ON r.id = e.run_id
 WHERE {dead} AND {d.died} >= :at AND {d.died} <= :until
   AND ({d.died} > :at OR e.run_id > :run_id OR (e.run_id = :run_id AND e.node > :node))
   AND (:type = '' OR r.type = :type) AND (:id = '' OR e.run_id = :id)
 ORDER BY {d.died}, e.run_id, e.node LIMIT :limit""",
        count_dead=f"""
SELECT r.type, e.kind, COUNT(*)
  FROM detent_executions e {d.by("detent_executions_dead")}
  JOIN detent_runs r ON r.id = e.run_id
 WHERE {dead} {d.dead}
 GROUP BY r.type, e.kind""",
        set_outcome="""
UPDATE detent_executions SET outcome = :outcome
 WHERE run_id = :id AND node = :node AND attempt = :attempt AND outcome = 'dead_letter'""",
    )


def _inputs(d: Dialect) -> dict[str, str]:
    """Inputs that were decided: their ids, and the changes of status that they made."""
    remembered = f"{', '.join(f'i.{c}' for c in columns_of(InputRow))} FROM detent_inputs i"
    wanted = "i.seq < :beyond AND i.received_at >= :since AND i.received_at < :until"
    return dict(
        # Inputs that are remembered, the newest first.
        inputs_of_instance=f"""
SELECT {remembered} {d.by("detent_inputs_id")}
 WHERE i.run_id = :id AND {wanted}
 ORDER BY i.seq DESC LIMIT :limit""",
        inputs_of_decider=f"""
SELECT {remembered} {d.by("PRIMARY")}
  JOIN detent_runs r ON r.id = i.run_id
 WHERE r.type = :type AND r.kind = 'decider' AND {wanted}
 ORDER BY i.seq DESC LIMIT :limit""",
        # Inputs in the order of arrival, to forget the ids of old ones.
        walk_inputs=f"""
SELECT i.seq, i.received_at, i.state, CASE WHEN i.input_id IS NULL THEN 0 ELSE 1 END, r.type
  FROM detent_inputs i {d.by("PRIMARY")}
  LEFT JOIN detent_runs r ON r.id = i.run_id
 WHERE i.seq > :beyond
 ORDER BY i.seq LIMIT :limit""",
        blank_inputs=d.update("detent_inputs", ("seq",), "input_id = NULL", "t.seq = x.seq"),
        delete_inputs=d.delete("detent_inputs", ("seq",)),
        # Of the newest instances; and whether some instance that it happened to is over now.
        observed=f"""
SELECT i.from_status, i.type, i.to_status, COUNT(*),
       MAX(CASE WHEN x.state = 'finished' THEN 1 ELSE 0 END)
  FROM (SELECT r.id, r.state FROM detent_runs r {d.by("detent_runs_type")}
         WHERE r.type = :type AND r.kind = 'decider'
         ORDER BY r.created_at DESC, r.id DESC LIMIT :limit) AS x
  {d.join("detent_inputs", "i", "detent_inputs_id")} ON i.run_id = x.id
 WHERE i.from_status IS NOT NULL
 GROUP BY i.from_status, i.type, i.to_status""",
    )
