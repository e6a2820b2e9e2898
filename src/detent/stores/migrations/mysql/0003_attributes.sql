-- Searchable facts of runs.  They carry their run's created_at, so that the index gives the order of a listing.
CREATE TABLE IF NOT EXISTS detent_attributes (
    run_id     VARCHAR(255) NOT NULL,
    name       VARCHAR(100) NOT NULL,
    value      VARCHAR(255) NOT NULL,
    kind       VARCHAR(16) NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (run_id, name),
    INDEX detent_attributes_value (name, value, created_at, run_id)
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Listings, newest first: with the key that InnoDB adds, each of these ends with (created_at, id), the order of
-- all pages.  (With hero_type, that of heroes would be too long for it.)  The last is for retention: what is
-- over, longest ago first.
--
-- One ALTER, done whole or not at all; and MySQL has no IF NOT EXISTS for it, so that a migration that was cut
-- short looks by itself whether it is done.
SET @detent_alter = (
    SELECT IF(COUNT(*) > 0, 'DO 0', 'ALTER TABLE detent_runs
        DROP INDEX detent_runs_parent,
        ADD INDEX detent_runs_parent (parent, created_at),
        ADD INDEX detent_runs_type (type, created_at),
        ADD INDEX detent_runs_heroes (hero_id, created_at),
        RENAME INDEX detent_runs_trouble TO detent_runs_state,
        ADD INDEX detent_runs_finished (finished_at)')
      FROM information_schema.statistics
     WHERE table_schema = DATABASE() AND table_name = 'detent_runs' AND index_name = 'detent_runs_finished');
PREPARE detent_alter FROM @detent_alter;
EXECUTE detent_alter;
DEALLOCATE PREPARE detent_alter;
