"""Every SQL statement, once.

A batch of rows is one parameter: a JSON array that the database unfolds to a
table named `x`.  The three dialects differ in how they unfold it, how they
upsert and update from it, and how they lock; those few differences are methods
of `Dialect`, and everything else is the same text on all three, so the dialects
cannot drift apart.

Parameters are written `:name`.  SQL is kept to what PostgreSQL, SQLite 3.35+,
MySQL 8.0 and MariaDB 10.6+ all understand; none of it needs session state.
"""

from __future__ import annotations

import msgspec

from ...kernel.rows import ExecutionRow, NewExecution, NewRun, RunRow, Step, WorkerRow
from .chains import ChainStatements, build_chains
from .claims import claim_statements, claimed
from .deadlines import DeadlineStatements, build_deadlines
from .deciders import DeciderStatements, build_deciders
from .dialect import Dialect, columns_of, insert
from .graphs import KEYS, ON_KEY, WAITING, GraphStatements, build_graphs
from .projections import ProjectionStatements, build_projections
from .queues import QueueStatements, build_queues
from .run_streams import RunStreamStatements, build_run_streams
from .schedules import ScheduleStatements, build_schedules
from .start_keys import StartKeyStatements, build_start_keys
from .versions import VersionStatements, build_versions

ACTIVE = "('ready', 'timer', 'parked', 'held', 'executing')"
ACTIVE_HERO = """type = :type AND hero_type = :hero_type AND hero_id = :hero_id
   AND exclusive = 1 AND state IN ('ready', 'paused')"""
FINAL_STEP = "('completed', 'failed')"


class Statements(msgspec.Struct, frozen=True):
    """All of them; a dialect that lacks one does not type-check."""

    # Batches
    fence: str
    known_runs: str
    created_runs: str
    lock_runs: str
    lock_executions: str
    delivered: str
    insert_runs: str
    insert_executions: str
    record_once: str
    upsert_steps: str
    reopen_steps: str
    end_executions: str
    end_runs: str
    park_executions: str
    insert_history: str
    # Readiness
    pending_steps: str
    waiting_steps: str
    pending_children: str
    pending_messages: str
    put_readiness: str
    add_readiness: str
    full_readiness: str
    clear_readiness: str
    wake: str
    graphs: GraphStatements
    deadlines: DeadlineStatements
    schedules: ScheduleStatements
    run_streams: RunStreamStatements
    deciders: DeciderStatements
    projections: ProjectionStatements
    queues: QueueStatements
    versions: VersionStatements
    start_keys: StartKeyStatements
    chains: ChainStatements
    # Messages
    insert_messages: str
    consume_messages: str
    sent_message: str
    unread_messages: str
    # Claims
    claim: str
    claim_on: str
    claim_at_once: str  # empty where an UPDATE cannot return columns of what it was joined with
    lease: str  # both of the next two, where the database can; or nothing
    claimed: str
    claimed_runs: str
    due_timers: str
    promote: str
    next_due: str
    next_work: str  # empty where a claim skips nothing
    progressed: str
    release: str
    # Workers
    insert_worker: str
    renew_worker: str
    heartbeat: str
    workers: str
    lock_worker: str
    drain_worker: str
    delete_worker: str
    held_by: str
    held_tokens: str
    # Control
    lock_run: str
    watch_runs: str
    ends: str
    existing: str
    hold: str
    unhold: str
    set_run_state: str
    cancel_run: str
    cancel_executions: str
    undoable: str
    children: str
    failed_attempts: str
    delete_steps: str
    latest: str
    hero_run: str
    # Reads
    run: str
    executions: str
    journal: str
    history: str
    published: str


def build(d: Dialect) -> Statements:
    """Return the statements in the dialect `d`."""
    return Statements(
        **_batches(d),
        **_readiness(d),
        **_messages(d),
        **claim_statements(d),
        **_workers(d),
        **_control(d),
        **_reads(d),
        graphs=build_graphs(d),
        chains=build_chains(d),
        deadlines=build_deadlines(d),
        schedules=build_schedules(d),
        run_streams=build_run_streams(d),
        deciders=build_deciders(d, _RUN_COLUMNS),
        projections=build_projections(d),
        queues=build_queues(d),
        versions=build_versions(d),
        start_keys=build_start_keys(d),
    )


