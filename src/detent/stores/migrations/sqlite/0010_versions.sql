-- The versions of the code that started a run and continued it, in order, with commas between them.
ALTER TABLE detent_runs ADD COLUMN versions TEXT;
-- The only version whose workers continue the run; NULL: workers of all versions do.  Its executions repeat it.
ALTER TABLE detent_runs ADD COLUMN pin TEXT;
ALTER TABLE detent_executions ADD COLUMN pin TEXT;
ALTER TABLE detent_workers ADD COLUMN version TEXT NOT NULL DEFAULT '';
