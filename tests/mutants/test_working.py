"""Mutants of claims, leases, settles and waits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.mutant import Mutant, expect_caught, expect_passing

MUTANTS = [
    Mutant(
        "claims ignore the versions of pinned runs",
        "stores/sql/dialect.py",
        'return f"({alias}.pin IS NULL OR {alias}.pin = :version)"',
        'return f"({alias}.pin IS NULL OR {alias}.pin <> :version OR {alias}.pin = :version)"',
        ("functions/test_versions.py::test_only_workers_of_its_version_continue_a_pinned_run[sqlite]",),
    ),
    Mutant(
        "a dedup window never ends",
        "kernel/start_keys.py",
        "return bool(holder.run_id) and now < holder.until",
        "return bool(holder.run_id)",
        ("functions/test_keyed_starts.py::test_a_window_ends_at_its_end",),
    ),
    Mutant(
        "a debounced start changes a run that has begun",
        "stores/verbs/start_keys.py",
        "return all(state != ExecutionState.EXECUTING and deliveries == 0 for state, deliveries in rows)",
        "return bool(rows)",
        ("functions/test_keyed_starts.py::test_a_start_after_the_run_has_begun_is_another_run[sqlite]",),
    ),
    Mutant(
        "a stale token settles",
        "stores/batch/apply.py",
        """\
    if delivery not in seen.held:
        return Settled(verdict=Verdict.STALE)
    if _replaced(""",
        "    if _replaced(",
        (
            "conformance/test_settle.py::test_a_settle_after_the_work_was_given_away_is_stale[sqlite-straight]",
        ),
    ),
    Mutant(
        "a stale token ends a function in PostgreSQL's single statement",
        "stores/postgres/dialect.py",
        "AND t.token = run.token AND run.was",
        "AND run.was",
        (
            "conformance/test_settle.py"
            "::test_one_lost_lease_among_many_ends_is_answered_as_stale[postgres-straight]",
        ),
    ),
    Mutant(
        "a canceled run finishes in PostgreSQL's single statement",
        "stores/postgres/dialect.py",
        "AND run.was = 'ready' AND run.watched < 2",
        "AND run.watched < 2",
        (
            "conformance/test_settle.py"
            "::test_what_executes_when_its_run_is_canceled_ends_as_canceled[postgres-straight]",
        ),
    ),
    Mutant(
        "the end of a run that another process waits for is not told",
        "stores/postgres/dialect.py",
        "CASE ended.watched WHEN 1 THEN",
        "CASE ended.watched WHEN 2 THEN",
        ("conformance/test_wakeups.py::test_the_end_of_a_watched_run_is_told[postgres-straight]",),
    ),
    Mutant(
        "two settles of one execution in one batch both count",
        "stores/batch/apply.py",
        "seen.held.discard(delivery)  # a second settle",
        "# a second settle",
        ("conformance/test_settle.py::test_of_two_settles_in_one_batch_one_is_stale[sqlite-straight]",),
    ),
    Mutant(
        "a start in one statement is leased to a dead worker",
        "stores/postgres/dialect.py",
        """\
 WHERE CAST(:worker AS text) = '' OR EXISTS (SELECT 1 FROM alive)),
""",
        """\
),
""",
        ("conformance/test_start.py::test_a_leased_start_of_a_dead_worker_is_ready_for_others[postgres]",),
    ),
    Mutant(
        "a start in one statement forgets what it does not write",
        "stores/batch/fast_paths.py",
        """\
    if run != plain:
        return False
""",
        "",
        ("conformance/test_start.py::test_a_start_with_more_to_write_goes_the_long_way[a deadline]",),
    ),
    Mutant(
        "a start in one statement does not call the worker",
        "stores/store.py",
        "return batches.Applied(answers, made_ready=way.made_ready, leased=leased)",
        "return batches.Applied(answers, leased=leased)",
        ("conformance/test_start.py::test_a_start_that_waits_for_a_worker_says_so[postgres]",),
    ),
    Mutant(
        "a worker that was declared dead records a step",
        "stores/batch/apply.py",
        """\
    if op.worker not in seen.alive:
        return Verdict.STALE
""",
        "",
        (
            "conformance/test_records.py::test_a_record_of_a_worker_that_was_reaped_is_stale_and_changes_nothing[sqlite]",
        ),
    ),
    Mutant(
        "a worker that was declared dead claims",
        "stores/verbs/claims.py",
        """\
    if not liveness():
        return []
""",
        """\
    liveness()
