-- Deciders.  An instance is a run; its effects, timers and inbox are executions.
CREATE TABLE IF NOT EXISTS detent_events (
    run_id      VARCHAR(255) NOT NULL,
    sequence    BIGINT NOT NULL,
    position    BIGINT NOT NULL,
    decider     VARCHAR(255) NOT NULL,
    type        VARCHAR(255) NOT NULL,
    version     INT NOT NULL,
    data        LONGTEXT NOT NULL,
    cause       VARCHAR(255) NOT NULL,
    turn        VARCHAR(32) NOT NULL,
    happened_at BIGINT NOT NULL,
    PRIMARY KEY (run_id, sequence),
    -- The order over all instances: no gap, and none that commits later has a lower one.
    UNIQUE INDEX detent_events_position (position)
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Taken by every transaction that appends events, until it commits: whence the order of positions.
CREATE TABLE IF NOT EXISTS detent_counters (
    name  VARCHAR(255) PRIMARY KEY,
    value BIGINT NOT NULL
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
INSERT IGNORE INTO detent_counters (name, value) VALUES ('events', 0);

-- Inputs that are remembered: those with an id, those that are observed, those that wait.
CREATE TABLE IF NOT EXISTS detent_inputs (
    seq         BIGINT AUTO_INCREMENT PRIMARY KEY,
    run_id      VARCHAR(255) NOT NULL,
    input_id    VARCHAR(500),
    type        VARCHAR(255) NOT NULL,
    data        LONGTEXT,
    state       VARCHAR(16) NOT NULL,
    received_at BIGINT NOT NULL,
    handled_at  BIGINT,
    from_status VARCHAR(255),
    to_status   VARCHAR(255),
    UNIQUE INDEX detent_inputs_id (run_id, input_id),
    -- What waits in inboxes, in the order of arrival.
    INDEX detent_inputs_pending (run_id, state, seq)
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS detent_snapshots (
    run_id   VARCHAR(255) PRIMARY KEY,
    sequence BIGINT NOT NULL,
    fingerprint VARCHAR(255) NOT NULL,
    body     LONGTEXT NOT NULL,
    taken_at BIGINT NOT NULL
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Dead letters: what was given up, until somebody replays or discards it.
-- (One ALTER, done whole or not at all; what was cut short looks by itself whether it is done.)
SET @detent_alter = (
    SELECT IF(COUNT(*) > 0, 'DO 0', 'ALTER TABLE detent_executions
        ADD COLUMN dead_since BIGINT AS (CASE WHEN outcome = ''dead_letter'' THEN finished_at END) STORED,
        ADD INDEX detent_executions_dead (dead_since)')
      FROM information_schema.statistics
     WHERE table_schema = DATABASE() AND table_name = 'detent_executions' AND index_name = 'detent_executions_dead');
PREPARE detent_alter FROM @detent_alter;
EXECUTE detent_alter;
DEALLOCATE PREPARE detent_alter;

-- Read models: how far each has come, and what is being rebuilt beside it.
CREATE TABLE IF NOT EXISTS detent_projections (
    name       VARCHAR(255) NOT NULL,
    generation INT NOT NULL,
    version    INT NOT NULL,
    state      VARCHAR(16) NOT NULL,
    position   BIGINT NOT NULL,
    begun_at   BIGINT,
    failures   INT NOT NULL DEFAULT 0,
    retry_at   BIGINT,
    error      LONGTEXT,
    updated_at BIGINT NOT NULL,
    PRIMARY KEY (name, generation)
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- What projections keep by key, where they do not have tables of their own.
CREATE TABLE IF NOT EXISTS detent_views (
    projection VARCHAR(255) NOT NULL,
    generation INT NOT NULL,
    item_key   VARCHAR(255) NOT NULL,
    value      LONGTEXT NOT NULL,
    PRIMARY KEY (projection, generation, item_key)
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
