-- Runs that have a deadline, and when to look at them: at the deadline, and again while something of
-- them executes.  A run without a deadline has no row here.
CREATE TABLE detent_deadlines (
    run_id   TEXT NOT NULL PRIMARY KEY,
    deadline INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX detent_deadlines_due ON detent_deadlines (deadline, run_id);
INSERT INTO detent_deadlines (run_id, deadline)
SELECT id, deadline FROM detent_runs WHERE deadline IS NOT NULL AND state = 'ready';
