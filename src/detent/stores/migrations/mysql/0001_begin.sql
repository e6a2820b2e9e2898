CREATE TABLE detent_runs (
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
    finished_at BIGINT
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- One active run per (type, hero).
-- There are no partial indexes here: a generated column is NULL where the rule does not apply.
ALTER TABLE detent_runs ADD COLUMN hero_slot CHAR(64) CHARACTER SET ascii COLLATE ascii_bin
    AS (CASE WHEN exclusive = 1 AND state IN ('ready', 'paused')
             THEN SHA2(CONCAT_WS(CHAR(10), type, hero_type, hero_id), 256) END) STORED;
CREATE UNIQUE INDEX detent_runs_hero ON detent_runs (hero_slot);
CREATE INDEX detent_runs_parent ON detent_runs (parent);
CREATE INDEX detent_runs_created ON detent_runs (created_at);
CREATE INDEX detent_runs_trouble ON detent_runs (state, created_at);

CREATE TABLE detent_executions (
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
    PRIMARY KEY (run_id, node, attempt)
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- What may be claimed now, in the order of claiming.  Claimed and finished rows leave it.
CREATE INDEX detent_executions_ready ON detent_executions (state, queue, precedence, scheduled_for, run_id);
CREATE INDEX detent_executions_timer ON detent_executions (state, scheduled_for);
CREATE INDEX detent_executions_worker ON detent_executions (worker, state);
-- One active execution per (run, node).
ALTER TABLE detent_executions ADD COLUMN active_node VARCHAR(255)
    AS (CASE WHEN state IN ('ready', 'timer', 'parked', 'held', 'executing') THEN node END) STORED;
CREATE UNIQUE INDEX detent_executions_active ON detent_executions (run_id, active_node);
CREATE INDEX detent_executions_topic ON detent_executions (run_id, topic);

CREATE TABLE detent_steps (
    run_id      VARCHAR(255) NOT NULL,
    step_key    VARCHAR(255) NOT NULL,
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
    undo        VARCHAR(255),
    progress    LONGTEXT,
    started_at  BIGINT,
    finished_at BIGINT,
    PRIMARY KEY (run_id, step_key)
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE detent_messages (
    seq        BIGINT AUTO_INCREMENT PRIMARY KEY,
    run_id     VARCHAR(255) NOT NULL,
    message_id VARCHAR(255) NOT NULL,
    name       VARCHAR(255) NOT NULL,
    value      LONGTEXT NOT NULL,
    sent_at    BIGINT NOT NULL,
    consumed   INT NOT NULL DEFAULT 0,
    UNIQUE (run_id, message_id)
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE detent_readiness (
    run_id   VARCHAR(255) NOT NULL,
    node     VARCHAR(300) NOT NULL,
    required INT NOT NULL,
    settled  INT NOT NULL DEFAULT 0,
    PRIMARY KEY (run_id, node)
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE detent_history (
    seq         BIGINT AUTO_INCREMENT PRIMARY KEY,
    run_id      VARCHAR(255) NOT NULL,
    happened_at BIGINT NOT NULL,
    event       VARCHAR(255) NOT NULL,
    detail      LONGTEXT NOT NULL
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
CREATE INDEX detent_history_run ON detent_history (run_id, seq);

CREATE TABLE detent_workers (
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
