-- Searchable facts of runs.  They carry their run's created_at, so that the index gives the order of a listing.
CREATE TABLE detent_attributes (
    run_id     TEXT NOT NULL,
    name       TEXT NOT NULL,
    value      TEXT NOT NULL,
    kind       TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (run_id, name)
) WITHOUT ROWID;
CREATE INDEX detent_attributes_value ON detent_attributes (name, value, created_at, run_id);

-- Listings, newest first: each of these ends with (created_at, id), the order of all pages.
DROP INDEX detent_runs_created;
CREATE INDEX detent_runs_created ON detent_runs (created_at, id);
DROP INDEX detent_runs_parent;
CREATE INDEX detent_runs_parent ON detent_runs (parent, created_at, id) WHERE parent IS NOT NULL;
CREATE INDEX detent_runs_type ON detent_runs (type, created_at, id);
CREATE INDEX detent_runs_heroes ON detent_runs (hero_type, hero_id, created_at, id) WHERE hero_type IS NOT NULL;
-- Runs leave it when they finish, as nearly all do.
DROP INDEX detent_runs_trouble;
CREATE INDEX detent_runs_state ON detent_runs (state, created_at, id) WHERE state <> 'finished';
-- What is over, longest ago first: for retention.
CREATE INDEX detent_runs_finished ON detent_runs (finished_at, id) WHERE finished_at IS NOT NULL;
