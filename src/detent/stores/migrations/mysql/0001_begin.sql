-- MySQL commits at every DDL statement: IF NOT EXISTS lets a migration that was cut short be run again.
CREATE TABLE IF NOT EXISTS detent_runs (
    id          VARCHAR(255) PRIMARY KEY,
    type        VARCHAR(255) NOT NULL,
    kind        VARCHAR(16) NOT NULL,
    state       VARCHAR(16) NOT NULL DEFAULT 'ready',
    queue       VARCHAR(255) NOT NULL,
    priority    INT NOT NULL,
    input       LONGTEXT NOT NULL,
    result      LONGTEXT,
    error       LONGTEXT,
    parent      VARCHAR(255),
    parent_key  VARCHAR(255),
    hero_type   VARCHAR(255),
    hero_id     VARCHAR(255),
    exclusive   INT NOT NULL DEFAULT 0,
    deadline    BIGINT,
    forked_from VARCHAR(255),
    watched     INT NOT NULL DEFAULT 0,
    created_at  BIGINT NOT NULL,
    finished_at BIGINT,
    -- One active run per (type, hero).
    -- There are no partial indexes here: a generated column is NULL where the rule does not apply.
    hero_slot   CHAR(64) CHARACTER SET ascii COLLATE ascii_bin
        AS (CASE WHEN exclusive = 1 AND state IN ('ready', 'paused')
                 THEN SHA2(CONCAT_WS(':', LENGTH(type), type, LENGTH(hero_type), hero_type, hero_id), 256) END) STORED,
    UNIQUE INDEX detent_runs_hero (hero_slot),
    INDEX detent_runs_parent (parent),
    INDEX detent_runs_created (created_at),
    INDEX detent_runs_trouble (state, created_at)
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS detent_executions (
    run_id        VARCHAR(255) NOT NULL,
    node          VARCHAR(255) NOT NULL,
    attempt       INT NOT NULL,
    kind          VARCHAR(16) NOT NULL,
    job           VARCHAR(255) NOT NULL,
    queue         VARCHAR(255) NOT NULL,
    precedence    INT NOT NULL,
    state         VARCHAR(16) NOT NULL,
    outcome       VARCHAR(255),
    scheduled_for BIGINT,
    topic         VARCHAR(300),
    input         LONGTEXT,
    result        LONGTEXT,
    error         LONGTEXT,
    worker        VARCHAR(255),
    token         VARCHAR(255),
    deliveries    INT NOT NULL DEFAULT 0,
    recoveries    INT NOT NULL DEFAULT 0,
    failures      INT NOT NULL DEFAULT 0,
    created_at    BIGINT NOT NULL,
    started_at    BIGINT,
    finished_at   BIGINT,
    -- One active execution per (run, node).
    active_node   VARCHAR(255)
        AS (CASE WHEN state IN ('ready', 'timer', 'parked', 'held', 'executing') THEN node END) STORED,
    PRIMARY KEY (run_id, node, attempt),
    UNIQUE INDEX detent_executions_active (run_id, active_node),
    -- What may be claimed now, in the order of claiming.  Claimed and finished rows leave it.
    INDEX detent_executions_ready (state, queue, precedence, scheduled_for, run_id),
    INDEX detent_executions_timer (state, scheduled_for),
    INDEX detent_executions_worker (worker, state),
    INDEX detent_executions_topic (run_id, topic)
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS detent_steps (
    run_id      VARCHAR(255) NOT NULL,
    step_key    VARCHAR(500) NOT NULL,
    seq         BIGINT NOT NULL,
    kind        VARCHAR(16) NOT NULL,
    name        VARCHAR(255) NOT NULL,
    state       VARCHAR(16) NOT NULL,
    written_by  INT NOT NULL,
    attempt     INT NOT NULL,
    input       LONGTEXT,
    result      LONGTEXT,
    error       LONGTEXT,
    wake_at     BIGINT,
    undo_step   VARCHAR(255),
    progress    LONGTEXT,
    started_at  BIGINT,
    finished_at BIGINT,
    PRIMARY KEY (run_id, step_key)
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS detent_messages (
    seq        BIGINT AUTO_INCREMENT PRIMARY KEY,
    run_id     VARCHAR(255) NOT NULL,
    message_id VARCHAR(500) NOT NULL,
    name       VARCHAR(255) NOT NULL,
    value      LONGTEXT NOT NULL,
    sent_at    BIGINT NOT NULL,
    consumed   INT NOT NULL DEFAULT 0,
    UNIQUE INDEX detent_messages_id (run_id, message_id),
    -- What was not received yet, oldest first.
    INDEX detent_messages_unread (run_id, name, consumed, seq)
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS detent_readiness (
    run_id   VARCHAR(255) NOT NULL,
    node     VARCHAR(300) NOT NULL,
    required INT NOT NULL,
    settled  INT NOT NULL DEFAULT 0,
    PRIMARY KEY (run_id, node)
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS detent_history (
    seq         BIGINT AUTO_INCREMENT PRIMARY KEY,
    run_id      VARCHAR(255) NOT NULL,
    happened_at BIGINT NOT NULL,
    event       VARCHAR(255) NOT NULL,
    detail      LONGTEXT NOT NULL,
    INDEX detent_history_run (run_id, seq)
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS detent_workers (
    id          VARCHAR(255) PRIMARY KEY,
    name        VARCHAR(255) NOT NULL,
    pid         BIGINT NOT NULL,
    queues      VARCHAR(1000) NOT NULL,
    concurrency INT NOT NULL,
    lock_no     BIGINT NOT NULL,
    started_at  BIGINT NOT NULL,
    beat_at     BIGINT NOT NULL,
    lease_until BIGINT NOT NULL
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
