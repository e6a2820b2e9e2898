"""Mutants of the committer, and of the store's answers about commits in doubt."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.mutant import Mutant, expect_caught, expect_passing

FAULTS = "unit/test_committer_faults.py"
LOOPS = "unit/test_loop_turns.py"
INTERRUPTS = "unit/test_committer_interrupts.py"

MUTANTS = [
    Mutant(
        "an operation is answered before its commit",
        "commit/batch_attempts.py",
        """\
        try:
            applied = self._store.apply(
""",
        """\
        for entry in group:
            entry.succeed(Verdict.APPLIED)
        self._answer(group)
        try:
            applied = self._store.apply(
""",
        (f"{FAULTS}::test_an_operation_is_answered_only_after_its_commit",),
    ),
    Mutant(
        "an error that is no clear answer counts as a refusal",
        "commit/batch_attempts.py",
        "return isinstance(error, MustGoAlone) or (",
        "return True or (",
        (f"{FAULTS}::test_a_start_that_is_still_being_committed_when_it_is_looked_up_is_ours",),
    ),
    Mutant(
        "a commit in doubt counts as done",
        "commit/batch_attempts.py",
        """\
        if answer is not None:
            entry.succeed(answer)
            self._tell([entry.operation]""",
        """\
        answer = answer or Verdict.APPLIED
        if answer is not None:
            entry.succeed(answer)
            self._tell([entry.operation]""",
        (f"{FAULTS}::test_a_long_absence_does_not_end_in_a_recursion_error",),
    ),
    Mutant(
        "a retried start is told that another began its run",
        "commit/batch_attempts.py",
        "found = [entry for entry in group if entry.retried and came_second(entry.answer)]",
        "found: list[Entry] = []",
        (f"{FAULTS}::test_a_start_that_is_still_being_committed_when_it_is_looked_up_is_ours",),
    ),
    Mutant(
        "a caller that was interrupted stays the leader",
        "commit/committer.py",
        """\
        if leads:
            self._leader = None
""",
        """\
        if False:
            self._leader = None
""",
        (f"{INTERRUPTS}::test_a_leader_interrupted_in_its_commit_leaves_the_others_their_answers",),
        hangs=True,
    ),
    Mutant(
        "what an interrupted leader has committed is committed again",
        "commit/committer.py",
        """\
                    other.doubted = other.retried = True
                    other.interruptions += 1
""",
        """\
                    other.interruptions += 1
""",
        (f"{INTERRUPTS}::test_what_an_interrupted_leader_has_committed_is_looked_up_and_not_sent_again",),
    ),
    Mutant(
        "the main thread commits by itself, where a signal can interrupt it",
        "commit/committer.py",
        "entry.may_lead = threading.current_thread() is not threading.main_thread()",
        "entry.may_lead = True",
        (f"{INTERRUPTS}::test_the_main_thread_does_not_commit_by_itself",),
    ),
    Mutant(
        "nobody waits for a database that is away",
        "commit/batch_attempts.py",
        "ended = (entry.deadline is not None",
        "ended = True or (entry.deadline is not None",
        (f"{FAULTS}::test_a_long_absence_does_not_end_in_a_recursion_error",),
    ),
    Mutant(
        "one bad operation fails its whole batch",
        "commit/batch_attempts.py",
        """\
            groups += reversed(parts(group, error))
""",
        """\
            for entry in group:
                entry.fail(error)
""",
        (f"{FAULTS}::test_one_bad_operation_among_a_thousand_costs_a_few_commits",),
    ),
    Mutant(
        "the halves of a batch that failed are committed in the wrong order",
        "commit/batch_attempts.py",
        "reversed(parts(group, error))",
        "parts(group, error)",
        (f"{FAULTS}::test_one_bad_operation_among_a_thousand_costs_a_few_commits",),
    ),
    Mutant(
        "an event loop sends two operations of a run before the first is answered",
        "commit/committer.py",
        "(rest if full or entry.run in busy else taken).append(entry)",
        "(rest if full else taken).append(entry)",
        (f"{LOOPS}::test_operations_of_one_run_are_not_on_their_way_together",),
    ),
    Mutant(
        "a commit of an event loop whose answer was lost is sent again",
        "commit/batch_attempts.py",
        """\
        if not self._is_clear(error):
            for entry in batch:
""",
        """\
        if False:
            for entry in batch:
""",
        (f"{LOOPS}::test_a_commit_whose_answer_was_lost_is_looked_up_and_not_sent_again",),
    ),
    Mutant(
        "leases whose delivery failed are forgotten",
        "commit/batch_attempts.py",
        "slots.unconfirmed([row.token for row, _ in applied.leased if row.token is not None])",
        "pass",
        (f"{FAULTS}::test_leases_whose_delivery_failed_are_reported_to_the_worker",),
    ),
    Mutant(
        "an append in doubt is not looked up",
        "stores/batch/doubt.py",
        "            return Verdict.APPLIED if has_entry(tx, op.appends[-1]) else None\n",
        "            return None\n",
        ("conformance/test_run_streams.py::test_an_entry_is_stored_once[sqlite]",),
    ),
    Mutant(
        "a start whose commit was cut off is not found",
        "stores/batch/doubt.py",
        "        return _already_started(tx, op)\n",
        "        return None\n",
        ("conformance/test_start.py::test_a_start_whose_commit_was_cut_off_is_found_by_its_ids[sqlite]",),
    ),
    Mutant(
        "a start takes a run that another start began for its own",
        "stores/batch/doubt.py",
        "ours = {run.id for run in op.runs if found.get(run.id) == (run.type, run.input, run.created_at)}",
        "ours = set(found)",
        ("conformance/test_start.py::test_a_run_that_another_start_began_meanwhile_is_not_ours[sqlite]",),
    ),
    Mutant(
        "a settle whose commit was cut off is not found",
        "stores/batch/doubt.py",
        "return bool(rows) and rows[0][0] != ExecutionState.EXECUTING and rows[0][1] != Outcome.RECOVERED",
        "return False",
        ("conformance/test_settle.py::test_a_settle_that_went_through_unseen_is_found[sqlite-straight]",),
    ),
    Mutant(
        "a session that PostgreSQL ended is an AssertionError",
        "stores/postgres/prepared.py",
        """\
                if self._between:  # the server has ended the session, and said why in the answer before
                    raise self._session.lost()
""",
        """\
                assert not self._between
""",
        ("unit/test_prepared.py::test_an_answer_that_never_comes_is_a_lost_connection[]",),
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_caught(mutant: Mutant, tmp_path: Path) -> None:
    expect_caught(mutant, tmp_path)


def test_without_mutants_these_tests_pass(tmp_path: Path) -> None:
    expect_passing(MUTANTS, tmp_path)
