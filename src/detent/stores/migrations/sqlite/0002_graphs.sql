-- Graphs: a run's graph, or (under its signature) the one that all runs of a class share.
CREATE TABLE detent_graphs (
    run_id TEXT NOT NULL,
    part   INTEGER NOT NULL,
    body   TEXT NOT NULL,
    PRIMARY KEY (run_id, part)
);

-- Which nodes wait for the end of which run.
CREATE TABLE detent_waits (
    target TEXT NOT NULL,
    run_id TEXT NOT NULL,
    node   TEXT NOT NULL,
    PRIMARY KEY (target, run_id, node)
);
CREATE INDEX detent_waits_run ON detent_waits (run_id);

ALTER TABLE detent_runs ADD COLUMN signature TEXT;
ALTER TABLE detent_runs ADD COLUMN frozen_at BIGINT;
-- 1: its past does not fit its graph of today, so readiness is recounted at every settle.
ALTER TABLE detent_runs ADD COLUMN irregular INTEGER NOT NULL DEFAULT 0;
CREATE INDEX detent_runs_signature ON detent_runs (signature) WHERE signature IS NOT NULL;

ALTER TABLE detent_executions ADD COLUMN ancestry_hash TEXT;

-- The names of all that a worker can run.
ALTER TABLE detent_workers ADD COLUMN jobs TEXT NOT NULL DEFAULT '[]';
