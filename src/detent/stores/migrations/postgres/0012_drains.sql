-- When an operator asked a worker to claim nothing more; NULL: it claims.
ALTER TABLE detent_workers ADD COLUMN drain_at BIGINT;
