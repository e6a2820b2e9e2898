"""Statements for chains: runs that continue as new ones."""

from __future__ import annotations

import msgspec

from .dialect import Dialect

_COPIED = (
    "type, kind, queue, priority, parent, parent_key, parent_seq, hero_type, hero_id, exclusive, deadline,"
    " watched, queue_key"
)


class ChainStatements(msgspec.Struct, frozen=True):
    """All of them; a dialect that lacks one does not type-check."""

    place: str
    current: str
    is_taken: str
    insert_run: str
    link: str
    insert: str
    advance: str
    copy_attributes: str
    copy_messages: str
    close_messages: str
    insert_received: str
    move_readiness: str
    move_waits: str
    move_deadline: str
    open_work: str
    holds_first: str
    forget_received: str


def build_chains(d: Dialect) -> ChainStatements:
    """Return the statements in the dialect `d`."""
    return ChainStatements(
        # The place of a run in its chain; NULLs for a run that continues none.
        place="""
SELECT r.parent, r.chain, c.first_run, c.number
  FROM detent_runs r
  LEFT JOIN detent_chains c ON c.id = r.chain
 WHERE r.id = :id""",
        current="SELECT current_run FROM detent_chains WHERE id = :chain",
        is_taken="SELECT 1 FROM detent_runs WHERE id = :id",
        # After the end of the run before it: a hero has one active run of a type.
        insert_run=f"""
INSERT INTO detent_runs ({_COPIED}, id, state, input, created_at, versions, pin, chain, continues,
    called_with)
SELECT {_COPIED}, :new, :state, :input, :now, :versions, :pin, :chain, id,
       CASE WHEN parent IS NOT NULL THEN COALESCE(called_with, input) END
  FROM detent_runs
 WHERE id = :id""",
        link="""
UPDATE detent_runs
   SET chain = :chain, continued_as = :new, parent = NULL, parent_key = NULL
 WHERE id = :id""",
        insert="""
INSERT INTO detent_chains (id, first_run, current_run, number) VALUES (:chain, :id, :new, :number)""",
        advance="UPDATE detent_chains SET current_run = :new, number = :number WHERE id = :chain",
        copy_attributes="""
INSERT INTO detent_attributes (run_id, name, value, kind, created_at)
SELECT :new, name, value, kind, :now FROM detent_attributes
 WHERE run_id = :id AND name NOT LIKE 'detent.%'""",
        # Copied, and closed below: a message that is sent again is found where it was sent to.
        copy_messages="""
INSERT INTO detent_messages (run_id, message_id, name, value, sent_at)
SELECT :new, message_id, name, value, sent_at FROM detent_messages
 WHERE run_id = :id AND consumed = 0
 ORDER BY seq""",
        close_messages="UPDATE detent_messages SET consumed = 1 WHERE run_id = :id AND consumed = 0",
        insert_received=d.insert_new(
            "detent_messages",
            ("run_id", "message_id", "name", "value", "sent_at", "consumed"),
            ("run_id", "message_id"),
        ),
        move_readiness="""
UPDATE detent_readiness SET node = :new_topic WHERE run_id = :parent AND node = :topic""",
        move_waits="UPDATE detent_waits SET target = :new WHERE target = :id",
        move_deadline="UPDATE detent_deadlines SET run_id = :new WHERE run_id = :id",
        # What a run has started and what has not ended.
        open_work="""
SELECT 'steps', topic FROM detent_executions
 WHERE run_id = :id AND kind = 'step' AND topic IS NOT NULL
   AND state IN ('ready', 'timer', 'parked', 'held', 'executing')
UNION
SELECT 'child', id FROM detent_runs WHERE parent = :id AND state IN ('ready', 'paused')""",
        # Whether a run is the first of a chain that has not ended: its id is the address of the chain.
        holds_first="""
SELECT k.id
  FROM detent_runs r
  JOIN detent_chains c ON c.id = r.chain AND c.first_run = r.id
  JOIN detent_runs k ON k.id = c.current_run AND k.state IN ('ready', 'paused')
 WHERE r.id = :id""",
        # What was sent to the first run of a chain and went on to another; that run may live for years.
        forget_received="""
DELETE FROM detent_messages
 WHERE consumed = 1 AND sent_at < :before AND run_id IN (SELECT first_run FROM detent_chains)""",
    )
