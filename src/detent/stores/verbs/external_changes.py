"""Changes from outside (`kernel/external_changes.py`) as statements in one transaction."""

from __future__ import annotations

from typing import Any

from ...kernel import external_changes as changes
from ..driver import Tx
from . import control, dead_letters, graphs, nodes, retention, schedules
from .cancel import note
from .run_stream_verbs import append_from_outside, publish_from_outside
from .version_verbs import repin


def perform(tx: Tx, change: changes.Change[Any], now: int) -> Any:
    """Make a change, and return its answer."""
    match change:
        case changes.Pause(run_id, reason):
            return [control.pause(tx, run_id, reason=reason, now=now).id]
        case changes.PauseWith(run_id, error):
            return nodes.pause_with(tx, run_id, error, now)
        case changes.Resume(run_id, run_graph, accept_drift):
            return control.resume(tx, run_id, now=now, run_graph=run_graph, accept_drift=accept_drift)
        case changes.Cancel(run_id, reason):
            return control.cancel(tx, run_id, reason=reason, now=now)
        case changes.Repin(run_id, version):
            return repin(tx, run_id, version, now)
        case changes.SetAttributes(run_id, attributes):
            return control.set_attributes(tx, run_id, attributes, now=now)
        case changes.Publish(row):
            return publish_from_outside(tx, row)
        case changes.Append(entry):
            return append_from_outside(tx, entry)
        case changes.Note(run_id, event, detail):
            return note(tx, run_id, event, detail, now)
        case changes.Delete(run_id):
            return retention.delete(tx, run_id)
    return _change_node(tx, change, now)


def _change_node(tx: Tx, change: changes.Change[Any], now: int) -> Any:
    match change:
        case changes.Skip(run_id, node, run_graph):
            return nodes.skip(tx, run_id, node, run_graph=run_graph, now=now)
        case changes.Reattempt(run_id, node, run_graph):
            return nodes.reattempt(tx, run_id, node, run_graph=run_graph, now=now)
        case changes.Reconcile(run_id, run_graph, mine):
            return nodes.reconcile(tx, run_id, run_graph=run_graph, now=now, mine=mine)
        case changes.Freeze(run_id, text, signature):
            return graphs.freeze(tx, run_id, text, signature, now)
        case changes.ReplaceGraph(run_id, text, run_graph):
            return graphs.replace(tx, run_id, text, run_graph=run_graph, now=now)
        case changes.ReplayLetter(run_id, node):
            return dead_letters.replay(tx, run_id, node, now)
        case changes.DiscardLetter(run_id, node):
            return dead_letters.discard(tx, run_id, node, now)
    return _change_schedule(tx, change, now)


def _change_schedule(tx: Tx, change: changes.Change[Any], now: int) -> Any:
    match change:
        case changes.CreateSchedule(row):
            return schedules.create(tx, row)
        case changes.PauseSchedule(name, reason):
            return schedules.pause(tx, name, reason=reason, now=now)
        case changes.ResumeSchedule(name):
            return schedules.resume(tx, name, now=now)
        case changes.DeleteSchedule(name):
            return schedules.delete(tx, name, now=now)
    raise NotImplementedError(f"no statements for {change!r:.200}")
