-- The place of spawned steps and child runs in the journal of the run that asked for them; 0: not known.
ALTER TABLE detent_executions ADD COLUMN seq BIGINT NOT NULL DEFAULT 0;
ALTER TABLE detent_runs ADD COLUMN parent_seq BIGINT NOT NULL DEFAULT 0;
