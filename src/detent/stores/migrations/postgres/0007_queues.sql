-- The key of an execution (a customer, a tenant) on a queue whose limits or turns are by key.  That of a run
-- is inherited by what it begins.
ALTER TABLE detent_executions ADD COLUMN queue_key TEXT COLLATE "C";
ALTER TABLE detent_runs ADD COLUMN queue_key TEXT COLLATE "C";
-- What may be claimed now, by key.  Executions without a key are not in it.
CREATE INDEX detent_executions_keyed
    ON detent_executions (queue, queue_key, precedence, scheduled_for, run_id)
    WHERE state = 'ready' AND queue_key IS NOT NULL;

-- Queues with limits, and queues that were paused.  A claim locks the row of its queue.
CREATE TABLE detent_queues (
    name       TEXT PRIMARY KEY,
    declared   TEXT NOT NULL,
    changes    TEXT NOT NULL,
    limited    INTEGER NOT NULL,
    paused_at  BIGINT,
    reason     TEXT,
    turn       TEXT NOT NULL,
    updated_at BIGINT NOT NULL
) WITH (fillfactor = 50);

-- When executions began, as long as a rate needs to know.  The empty key stands for the whole queue.
CREATE TABLE detent_begins (
    queue     TEXT NOT NULL,
    queue_key TEXT NOT NULL,
    begun_at  BIGINT NOT NULL,
    begins    INTEGER NOT NULL,
    PRIMARY KEY (queue, queue_key, begun_at)
);
CREATE INDEX detent_begins_old ON detent_begins (queue, begun_at);
