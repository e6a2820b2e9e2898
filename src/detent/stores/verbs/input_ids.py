"""Forgetting input ids, some inputs at a time, in the order of arrival."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ...kernel.decide import InputState
from ..driver import Tx, batch


class Passed(msgspec.Struct, frozen=True):
    """What a pass over some inputs came to."""

    forgotten: int
    place: int  # the last input that need not be looked at again
    more: bool  # others may be due


def forget(tx: Tx, observing: Mapping[str, bool], *, before: int, beyond: int, limit: int) -> Passed:
    """Forget ids that arrived before a moment; `observing` are the deciders, and whether they observe.

    An input that is observed stays without its id, any other input is removed.  One that is pending stays as
    it is.
    """
    sql = tx.sql.deciders
    rows = tx.query(sql.walk_inputs, beyond=beyond, limit=limit)
    gone: dict[bool, list[dict[str, int]]] = {True: [], False: []}
    place, due = beyond, 0
    for seq, received_at, state, has_id, type in rows:
        if received_at >= before:
            continue
        due += 1
        place = seq
        if type in observing and has_id and state != InputState.PENDING:
            gone[observing[type]].append({"seq": seq})
    if gone[True]:
        tx.run(sql.blank_inputs, rows=batch(gone[True]))
    if gone[False]:
        tx.run(sql.delete_inputs, rows=batch(gone[False]))
    return Passed(len(gone[True]) + len(gone[False]), place, bool(due) and len(rows) == limit)
