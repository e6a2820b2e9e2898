"""Mutants of durable functions: replay, forks, transactions, deadlines."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.mutant import Mutant, expect_caught, expect_passing

MUTANTS = [
    Mutant(
        "recorded answers are delivered at once",
        "execution/order.py",
        "await (self._until_new() if answer is None else self._turn_of(key))",
        "await asyncio.sleep(0)",
        ("functions/test_recorded_order.py::test_the_winner_of_a_race_wins_every_replay[sqlite-second]",),
    ),
    Mutant(
        "a recorded step answers a call with other arguments",
        "execution/drift_checks.py",
        "if text == entry.input or text is None",
        "if True or text == entry.input or text is None",
        (
            "functions/test_replay_drift.py::test_a_recorded_call_answers_only_the_same_arguments[sqlite-def-step]",
        ),
    ),
    Mutant(
        "a cancellation by the workflow is not recorded",
        "execution/workflow_frames.py",
        "        return self._mark(cancel_key(call.key), CANCEL,",
        "        return self._mark(cancel_key(call.key) + '?', CANCEL,",
        (
            "functions/test_recorded_order.py"
            "::test_a_step_cancelled_by_a_timeout_is_not_executed_again[sqlite-the only line of calls]",
        ),
    ),
    Mutant(
        "strict code runs a renamed step twice",
        "execution/drift_checks.py",
        """\
            if skipped:
                raise""",
        """\
            if False:
                raise""",
        (
            "functions/test_replay_drift.py::test_a_renamed_step_is_noticed_by_strict_code_before_it_runs_twice[sqlite-def]",
        ),
    ),
    Mutant(
        "steps that the code no longer asks for are not reported",
        "execution/main.py",
        """\
        if unasked:
""",
        """\
        if False:
""",
        ("functions/test_replay_drift.py::test_a_renamed_step_is_reported_when_the_run_ends[sqlite]",),
    ),
    Mutant(
        "a fork orders the journal by time",
        "kernel/fork.py",
        "return [step for _, _, step in sorted(ordered, key=lambda item: item[:2])]",
        "return sorted(steps, key=_moment)",
        ("functions/test_forking.py::test_a_fork_keeps_the_steps_of_a_worker_whose_clock_was_ahead[sqlite]",),
    ),
    Mutant(
        "a fork keeps compensated steps as done",
        "kernel/fork.py",
        'if step.kind == "undo" and step.key.startswith(_UNDO) and step.state == StepState.COMPLETED',
        "if False",
        ("functions/test_forking.py::test_a_fork_runs_compensated_steps_again[sqlite-ship]",),
    ),
    Mutant(
        "a compensation of a canceled run is tried once",
        "stores/batch/apply.py",
        """\
        if op.reopen:
            changes.reopen(step)
        elif op.once:
""",
        """\
        if op.once:
""",
        (
            "conformance/test_records.py::test_a_failure_that_is_tried_again_gives_way_to_the_next_try[sqlite]",
        ),
    ),
    Mutant(
        "a resume forgets failures that the workflow caught",
        "kernel/control.py",
        "last_own = [step for step in own if behind(step)] or own",
        "last_own = own",
        ("unit/test_kernel_control.py::test_a_caught_failure_with_the_text_of_the_last_one_stays",),
    ),
    Mutant(
        "a receive that timed out is not recorded",
        "execution/waits.py",
        """\
            yield from frame.record(
                frame.entry(key, "receive", name, StepState.FAILED, error=encode_error(late), **facts)
            )