""",
        ("conformance/test_claims.py::test_a_worker_that_is_not_alive_gets_nothing[sqlite]",),
    ),
    Mutant(
        "a worker that was declared dead claims in one statement",
        "stores/sql/claims.py",
        "   AND EXISTS (SELECT 1 FROM alive)",
        "   AND 1 = 1",
        (
            "conformance/test_claims_at_once.py::test_a_claim_at_once_keeps_what_claims_promise[a_worker_that_is_not_alive_gets_nothing-postgres]",
        ),
    ),
    Mutant(
        "a claim is not counted",
        "stores/sql/claims.py",
        "token = x.token, deliveries = t.deliveries + 1",
        "token = x.token, deliveries = t.deliveries",
        ("conformance/test_claims.py::test_a_claim_tells_all_that_the_worker_needs[sqlite]",),
    ),
    Mutant(
        "a recovery is not counted",
        "kernel/settle.py",
        "recoveries=execution.recoveries + 1 if orphaned else 0",
        "recoveries=0",
        ("unit/test_kernel_settle.py::test_an_orphan_runs_again_and_is_counted",),
    ),
    Mutant(
        "one recovery more than allowed",
        "kernel/settle.py",
        "    if execution.recoveries >= max_recoveries and execution.run_state != RunState.PAUSED:",
        "    if execution.recoveries > max_recoveries and execution.run_state != RunState.PAUSED:",
        ("unit/test_kernel_settle.py::test_what_died_too_often_pauses_its_run_with_the_reason",),
    ),
    Mutant(
        "priority is ignored",
        "stores/sql/claims.py",
        "ORDER BY e.precedence, e.scheduled_for, e.run_id",
        "ORDER BY e.scheduled_for, e.run_id",
        ("conformance/test_claims.py::test_the_order_is_priority_then_time_then_id[sqlite]",),
    ),
    Mutant(
        "a scheduled execution begins early",
        "kernel/settle.py",
        "return ExecutionState.READY if due <= now else ExecutionState.TIMER",
        "return ExecutionState.READY",
        (
            "unit/test_kernel_settle.py::test_a_reattempt_is_the_same_execution_one_attempt_later[reattempted]",
        ),
    ),
    Mutant(
        "a timer from a clock that is behind is never found",
        "stores/verbs/claims.py",
        "floor = 0 if whole else claim_cursor.timers",
        "floor = claim_cursor.timers",
        (
            "conformance/test_claim_cursors.py::test_a_timer_from_a_machine_whose_clock_is_behind_is_found_by_looking_over_everything[sqlite]",
        ),
    ),
    Mutant(
        "the claim claim_cursor moves on by a claim that was rolled back",
        "stores/claim_cursor.py",
        """\
        self._steps, self._step = [], 0

    def claimed""",
        """\
        pass

    def claimed""",
        ("unit/test_claim_cursor.py::test_a_claim_that_was_rolled_back_leaves_no_place",),
    ),
    Mutant(
        "the lease is not renewed",
        "worker/heartbeat.py",
        "alive = self._store.renew(self._worker.id, lease=self._lease, now=_wall())",
        "alive = True",
        (
            "conformance/test_wakeups.py::test_a_heartbeat_whose_sign_of_life_was_cut_off_shows_itself_again_by_its_next_beat[sqlite]",
        ),
    ),
    Mutant(
        "a worker is declared dead in spite of a renewed lease",
        "stores/verbs/claims.py",
        "if not found_alive or unless_renewed not in (None, found_alive[0][1]):",
        "if not found_alive:",
        ("conformance/test_wakeups.py::test_nobody_is_dead_who_renewed_the_lease_after_the_look[sqlite]",),
    ),
    Mutant(
        "a worker is declared dead at the first look",
        "worker/heartbeat.py",
        "SUSPECTED = 1.5 * BEAT",
        "SUSPECTED = 0.0",
        (
            "conformance/test_wakeups.py::test_a_worker_that_shows_no_sign_of_life_for_a_while_is_dead[sqlite]",
        ),
    ),
    Mutant(
        "a lost lock is not taken again",
        "worker/heartbeat.py",
        """\
            if self._liveness.take(self._worker) and not self._renew():
                return
        if time""",
        """\
            pass
        if time""",
        (
            "conformance/test_wakeups.py::test_a_lock_that_its_session_lost_is_taken_again_by_the_next_heartbeat[postgres]",
            "conformance/test_wakeups.py::test_a_lock_that_its_session_lost_is_taken_again_by_the_next_heartbeat[mysql]",
        ),
    ),
    Mutant(
        "the end of a lock session is noticed only by the next heartbeat",
        "stores/session_locks.py",
        "if self._mine is not None and self._ended():",
        "if False:",
        (
            "conformance/test_wakeups.py::test_the_end_of_a_lock_session_wakes_its_heartbeat[postgres]",
            "conformance/test_wakeups.py::test_the_end_of_a_lock_session_wakes_its_heartbeat[mysql]",
        ),
        hangs=True,
    ),
    Mutant(
        "a worker that was declared dead does not begin anew",
        "worker/heartbeat.py",
        """\
        if not mine:
            self._lost()
            return
""",
        """\
        if not mine:
            return
