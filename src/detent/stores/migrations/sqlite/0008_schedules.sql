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
    next_for    INTEGER,
    due_at      INTEGER,
    queued_for  INTEGER,
    last_for    INTEGER,
    last_run    TEXT,
    fired       INTEGER NOT NULL DEFAULT 0,
    skipped     INTEGER NOT NULL DEFAULT 0,
    error       TEXT,
    reason      TEXT,
    seen_at     INTEGER NOT NULL,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX detent_schedules_due ON detent_schedules (due_at, name) WHERE due_at IS NOT NULL;