""",
        "",
        ("functions/test_waits.py::test_a_receive_that_timed_out_stays_so[sqlite]",),
        hangs=True,
    ),
    Mutant(
        "a child starts without its parent's record",
        "stores/batch/apply.py",
        """\
    if op.children is not None:
        _begin(op.children,""",
        """\
    if False:
        _begin(op.children,""",
        ("conformance/test_records.py::test_a_child_starts_with_its_parents_record[sqlite]",),
    ),
    Mutant(
        "a child takes the id of another run",
        "stores/batch/conflicts.py",
        "if found is not None and (found.parent, found.parent_key) != (run.parent, run.parent_key):",
        "if False:",
        (
            "functions/test_child_options.py"
            "::test_an_id_of_another_run_is_refused_alike_in_every_replay[sqlite-the same input-def]",
        ),
    ),
    Mutant(
        "something new begins in a canceled run",
        "stores/batch/apply.py",
        "    if state == RunState.CANCELED and not _may_end(op):",
        "    if False:",
        ("conformance/test_records.py::test_nothing_new_begins_in_a_canceled_run[sqlite]",),
    ),
    Mutant(
        "a published value is dropped",
        "execution/publish.py",
        "    services.committer.post(record, forever=True)",
        "    del record",
        ("functions/test_publishing.py::test_a_failed_step_has_published_what_it_published[sqlite]",),
    ),
    Mutant(
        "a step begins after its deadline",
        "execution/deadlines.py",
        "return claimed.deadline is not None and services.clock.now() >= claimed.deadline",
        "return False",
        ("functions/test_deadlines.py::test_a_deadline_that_has_passed_lets_no_step_begin[sqlite]",),
    ),
    Mutant(
        "a step that swallows its timeout has succeeded",
        "execution/bodies.py",
        """\
    await _ended(task, cleanup)
    if not task.done():
""",
        """\
    await _ended(task, cleanup)
    if task.done():
        return task.result()
    if not task.done():
""",
        ("functions/test_reporting.py::test_a_step_that_swallows_its_cancellation_has_timed_out[sqlite]",),
    ),
    Mutant(
        "a transactional body is repeated on an error of another database",
        "execution/bodies.py",
        "    if lost and not tx.ended and (error is tx.refusal or driver.broke(tx.connection, error)):",
        "    if lost and not tx.ended:",
        (
            "functions/test_transactional_faults.py::test_a_lost_connection_to_another_database_is_an_error_of_the_step[sqlite]",
        ),
        hangs=True,
    ),
    Mutant(
        "a transactional step commits beside the record of another try",
        "stores/batch/apply.py",
        "        elif op.once:",
        "        elif False:",
        (
            "functions/test_late_commits.py::test_a_commit_that_arrives_during_the_next_try_writes_once[sent-mysql]",
        ),
    ),
    Mutant(
        "a late commit is not noticed by a try that fails",
        "execution/bodies.py",
        "        return self.lost or (self.finishing and trouble is not Trouble.RETRY)",
        "        return trouble is Trouble.GONE",
        (
            "functions/test_late_commits.py"
            "::test_the_value_of_a_late_commit_is_what_the_workflow_sees[the next try fails-mysql]",
        ),
    ),
    Mutant(
        "a step that has ended its transaction is recorded as done",
        "execution/bodies.py",
        """\
        tx.check()
        operation = body.finish(value)
""",
        """\
        operation = body.finish(value)
""",
        (
            "functions/test_ended_transactions.py"
            "::test_a_step_that_ends_its_transaction_is_not_recorded_and_not_retried[sqlite-execute commit]",
        ),
    ),
    Mutant(
        "a step that has ended its transaction and raised is repeated",
        "execution/bodies.py",
        "    if not isinstance(error, TransactionEnded) and _was_ended(tx):",
        "    if False:",
        (
            "functions/test_ended_transactions.py"
            "::test_an_exception_after_the_end_of_the_transaction_is_not_retried"
            "[sqlite-called-execute commit]",
        ),
    ),
    Mutant(
        "a transaction whose answer was lost is repeated",
        "execution/bodies.py",
        "if tries.may_be_recorded(trouble) and tries.was_recorded():",
        "if False:",
        (
            "functions/test_transactional_faults.py::test_a_transaction_whose_answer_was_lost_is_not_repeated[sqlite]",
        ),
    ),
    Mutant(
        "the transaction of a worker that was declared dead is committed",
        "execution/bodies.py",
        """\
        if verdict is not Verdict.APPLIED:
            raise Abandoned
""",
        "",
        (
            "functions/test_transactions.py::test_a_worker_thought_dead_cannot_commit_its_transaction[called-postgres]",
        ),
    ),
    Mutant(
        "the transaction of a canceled run is committed",
        "execution/bodies.py",
        "            raise Canceled  # what is recorded",
        "            pass  # what is recorded",
        (
            "graphs/test_transactional_nodes.py::test_a_transactional_node_of_a_canceled_run_writes_nothing[sqlite-def]",
        ),
    ),
    Mutant(
        "an error in the error hook escapes",
        "execution/services.py",
        """\
            except (Exception, SystemExit):
                log.exception("the on_error""",
        """\
            except ZeroDivisionError:
                log.exception("the on_error""",
        ("functions/test_reporting.py::test_an_error_in_the_hook_breaks_nothing[sqlite-ValueError]",),
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_caught(mutant: Mutant, tmp_path: Path) -> None:
    expect_caught(mutant, tmp_path)


def test_without_mutants_these_tests_pass(tmp_path: Path) -> None:
    expect_passing(MUTANTS, tmp_path)
