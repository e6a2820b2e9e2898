CREATE TABLE detent_runs (
    id          TEXT PRIMARY KEY,
    type        TEXT NOT NULL,
    kind        TEXT NOT NULL,
    state       TEXT NOT NULL DEFAULT 'ready',
    queue       TEXT NOT NULL,
    priority    INTEGER NOT NULL,
    input       TEXT NOT NULL,
    result      TEXT,
    error       TEXT,
    parent      TEXT,
    parent_key  TEXT,
    hero_type   TEXT,
    hero_id     TEXT,
    exclusive   INTEGER NOT NULL DEFAULT 0,
    deadline    BIGINT,
    forked_from TEXT,
    watched     INTEGER NOT NULL DEFAULT 0,
    created_at  BIGINT NOT NULL,
    finished_at BIGINT
);

-- One active run per (type, hero).
CREATE UNIQUE INDEX detent_runs_hero ON detent_runs (type, hero_type, hero_id)
    WHERE exclusive = 1 AND state IN ('ready', 'paused');
CREATE INDEX detent_runs_parent ON detent_runs (parent) WHERE parent IS NOT NULL;
CREATE INDEX detent_runs_created ON detent_runs (created_at);
CREATE INDEX detent_runs_trouble ON detent_runs (state, created_at) WHERE state IN ('paused', 'failed');

CREATE TABLE detent_executions (
    run_id        TEXT NOT NULL,
    node          TEXT NOT NULL,
    attempt       INTEGER NOT NULL,
    kind          TEXT NOT NULL,
    job           TEXT NOT NULL,
    queue         TEXT NOT NULL,
    precedence    INTEGER NOT NULL,
    state         TEXT NOT NULL,
    outcome       TEXT,
    scheduled_for BIGINT,
    topic         TEXT,
    input         TEXT,
    result        TEXT,
    error         TEXT,
    worker        TEXT,
    token         TEXT,
    deliveries    INTEGER NOT NULL DEFAULT 0,
    recoveries    INTEGER NOT NULL DEFAULT 0,
    failures      INTEGER NOT NULL DEFAULT 0,
    created_at    BIGINT NOT NULL,
    started_at    BIGINT,
    finished_at   BIGINT,
    PRIMARY KEY (run_id, node, attempt)
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

-- What may be claimed now, in the order of claiming.  Claimed and finished rows leave it.
CREATE INDEX detent_executions_ready ON detent_executions (queue, precedence, scheduled_for, run_id)
    WHERE state = 'ready';
CREATE INDEX detent_executions_timer ON detent_executions (scheduled_for) WHERE state = 'timer';
CREATE INDEX detent_executions_worker ON detent_executions (worker) WHERE state = 'executing';
-- One active execution per (run, node).
CREATE UNIQUE INDEX detent_executions_active ON detent_executions (run_id, node)
    WHERE state IN ('ready', 'timer', 'parked', 'held', 'executing');
CREATE INDEX detent_executions_topic ON detent_executions (run_id, topic) WHERE topic IS NOT NULL;

CREATE TABLE detent_steps (
    run_id      TEXT NOT NULL,
    step_key    TEXT NOT NULL,
    seq         BIGINT NOT NULL,
    kind        TEXT NOT NULL,
    name        TEXT NOT NULL,
    state       TEXT NOT NULL,
    written_by  INTEGER NOT NULL,
    attempt     INTEGER NOT NULL,
    input       TEXT,
    result      TEXT,
    error       TEXT,
    wake_at     BIGINT,
    undo_step   TEXT,
    progress    TEXT,
    started_at  BIGINT,
    finished_at BIGINT,
    PRIMARY KEY (run_id, step_key)
);

CREATE TABLE detent_messages (
    seq        BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_id     TEXT NOT NULL,
    message_id TEXT NOT NULL,
    name       TEXT NOT NULL,
    value      TEXT NOT NULL,
    sent_at    BIGINT NOT NULL,
    consumed   INTEGER NOT NULL DEFAULT 0,
    UNIQUE (run_id, message_id)
);
-- What was not received yet, oldest first.
CREATE INDEX detent_messages_unread ON detent_messages (run_id, name, seq) WHERE consumed = 0;

CREATE TABLE detent_readiness (
    run_id   TEXT NOT NULL,
    node     TEXT NOT NULL,
    required INTEGER NOT NULL,
    settled  INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (run_id, node)
);

CREATE TABLE detent_history (
    seq         BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run_id      TEXT NOT NULL,
    happened_at BIGINT NOT NULL,
    event       TEXT NOT NULL,
    detail      TEXT NOT NULL
);
CREATE INDEX detent_history_run ON detent_history (run_id, seq);

CREATE TABLE detent_workers (
    id          TEXT PRIMARY KEY,
    name        TEXT NOT NULL,
    pid         BIGINT NOT NULL,
    queues      TEXT NOT NULL,
    concurrency INTEGER NOT NULL,
    lock_no     BIGINT NOT NULL,
    started_at  BIGINT NOT NULL,
    beat_at     BIGINT NOT NULL,
    lease_until BIGINT NOT NULL
);
