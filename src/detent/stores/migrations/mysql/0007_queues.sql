-- The key of an execution (a customer, a tenant) on a queue whose limits or turns are by key.  That of a run
-- is inherited by what it begins.
ALTER TABLE detent_executions ADD COLUMN queue_key VARCHAR(200);
ALTER TABLE detent_runs ADD COLUMN queue_key VARCHAR(200);
-- What may be claimed now, by key.  keyed_queue is NULL for all the rest: there are no partial indexes here.
SET @detent_alter = (
    SELECT IF(COUNT(*) > 0, 'DO 0', 'ALTER TABLE detent_executions
        ADD COLUMN keyed_queue VARCHAR(255)
            AS (CASE WHEN state = ''ready'' AND queue_key IS NOT NULL THEN queue END) VIRTUAL,
        ADD INDEX detent_executions_keyed (keyed_queue, queue_key, precedence, scheduled_for, run_id)')
      FROM information_schema.statistics
     WHERE table_schema = DATABASE() AND table_name = 'detent_executions' AND index_name = 'detent_executions_keyed');
PREPARE detent_alter FROM @detent_alter;
EXECUTE detent_alter;
DEALLOCATE PREPARE detent_alter;

-- Queues with limits, and queues that were paused.  A claim locks the row of its queue.
CREATE TABLE IF NOT EXISTS detent_queues (
    name       VARCHAR(255) NOT NULL PRIMARY KEY,
    declared   LONGTEXT NOT NULL,
    changes    LONGTEXT NOT NULL,
    limited    INT NOT NULL,
    paused_at  BIGINT,
    reason     LONGTEXT,
    turn       VARCHAR(200) NOT NULL,
    updated_at BIGINT NOT NULL
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- When executions began, as long as a rate needs to know.  The empty key stands for the whole queue.
CREATE TABLE IF NOT EXISTS detent_begins (
    queue     VARCHAR(255) NOT NULL,
    queue_key VARCHAR(200) NOT NULL,
    begun_at  BIGINT NOT NULL,
    begins    INT NOT NULL,
    PRIMARY KEY (queue, queue_key, begun_at),
    INDEX detent_begins_old (queue, begun_at)
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
