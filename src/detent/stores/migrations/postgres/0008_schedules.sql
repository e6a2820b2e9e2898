-- Schedules: when each is due next, and what became of its last firing.
CREATE TABLE detent_schedules (
    name        TEXT NOT NULL PRIMARY KEY,
    source      TEXT NOT NULL,
    state       TEXT NOT NULL,
    job         TEXT NOT NULL,
    input       TEXT NOT NULL,
    timing      TEXT NOT NULL,
    terms       TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    former      TEXT NOT NULL,
    served_by   TEXT NOT NULL,
    next_for    BIGINT,
    due_at      BIGINT,
    queued_for  BIGINT,
    last_for    BIGINT,
    last_run    TEXT,
    fired       BIGINT NOT NULL DEFAULT 0,
    skipped     BIGINT NOT NULL DEFAULT 0,
    error       TEXT,
    reason      TEXT,
    seen_at     BIGINT NOT NULL,
    created_at  BIGINT NOT NULL,
    updated_at  BIGINT NOT NULL
) WITH (fillfactor = 50);
CREATE INDEX detent_schedules_due ON detent_schedules (due_at, name) WHERE due_at IS NOT NULL;