def _batches(d: Dialect) -> dict[str, str]:
    """What operations of a batch read under lock, and the rows that they write."""
    step_columns = columns_of(Step)
    return dict(
        # Whether these workers are still alive.  Held until commit: who reaps
        # a worker takes the row exclusively, so no write of it slips past its end.
        fence=f"SELECT id{d.hurry} FROM detent_workers WHERE id = :id {d.fence}",
        known_runs=f"""
SELECT r.id, r.type, r.input, r.parent, r.parent_key
  FROM {d.rows("id")} {d.join("detent_runs", "r")} ON r.id = x.id""",
        created_runs=f"""
SELECT r.id, r.type, r.input, r.created_at
  FROM {d.rows("id")} {d.join("detent_runs", "r")} ON r.id = x.id""",
        # In the order of ids, so that two batches cannot wait for each other.  PostgreSQL locks
        # behind the sort; MySQL locks as it reads, and so the batch itself comes in that order,
        # which is that of Python: by code point, whatever the database's own collation.
        lock_runs=f"""
SELECT r.id, r.state, r.watched, r.signature, r.irregular, r.frozen_at, r.type, r.kind
  FROM {d.rows("id")}
  {d.join("detent_runs", "r")} ON r.id = x.id
 ORDER BY r.id {d.bytewise}
 {d.lock("r")}""",
        # State and token are for the caller to compare: as conditions here they lead a planner
        # to begin with all that executes anywhere, and to wait for strangers' locks.
        lock_executions=f"""
SELECT t.run_id, t.node, t.attempt, t.token, t.state
  FROM {d.rows(*KEYS)}
  {d.join("detent_executions", "t")} ON {ON_KEY}
 ORDER BY t.run_id {d.bytewise}, t.node {d.bytewise}, t.attempt
 {d.lock("t")}""",
        delivered="""
SELECT state, outcome FROM detent_executions
 WHERE run_id = :run_id AND node = :node AND attempt = :attempt AND token = :token""",
        insert_runs=insert(d, "detent_runs", _RUN_COLUMNS),
        insert_executions=insert(d, "detent_executions", columns_of(NewExecution)),
        # A record is written once; what was only seen executing, or waits for its retry, gives way.
        upsert_steps=d.upsert_unless(
            "detent_steps", step_columns, ("run_id", "step_key"), step_columns[2:], f"state IN {FINAL_STEP}"
        ),
        record_once=d.upsert_or_fail("detent_steps", step_columns, ("run_id", "step_key"), FINAL_STEP),
        # A final record is reopened: before it is written again, in the same transaction.
        reopen_steps=d.update(
            "detent_steps",
            ("run_id", "step_key"),
            "state = 'retrying'",
            "t.run_id = x.run_id AND t.step_key = x.step_key",
        ),
        end_executions=d.update(
            "detent_executions",
            (*KEYS, "state", "outcome", "result", "error", "finished_at", "ancestry_hash"),
            "state = x.state, outcome = x.outcome, result = x.result, error = x.error,"
            " finished_at = x.finished_at, ancestry_hash = x.ancestry_hash",
            ON_KEY,
        ),
        end_runs=d.update(
            "detent_runs",
            ("id", "state", "result", "error", "finished_at"),
            "state = x.state, result = x.result, error = x.error, finished_at = x.finished_at",
            "t.id = x.id",
        ),
        park_executions=d.update(
            "detent_executions",
            (*KEYS, "state", "scheduled_for"),
            "state = x.state, scheduled_for = x.scheduled_for",
            ON_KEY,
        ),
        insert_history=insert(d, "detent_history", ("run_id", "happened_at", "event", "detail")),
    )


