-- Keys of starts: the run that a dedup window or a debounce belongs to.  A start with such a key locks its row.
CREATE TABLE IF NOT EXISTS detent_start_keys (
    mode      VARCHAR(16) NOT NULL,
    type      VARCHAR(255) NOT NULL,
    start_key VARCHAR(200) NOT NULL,
    last_run  VARCHAR(255) NOT NULL,
    first_at  BIGINT NOT NULL,
    until     BIGINT NOT NULL,
    PRIMARY KEY (mode, type, start_key),
    INDEX detent_start_keys_until (until)
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
