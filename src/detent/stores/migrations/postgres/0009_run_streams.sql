-- Streams of runs: ordered values that readers follow.
CREATE TABLE detent_streams (
    run_id      TEXT NOT NULL,
    name        TEXT NOT NULL,
    position    BIGINT NOT NULL,
    entry_id    TEXT NOT NULL,
    step        TEXT NOT NULL,
    attempt     INTEGER NOT NULL,
    value       TEXT NOT NULL,
    appended_at BIGINT NOT NULL,
    PRIMARY KEY (run_id, name, position),
    UNIQUE (run_id, entry_id)
);