def _readiness(d: Dialect) -> dict[str, str]:
    """What parked runs wait for, and how many of it are done."""
    return dict(
        # What of the things awaited has not happened yet.
        pending_steps=f"""
SELECT x.run_id, x.name, COUNT(*)
  FROM {d.rows("run_id", "name")}
  {d.join("detent_executions", "e", "detent_executions_topic")}
    ON e.run_id = x.run_id AND e.topic = x.name AND e.state IN {ACTIVE}
 GROUP BY x.run_id, x.name""",
        # Steps of a map with a limit that may not begin yet.  Served by detent_executions_waiting.
        waiting_steps="""
SELECT node, attempt, state FROM detent_executions
 WHERE run_id = :id AND topic = :topic AND scheduled_for IS NULL AND state IN ('parked', 'held')
 ORDER BY seq
 LIMIT :limit""",
        pending_children=f"""
SELECT x.run_id, x.name
  FROM {d.rows("run_id", "name")}
  {d.join("detent_runs", "r")} ON r.id = x.name AND r.parent = x.run_id AND r.state IN ('ready', 'paused')""",
        pending_messages=f"""
SELECT x.run_id, x.name
  FROM {d.rows("run_id", "name")}
  LEFT JOIN detent_messages m {d.by("detent_messages_unread")}
    ON m.run_id = x.run_id AND m.name = x.name AND m.consumed = 0
 WHERE m.seq IS NULL""",
        put_readiness=insert(d, "detent_readiness", ("run_id", "node", "required")),
        add_readiness=d.update(
            "detent_readiness",
            ("run_id", "node", "increment"),
            "settled = t.settled + x.increment",
            "t.run_id = x.run_id AND t.node = x.node",
        ),
        full_readiness=f"""
SELECT t.run_id, t.node, t.required, t.settled
  FROM {d.rows("run_id", "node")}
  {d.join("detent_readiness", "t")} ON t.run_id = x.run_id AND t.node = x.node
 WHERE t.settled >= t.required""",
        clear_readiness=d.delete("detent_readiness", ("run_id",)),
        wake=d.update(
            "detent_executions",
            ("run_id",),
            "scheduled_for = :now, state = CASE t.state WHEN 'held' THEN 'held' ELSE 'ready' END",
            "t.run_id = x.run_id AND t.node = 'main' AND t.state IN ('timer', 'parked', 'held')",
        ),
    )


def _messages(d: Dialect) -> dict[str, str]:
    """Messages to runs."""
    return dict(
        insert_messages=d.insert_new(
            "detent_messages", ("run_id", "message_id", "name", "value", "sent_at"), ("run_id", "message_id")
        ),
        consume_messages=d.update("detent_messages", ("seq",), "consumed = 1", "t.seq = x.seq"),
        sent_message="SELECT 1 FROM detent_messages WHERE run_id = :run_id AND message_id = :message_id",
        unread_messages=f"""
SELECT seq, name, value FROM detent_messages {d.by("detent_messages_unread")}
 WHERE run_id = :run_id AND name = :name AND consumed = 0
 ORDER BY seq LIMIT :limit""",
    )


def _workers(d: Dialect) -> dict[str, str]:
    """Workers: their rows, leases and heartbeats, and what they hold."""
    return dict(
        insert_worker="""
INSERT INTO detent_workers
    (id, name, pid, queues, concurrency, lock_no, started_at, beat_at, lease_until, jobs, version, drain_at)
VALUES
    (:id, :name, :pid, :queues, :concurrency, :lock_no, :now, :now, :lease_until, :jobs, :version,
     :drain_at)""",
        renew_worker=f"""
UPDATE detent_workers SET beat_at = {d.server_now}, lease_until = {d.server_now} + :lease
 WHERE id = :id AND :now > 0""",
        heartbeat=f"""
SELECT 'worker', id, lock_no, lease_until, {d.held("lock_no")} FROM detent_workers
UNION ALL
SELECT 'drained', id, 0, 0, 0 FROM detent_workers WHERE drain_at IS NOT NULL
UNION ALL
SELECT 'now', '', {d.server_now}, 0, 0
UNION ALL
SELECT 'due', '', COALESCE(MIN(scheduled_for), 0), 0, 0 FROM detent_executions
 WHERE state = 'timer' AND scheduled_for >= :floor
UNION ALL
SELECT 'deadline', '', COALESCE(MIN(deadline), 0), 0, 0 FROM detent_deadlines
UNION ALL
SELECT 'schedule', '', COALESCE(MIN(due_at), 0), 0, 0 FROM detent_schedules WHERE due_at IS NOT NULL
UNION ALL
SELECT 'head', '', COALESCE(MAX(value), 0), 0, 0 FROM detent_counters WHERE name = 'events'
UNION ALL
SELECT 'ready', '', COUNT(*), 0, 0
  FROM (SELECT 1 FROM detent_executions WHERE state = 'ready' AND :look > 0 LIMIT 1) AS one
UNION ALL
SELECT 'limited', name, limited, 0, 0 FROM detent_queues WHERE limited > 0
UNION ALL
SELECT r.state, r.id, 0, 0, 0
  FROM {d.rows("id")}
  {d.join("detent_runs", "r")} ON r.id = x.id
 WHERE r.state IN ('paused', 'canceled') AND :now > 0""",
        workers=f"SELECT {', '.join(columns_of(WorkerRow))} FROM detent_workers ORDER BY started_at, id",
        lock_worker=f"""
SELECT id, lease_until, drain_at FROM detent_workers WHERE id = :id {d.lock("detent_workers")}""",
        drain_worker="UPDATE detent_workers SET drain_at = :drain_at WHERE id = :id",
        delete_worker="DELETE FROM detent_workers WHERE id = :id",
        # Served by detent_executions_worker.
        held_by=claimed("detent_executions e")
        + " WHERE e.worker = :worker AND e.state = 'executing' ORDER BY e.run_id, e.node",
        held_tokens="SELECT token FROM detent_executions WHERE worker = :worker AND state = 'executing'",
    )


