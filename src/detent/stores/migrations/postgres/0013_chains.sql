-- Runs that continue as new ones: the chain of a run, its predecessor and its successor.
ALTER TABLE detent_runs ADD COLUMN chain TEXT;
ALTER TABLE detent_runs ADD COLUMN continues TEXT;
ALTER TABLE detent_runs ADD COLUMN continued_as TEXT;
-- Of a child in a chain: what its parent called it with, which the parent's journal repeats.
ALTER TABLE detent_runs ADD COLUMN called_with TEXT;
-- The first and the current run of each chain, and the number of the current one.
CREATE TABLE detent_chains (
    id          TEXT NOT NULL,
    first_run   TEXT NOT NULL,
    current_run TEXT NOT NULL,
    number      BIGINT NOT NULL,
    PRIMARY KEY (id)
);
CREATE INDEX detent_chains_current ON detent_chains (current_run);
-- Spawned steps of a map with a limit that may not begin yet, in their order.
CREATE INDEX detent_executions_waiting ON detent_executions (run_id, topic, seq)
    WHERE scheduled_for IS NULL AND topic IS NOT NULL;
