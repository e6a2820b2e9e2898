-- Runs that have a deadline, and when to look at them: at the deadline, and again while something of
-- them executes.  A run without a deadline has no row here.
CREATE TABLE IF NOT EXISTS detent_deadlines (
    run_id   VARCHAR(255) NOT NULL PRIMARY KEY,
    deadline BIGINT NOT NULL,
    INDEX detent_deadlines_due (deadline, run_id)
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
INSERT IGNORE INTO detent_deadlines (run_id, deadline)
SELECT id, deadline FROM detent_runs WHERE deadline IS NOT NULL AND state = 'ready';