def _control(d: Dialect) -> dict[str, str]:
    """What operators do with runs: pause, resume, cancel; and whether runs have ended."""
    return dict(
        lock_run=f"SELECT {_run_row()} FROM detent_runs r WHERE r.id = :id {d.lock('r')}",
        watch_runs=d.update(
            "detent_runs",
            ("id",),
            "watched = t.watched + 1",
            "t.id = x.id AND t.watched IN (0, 2) AND t.state IN ('ready', 'paused')",
        ),
        # Of a run that was continued: the current run of its chain.
        ends=f"""
SELECT r.id, r.state, r.result, r.error,
       CASE WHEN r.continued_as IS NOT NULL THEN COALESCE(c.current_run, r.continued_as) END
  FROM {d.rows("id")}
  {d.join("detent_runs", "r")} ON r.id = x.id
  LEFT JOIN detent_chains c ON c.id = r.chain
 WHERE r.state <> 'ready'""",
        existing=f"""
SELECT r.id
  FROM {d.rows("id")}
  {d.join("detent_runs", "r")} ON r.id = x.id""",
        hold=f"""
UPDATE detent_executions {d.by("PRIMARY")} SET state = 'held'
 WHERE run_id = :id AND state IN ('ready', 'timer', 'parked')""",
        unhold=f"""
UPDATE detent_executions {d.by("PRIMARY")}
   SET state = CASE WHEN scheduled_for IS NULL THEN 'parked'
                    WHEN scheduled_for <= :now THEN 'ready' ELSE 'timer' END
 WHERE run_id = :id AND state = 'held'""",
        set_run_state="""
UPDATE detent_runs SET state = :state, error = :error, finished_at = :finished_at WHERE id = :id""",
        cancel_run="UPDATE detent_runs SET state = 'canceled', finished_at = :now WHERE id = :id",
        cancel_executions=f"""
UPDATE detent_executions {d.by("PRIMARY")}
   SET state = 'canceled', outcome = 'canceled_by_operator', finished_at = :now
 WHERE run_id = :id AND state IN {WAITING} AND node <> :keep""",
        undoable="""
SELECT COUNT(*) FROM detent_steps
 WHERE run_id = :id AND undo_step IS NOT NULL AND state = 'completed'""",
        children="SELECT id, state FROM detent_runs WHERE parent = :id ORDER BY id",
        failed_attempts="""
SELECT node, attempt, outcome FROM detent_executions WHERE run_id = :id AND state = 'failed'""",
        delete_steps=d.delete("detent_steps", ("run_id", "step_key")),
        # The latest attempt of each node of a run.
        latest=claimed("detent_executions e")
        + """
 WHERE e.run_id = :id
   AND e.attempt = (SELECT MAX(l.attempt) FROM detent_executions l
                     WHERE l.run_id = e.run_id AND l.node = e.node)""",
        hero_run=f"SELECT id FROM detent_runs WHERE {d.hero}",
    )


