"""Mutants of graphs, deciders and projections."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.mutant import Mutant, expect_caught, expect_passing

MUTANTS = [
    Mutant(
        "counts are read before the run is locked",
        "stores/batch/apply.py",
        """\
    runs = _lock_runs(tx, operations)
    # Also those of workers declared dead: who is, is not known yet.
    held = _ask_executions(tx, {_delivery(end) for end in _ends(operations)})
    known = ask_known(tx, operations)
    by_graph = [op for op in operations if isinstance(op, Settle) and op.run_graph is not None]
    counts = ask_counts(tx, by_graph) if by_graph else Asked()
""",
        """\
    by_graph = [op for op in operations if isinstance(op, Settle) and op.run_graph is not None]
    counts = ask_counts(tx, by_graph) if by_graph else Asked()
    runs = _lock_runs(tx, operations)
    held = _ask_executions(tx, {_delivery(end) for end in _ends(operations)})
    known = ask_known(tx, operations)
""",
        (
            "conformance/test_graphs.py"
            "::test_the_last_two_parents_at_the_same_moment_ready_the_join_once[postgres]",
        ),
    ),
    Mutant(
        "a node of a paused run is settled as if the run were ready",
        "stores/postgres/next_nodes.py",
        "run.was = 'ready' AND ",
        "",
        ("conformance/test_graphs.py::test_a_settle_beside_a_pause_leaves_nothing_to_claim[postgres]",),
    ),
    Mutant(
        "slots of nodes that were not settled stay taken",
        "stores/batch/ways.py",
        "{row.token for place in left for row, _ in way.leased[place] if row.token is not None}",
        "set()",
        (
            "conformance/test_next_nodes.py"
            "::test_a_stale_link_is_told_so_and_its_slot_is_free_again[postgres]",
        ),
    ),
    Mutant(
        "a skipped predecessor does not count",
        "kernel/settle.py",
        "done = state in (ExecutionState.COMPLETED, ExecutionState.SKIPPED)",
        "done = state == ExecutionState.COMPLETED",
        ("conformance/test_graphs.py::test_a_branch_that_is_not_taken_is_skipped_without_a_worker[sqlite]",),
    ),
    Mutant(
        "a join begins after its first parent",
        "kernel/advance.py",
        """\
        if count.settled == required:
""",
        """\
        if count.settled >= 1:
""",
        ("unit/test_kernel_advance.py::test_a_join_waits_for_its_last_parent",),
    ),
    Mutant(
        "more settles than parents are not noticed",
        "kernel/advance.py",
        "if count.settled > required or count.required != required:",
        "if False:",
        ("unit/test_kernel_advance.py::test_more_settles_than_parents_are_a_bug_and_say_so",),
    ),
    Mutant(
        "an empty fan_out loses the order",
        "definitions/graphs.py",
        """\
        if self._empty:
            needs +=""",
        """\
        if False:
            needs +=""",
        (
            "graphs/test_wiring.py::test_the_outputs_of_an_empty_group_are_an_empty_list_and_keep_the_order[sqlite]",
        ),
    ),
    Mutant(
        "verify ignores results",
        "kernel/ancestry.py",
        "[run_id, node, attempt, job, outcome, result, error, sorted(parents)]",
        "[run_id, node, attempt, job, outcome, error, sorted(parents)]",
        ("unit/test_kernel_ancestry.py::test_every_part_of_it_counts",),
    ),
    Mutant(
        "verify ignores attempts",
        "kernel/ancestry.py",
        "[run_id, node, attempt, job, outcome, result, error, sorted(parents)]",
        "[run_id, node, job, outcome, result, error, sorted(parents)]",
        ("unit/test_kernel_ancestry.py::test_every_part_of_it_counts",),
    ),
    Mutant(
        "policies and retries share one budget",
        "execution/node.py",
        "stored.reattempts = {**spent, budget: count}",
        "stored.reattempts = dict.fromkeys([*spent, budget], count)",
        ("graphs/test_policies.py::test_retries_and_each_policy_have_counts_of_their_own[sqlite]",),
    ),
    Mutant(
        "an executed input overtakes the inbox",
        "stores/batch/deciders.py",
        "if not instance.waits and op.run_id not in self._arrived:",
        "if True:",
        (
            "deciders/test_inbox.py::test_an_input_that_is_executed_comes_behind_what_waits_in_the_inbox[sqlite]",
        ),
    ),
    Mutant(
        "the same input id is decided twice",
        "stores/batch/deciders.py",
        """\
        if given.input_id is not None and (op.run_id, given.input_id) in self._known:
            return Decided()
""",
        "",
        ("deciders/test_rules.py::test_the_same_input_id_again_is_no_second_decision[sqlite]",),
    ),
    Mutant(
        "the same input id waits twice in the inbox",
        "stores/batch/deciders.py",
        "            if (op.run_id, op.input.input_id) in self._known:",
        "            if False:",
        ("deciders/test_inbox.py::test_the_same_input_id_waits_once[sqlite]",),
    ),
    Mutant(
        "a keyed timer that is a dead letter cannot be cancelled",
        "stores/sql/deciders.py",
        "PENDING = f\"(t.state IN {ACTIVE} OR t.outcome = 'dead_letter')\"",
        'PENDING = f"t.state IN {ACTIVE}"',
        ("deciders/test_rules_timers.py::test_cancelling_a_timer_reaches_its_dead_letter[sqlite]",),
    ),
    Mutant(
        "a timer fires after it was cancelled",
        "stores/batch/apply.py",
        """\
    if _delivery(op.ends) not in plans.seen.held or not plans.deciding.fires(op.ends, op.timer):
        return Decided(stale=True)
""",
        "",
        (
            "deciders/test_rules_timers.py::test_a_timer_that_is_cancelled_after_its_claim_does_not_fire[sqlite]",
        ),
    ),
    Mutant(
        "a projection moves beyond an event that it could not apply",
        "kernel/projections.py",
        """\
    row.position = position - 1
    wait""",
        """\
    row.position = position
    wait""",
        (
            "unit/test_kernel_project.py::test_a_blocked_generation_stands_before_its_event_and_waits_ever_longer",
        ),
    ),
    Mutant(
        "a projection that is behind replaces the live one",
        "kernel/projections.py",
        "return rebuilt.position >= live.position and not",
        "return not",
        ("unit/test_kernel_project.py::test_only_what_is_behind_in_nothing_takes_over[fields2-False]",),
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_caught(mutant: Mutant, tmp_path: Path) -> None:
    expect_caught(mutant, tmp_path)


def test_without_mutants_these_tests_pass(tmp_path: Path) -> None:
    expect_passing(MUTANTS, tmp_path)
