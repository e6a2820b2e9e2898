-- Graphs: a run's graph, or (under its signature) the one that all runs of a class share.
CREATE TABLE IF NOT EXISTS detent_graphs (
    run_id VARCHAR(255) NOT NULL,
    part   INT NOT NULL,
    body   LONGTEXT NOT NULL,
    PRIMARY KEY (run_id, part)
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Which nodes wait for the end of which run.
CREATE TABLE IF NOT EXISTS detent_waits (
    target VARCHAR(255) NOT NULL,
    run_id VARCHAR(255) NOT NULL,
    node   VARCHAR(255) NOT NULL,
    PRIMARY KEY (target, run_id, node),
    INDEX detent_waits_run (run_id)
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

ALTER TABLE detent_runs
    ADD COLUMN signature CHAR(64) CHARACTER SET ascii COLLATE ascii_bin,
    ADD COLUMN frozen_at BIGINT,
    -- 1: its past does not fit its graph of today, so readiness is recounted at every settle.
    ADD COLUMN irregular INT NOT NULL DEFAULT 0,
    ADD INDEX detent_runs_signature (signature);

ALTER TABLE detent_executions ADD COLUMN ancestry_hash CHAR(64) CHARACTER SET ascii COLLATE ascii_bin;

-- The names of all that a worker can run.
ALTER TABLE detent_workers ADD COLUMN jobs LONGTEXT;