def _reads(d: Dialect) -> dict[str, str]:
    """One run: its row, executions, journal, history, published values."""
    return dict(
        run=f"SELECT {whole_run(d)} FROM detent_runs r WHERE r.id = :id",
        executions=f"""
SELECT {", ".join(f"e.{c}" for c in columns_of(ExecutionRow))} FROM detent_executions e
 WHERE e.run_id = :id
 ORDER BY e.created_at, e.node, e.attempt""",
        # All that a replay must know: recorded steps, spawned ones, child runs.
        journal=_journal(d, columns_of(Step)),
        history="SELECT happened_at, event, detail FROM detent_history WHERE run_id = :id ORDER BY seq",
        published="""
SELECT result FROM detent_steps
 WHERE run_id = :id AND kind IN ('publish', 'published') AND name = :name
 ORDER BY finished_at DESC, seq DESC LIMIT 1""",
    )


_OTHER_TABLES = ("performing", "attributes")  # read from other tables, and written there
_NO_COLUMNS = (*_OTHER_TABLES, "drifted")  # the last one is an attribute
_RUN_COLUMNS = tuple(c for c in columns_of(NewRun) if c not in _NO_COLUMNS)
RUN_FIELDS = (*(c for c in columns_of(RunRow) if c not in _NO_COLUMNS), *_OTHER_TABLES)
EXECUTING = "EXISTS (SELECT 1 FROM detent_executions e WHERE e.run_id = r.id AND e.state = 'executing')"


def _run_row() -> str:
    return ", ".join(f"r.{c}" for c in columns_of(RunRow) if c not in _NO_COLUMNS)


def whole_run(d: Dialect) -> str:
    """The RUN_FIELDS of a run `r`."""
    attributes = d.gathered("f.name", "f.kind", "f.value")
    return f"""{_run_row()},
       CASE WHEN {EXECUTING} THEN 1 ELSE 0 END AS performing,
       (SELECT {attributes} FROM detent_attributes f WHERE f.run_id = r.id) AS attributes"""


def _journal(d: Dialect, columns: tuple[str, ...]) -> str:
    steps = ", ".join(f"s.{c}" for c in columns)
    spawned = {
        "run_id": "e.run_id",
        "step_key": "e.node",
        "kind": "'spawn'",
        "name": "e.job",
        # An error that stopped its run is not a result: the resume repeats the attempt, and its end counts.
        "state": "CASE WHEN e.state IN ('completed', 'skipped') THEN 'completed'"
        " WHEN e.outcome IN ('paused_by_exception', 'recovered') THEN 'waiting'"
        " WHEN e.state IN ('failed', 'canceled') THEN 'failed' ELSE 'waiting' END",
        "attempt": "e.attempt",
        "written_by": "0",
        # Later attempts have the place of the first.
        "seq": "CASE e.attempt WHEN 1 THEN e.seq ELSE COALESCE((SELECT f.seq FROM detent_executions f"
        " WHERE f.run_id = e.run_id AND f.node = e.node AND f.attempt = 1), 0) END",
        "progress": "e.topic",  # what its run waits for: the code may have spawned it another way
        **{c: f"e.{c}" for c in ("input", "result", "error", "started_at", "finished_at")},
    }
    child = {
        "run_id": "r.parent",
        "step_key": "r.parent_key",
        "kind": "'child'",
        "name": "r.id",
        "state": "CASE r.state WHEN 'finished' THEN 'completed' WHEN 'failed' THEN 'failed'"
        " WHEN 'canceled' THEN 'failed' ELSE 'waiting' END",
        "attempt": "1",
        "written_by": "0",
        "seq": "r.parent_seq",
        "started_at": "r.created_at",
        "input": "COALESCE(r.called_with, r.input)",  # of the first run of a chain
        **{c: f"r.{c}" for c in ("result", "error", "finished_at")},
    }

    def select(source: dict[str, str]) -> str:
        return ", ".join(source.get(c, "NULL") for c in columns)

    return f"""
SELECT {steps} FROM {d.rows("id")} {d.join("detent_steps", "s")} ON s.run_id = x.id
UNION ALL
SELECT {select(spawned)}
  FROM {d.rows("id")} {d.join("detent_executions", "e")} ON e.run_id = x.id AND e.kind = 'step'
   AND e.attempt = (SELECT MAX(l.attempt) FROM detent_executions l
                     WHERE l.run_id = e.run_id AND l.node = e.node)
UNION ALL
SELECT {select(child)}
  FROM {d.rows("id")} {d.join("detent_runs", "r", "detent_runs_parent")} ON r.parent = x.id"""