""",
        ("functions/test_machinery.py::test_a_worker_that_was_reaped_begins_anew[sqlite]",),
        hangs=True,
    ),
    Mutant(
        "leases that nobody executes are not handed back",
        "worker/worker.py",
        "stray = held - known - self._known()",
        "stray = set[str]()",
        ("functions/test_unconfirmed.py::test_a_lease_that_nobody_here_knows_is_handed_back[sqlite-sync]",),
        hangs=True,
    ),
    Mutant(
        "what could not begin is forgotten",
        "worker/worker.py",
        """\
            for item in left.values():
                self._undelivered(item)
""",
        """\
            left.clear()
""",
        ("functions/test_unconfirmed.py::test_what_cannot_begin_is_handed_back[sqlite-async]",),
        hangs=True,
    ),
    Mutant(
        "runs are not locked while events are counted",
        "stores/sql/statements.py",
        ' ORDER BY r.id {d.bytewise}\n {d.lock("r")}""",',
        '""",',
        (
            "conformance/test_park_and_wake.py::test_a_message_sent_while_its_receiver_parks_is_not_lost[postgres]",
        ),
    ),
    Mutant(
        "a run sleeps although what it awaits has happened",
        "stores/batch/readiness.py",
        '        if all((item.run_id, item.topic) in pending for item in row["awaits"]):',
        "        if True:",
        (
            "conformance/test_park_and_wake.py::test_a_run_that_awaits_what_has_happened_is_ready_at_once[sqlite]",
        ),
    ),
    Mutant(
        "the end of a child does not wake its parent",
        "stores/batch/apply.py",
        """\
        changes.settled[op.parent, topic_of("child", run_id)] += 1
""",
        """\
        pass
""",
        (
            "conformance/test_park_and_wake.py::test_a_run_that_awaits_its_child_wakes_when_that_ends[sqlite-success]",
        ),
    ),
    Mutant(
        "a message wakes nobody",
        "stores/batch/apply.py",
        """\
    changes.settled[run_id, topic_of("message", op.name)] += 1
""",
        "",
        ("conformance/test_messages.py::test_a_message_wakes_who_awaits_it_and_nobody_else[sqlite]",),
    ),
    Mutant(
        "a message is delivered twice",
        "stores/batch/apply.py",
        """\
    changes.consumed += [{"seq": seq} for seq in op.consume]
""",
        "",
        (
            "conformance/test_messages.py::test_the_same_message_after_it_was_received_is_not_received_again[sqlite]",
        ),
    ),
    Mutant(
        "a park in a paused run is not held",
        "stores/batch/apply.py",
        "    waiting = ExecutionState.HELD if state == RunState.PAUSED else waiting_state(due, op.now)",
        "    waiting = waiting_state(due, op.now)",
        (
            "conformance/test_park_and_wake.py::test_a_park_in_a_paused_run_is_held_and_keeps_its_time[sqlite]",
        ),
    ),
    Mutant(
        "what is handed back in a paused run begins again",
        "stores/verbs/claims.py",
        "ExecutionState.HELD if states[c.run_id] == RunState.PAUSED else ExecutionState.READY",
        "ExecutionState.READY",
        ("conformance/test_claims.py::test_what_is_handed_back_while_its_run_is_paused_is_held[sqlite]",),
    ),
    Mutant(
        "a retry in a paused run is not held",
        "kernel/settle.py",
        "            again = msgspec.structs.replace(again, state=ExecutionState.HELD)",
        "            pass",
        ("unit/test_kernel_settle.py::test_what_follows_in_a_paused_run_is_held",),
    ),
    Mutant(
        "a canceled run goes on",
        "kernel/settle.py",
        """\
    if run_state == RunState.CANCELED:
        return SettlePlan(
""",
        """\
    if False:
        return SettlePlan(
""",
        ("unit/test_kernel_settle.py::test_nothing_follows_in_a_canceled_run[success]",),
    ),
    Mutant(
        "a chosen id may mean other work",
        "stores/batch/conflicts.py",
        "if found is not None and (found.type, found.input) != (run.type, run.input):",
        "if False:",
        ("conformance/test_start.py::test_a_chosen_id_with_another_input_is_a_conflict[sqlite]",),
    ),
    Mutant(
        "nobody says which run of a hero is in the way",
        "stores/batch/doubt.py",
        "        if run.exclusive and run.id not in known:",
        "        if False:",
        ("conformance/test_start.py::test_a_hero_has_one_active_run_of_a_type[sqlite]",),
    ),
    Mutant(
        "a deadline that passes in the queue is ignored",
        "stores/verbs/deadlines.py",
        """\
    if not due:
        return list
    states""",
        """\
    return list
    states""",
        (
            "conformance/test_deadlines.py::test_a_waiting_run_is_claimed_at_its_deadline_and_once[sqlite-ready]",
        ),
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_caught(mutant: Mutant, tmp_path: Path) -> None:
    expect_caught(mutant, tmp_path)


def test_without_mutants_these_tests_pass(tmp_path: Path) -> None:
    expect_passing(MUTANTS, tmp_path)
