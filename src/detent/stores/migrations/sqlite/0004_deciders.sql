-- Deciders.  An instance is a run; its effects, timers and inbox are executions.
CREATE TABLE detent_events (
    run_id      TEXT NOT NULL,
    sequence    INTEGER NOT NULL,
    position    INTEGER NOT NULL,
    decider     TEXT NOT NULL,
    type        TEXT NOT NULL,
    version     INTEGER NOT NULL,
    data        TEXT NOT NULL,
    cause       TEXT NOT NULL,
    turn        TEXT NOT NULL,
    happened_at INTEGER NOT NULL,
    PRIMARY KEY (run_id, sequence)
) WITHOUT ROWID;
-- The order over all instances: no gap, and none that commits later has a lower one.
CREATE UNIQUE INDEX detent_events_position ON detent_events (position);

-- Taken by every transaction that appends events, until it commits: whence the order of positions.
CREATE TABLE detent_counters (
    name  TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO detent_counters (name, value) VALUES ('events', 0);

-- Inputs that are remembered: those with an id, those that are observed, those that wait.
CREATE TABLE detent_inputs (
    seq         INTEGER PRIMARY KEY AUTOINCREMENT,
    run_id      TEXT NOT NULL,
    input_id    TEXT,
    type        TEXT NOT NULL,
    data        TEXT,
    state       TEXT NOT NULL,
    received_at INTEGER NOT NULL,
    handled_at  INTEGER,
    from_status TEXT,
    to_status   TEXT,
    UNIQUE (run_id, input_id)
);
-- What waits in inboxes, in the order of arrival.
CREATE INDEX detent_inputs_pending ON detent_inputs (run_id, seq) WHERE state = 'pending';

CREATE TABLE detent_snapshots (
    run_id   TEXT PRIMARY KEY,
    sequence INTEGER NOT NULL,
    fingerprint TEXT NOT NULL,
    body     TEXT NOT NULL,
    taken_at INTEGER NOT NULL
) WITHOUT ROWID;

-- Dead letters: what was given up, until somebody replays or discards it.
CREATE INDEX detent_executions_dead ON detent_executions (finished_at) WHERE outcome = 'dead_letter';

-- Read models: how far each has come, and what is being rebuilt beside it.
CREATE TABLE detent_projections (
    name       TEXT NOT NULL,
    generation INTEGER NOT NULL,
    version    INTEGER NOT NULL,
    state      TEXT NOT NULL,
    position   INTEGER NOT NULL,
    begun_at   INTEGER,
    failures   INTEGER NOT NULL DEFAULT 0,
    retry_at   INTEGER,
    error      TEXT,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (name, generation)
) WITHOUT ROWID;

-- What projections keep by key, where they do not have tables of their own.
CREATE TABLE detent_views (
    projection TEXT NOT NULL,
    generation INTEGER NOT NULL,
    item_key   TEXT NOT NULL,
    value      TEXT NOT NULL,
    PRIMARY KEY (projection, generation, item_key)
) WITHOUT ROWID;
