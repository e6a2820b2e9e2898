-- Runs that continue as new ones: the chain of a run, its predecessor and its successor.
ALTER TABLE detent_runs ADD COLUMN chain VARCHAR(255);
ALTER TABLE detent_runs ADD COLUMN continues VARCHAR(255);
ALTER TABLE detent_runs ADD COLUMN continued_as VARCHAR(255);
-- Of a child in a chain: what its parent called it with, which the parent's journal repeats.
ALTER TABLE detent_runs ADD COLUMN called_with LONGTEXT;
-- The first and the current run of each chain, and the number of the current one.
CREATE TABLE IF NOT EXISTS detent_chains (
    id          VARCHAR(255) NOT NULL,
    first_run   VARCHAR(255) NOT NULL,
    current_run VARCHAR(255) NOT NULL,
    number      BIGINT NOT NULL,
    PRIMARY KEY (id),
    INDEX detent_chains_current (current_run)
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
