"""The statements that projections need."""

from __future__ import annotations

import msgspec

from ...kernel.projections import ProjectionRow
from .dialect import Dialect, columns_of

KEY = ("name", "generation")
ITEM = ("projection", "generation", "item_key")
_ALL = columns_of(ProjectionRow)


class ProjectionStatements(msgspec.Struct, frozen=True):
    """Generations, checkpoints, and what is kept by key."""

    generations: str
    overview: str
    insert: str
    take: str
    lock: str
    save: str
    delete: str
    reached: str
    live_item: str
    items: str
    item: str
    first_items: str
    put_items: str
    delete_items: str
    some_keys: str


def build_projections(d: Dialect) -> ProjectionStatements:
    """Return the statements in the dialect `d`."""
    row = ", ".join(f"p.{c}" for c in _ALL)
    one = "p.name = :name AND p.generation = :generation"
    live = "p.name = :name AND p.state = 'live'"
    item = "v.projection = p.name AND v.generation = p.generation"
    by_key = d.by("PRIMARY")
    changes = ", ".join(f"{c} = :{c}" for c in _ALL if c not in (*KEY, "version"))
    return ProjectionStatements(
        # The few generations that there are, and how far the events have come.
        generations=f"""
SELECT {row}, (SELECT c.value FROM detent_counters c WHERE c.name = 'events') AS head
  FROM detent_projections p ORDER BY p.name {d.bytewise}, p.generation""",
        # The same with the age of the first event that each has not seen.
        overview=f"""
SELECT {row}, (SELECT c.value FROM detent_counters c WHERE c.name = 'events') AS head,
       (SELECT e.happened_at FROM detent_events e {d.by("detent_events_position")}
         WHERE e.position > p.position ORDER BY e.position LIMIT 1) AS oldest
  FROM detent_projections p ORDER BY p.name {d.bytewise}, p.generation""",
        insert=d.insert_new("detent_projections", _ALL, KEY),
        # The process that locks the row is the one consumer.  Others skip it.
        take=f"""
SELECT {row} FROM detent_projections p {by_key} WHERE {one}
 {d.lock("p")} {d.skip_locked}""",
        lock=f"""
SELECT {row} FROM detent_projections p {by_key} WHERE {one}
 {d.lock("p")}""",
        save=f"UPDATE detent_projections SET {changes} WHERE name = :name AND generation = :generation",
        delete="DELETE FROM detent_projections WHERE name = :name AND generation = :generation",
        reached=f"SELECT {row} FROM detent_projections p {by_key} WHERE {live}",
        live_item=f"""
SELECT v.value FROM detent_projections p {by_key} JOIN detent_views v ON {item}
 WHERE {live} AND v.item_key = :key""",
        # With the generation's number as a constant: so it is a range of the key on every database.
        items="""
SELECT item_key, value FROM detent_views
 WHERE projection = :name AND generation = :generation
   AND item_key >= :low AND item_key < :high AND item_key > :after
 ORDER BY item_key LIMIT :limit""",
        item="""
SELECT value FROM detent_views
 WHERE projection = :name AND generation = :generation AND item_key = :key""",
        first_items="""
SELECT item_key, value FROM detent_views
 WHERE projection = :name AND generation = :generation
 ORDER BY item_key LIMIT :limit""",
        put_items=d.upsert_unless("detent_views", (*ITEM, "value"), ITEM, ("value",), "value IS NULL"),
        delete_items=d.delete("detent_views", ITEM),
        some_keys="""
SELECT item_key FROM detent_views
 WHERE projection = :name AND generation = :generation
 ORDER BY item_key LIMIT :limit""",
    )
