-- The versions of the code that started a run and continued it, in order, with commas between them.
ALTER TABLE detent_runs ADD COLUMN versions LONGTEXT;
-- The only version whose workers continue the run; NULL: workers of all versions do.  Its executions repeat it.
ALTER TABLE detent_runs ADD COLUMN pin VARCHAR(100);
ALTER TABLE detent_executions ADD COLUMN pin VARCHAR(100);
ALTER TABLE detent_workers ADD COLUMN version VARCHAR(100) NOT NULL DEFAULT '';
