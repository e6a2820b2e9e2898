-- Streams of runs: ordered values that readers follow.
CREATE TABLE IF NOT EXISTS detent_streams (
    run_id      VARCHAR(255) NOT NULL,
    name        VARCHAR(255) NOT NULL,
    position    BIGINT NOT NULL,
    entry_id    VARCHAR(500) NOT NULL,
    step        VARCHAR(500) NOT NULL,
    attempt     INT NOT NULL,
    value       LONGTEXT NOT NULL,
    appended_at BIGINT NOT NULL,
    PRIMARY KEY (run_id, name, position),
    UNIQUE INDEX detent_streams_entry (run_id, entry_id)
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
