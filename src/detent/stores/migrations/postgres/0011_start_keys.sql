-- Keys of starts: the run that a dedup window or a debounce belongs to.  A start with such a key locks its row.
CREATE TABLE detent_start_keys (
    mode      TEXT NOT NULL,
    type      TEXT NOT NULL,
    start_key TEXT NOT NULL,
    last_run  TEXT NOT NULL,
    first_at  BIGINT NOT NULL,
    until     BIGINT NOT NULL,
    PRIMARY KEY (mode, type, start_key)
);
CREATE INDEX detent_start_keys_until ON detent_start_keys (until);
