"""Several statements in one packet, and values in the text of statements, on MariaDB itself."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import pymysql
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from detent.kernel.operations import Operation, Record, Settle, Verdict
from detent.stores.batch.fast_paths import Unexpected, quick_batch
from detent.stores.driver import Trouble, Tx, batch, named_to_pyformat
from detent.stores.mysql import quick_batches
from detent.stores.mysql.connection import MySqlConnection
from detent.stores.mysql.dialect import MySqlDialect
from detent.stores.mysql.driver import MySqlDriver
from detent.stores.mysql.literals import MOST_CASES, PRIMARY, Select, Update, _form, write
from detent.stores.mysql.results import Result
from detent.stores.sql.dialect import kind_of
from detent.stores.sql.graphs import KEYS, ON_KEY
from detent.stores.store import Store
from detent.stores.verbs import claims
from tests.conformance.builders import (
    NOW,
    Attempt,
    claim,
    enlist,
    everything,
    executing,
    execution,
    is_seen_waiting,
    new_step,
    one,
    recording,
    settling,
    start,
)

pytestmark = pytest.mark.parametrize("module_url", ["mysql"], indirect=True)
NOTE = "INSERT INTO detent_history (run_id, happened_at, event, detail) VALUES (%(run)s, 1, 'e', '1')"


def notes(store: Store) -> list[str]:
    with store._reading() as tx:
        return [run for (run,) in tx.query("SELECT run_id FROM detent_history ORDER BY seq")]


def without_join(kind: type, statements: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """The statements that lose their join, by name."""
    for name in statements.__struct_fields__:
        value = getattr(statements, name)
        if isinstance(value, str):
            if isinstance(_form(value), kind):
                yield prefix + name, value
        elif not isinstance(value, int):
            yield from without_join(kind, value, f"{prefix}{name}.")


UPDATES = dict(without_join(Update, MySqlDriver.statements))
SELECTS = dict(without_join(Select, MySqlDriver.statements))


def writing(middle: Callable[[Tx], None]) -> Callable[[Tx], None]:
    """A transaction that is one packet, with something in its middle."""

    def verb(tx: Tx) -> None:
        tx.send(NOTE, run="before")
        middle(tx)
        tx.send(NOTE, run="after")

    return verb


def test_a_transaction_whose_answers_are_not_needed_is_one_round_trip(store: Store) -> None:
    store._writer.perform(writing(lambda tx: None))
    session: Any = store.driver.deferring(store._writer._connection)
    before = session.asked
    store._writer.perform(writing(lambda tx: None))
    assert (session.asked - before, notes(store)) == (1, ["before", "after"] * 2)


@pytest.mark.parametrize(
    ("statement", "trouble"),
    [
        ("SELECT * FROM detent_nothing", Trouble.OTHER),
        ("INSERT INTO detent_workers SELECT * FROM detent_workers", Trouble.UNIQUE),
        ("SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213", Trouble.RETRY),
        ("SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1317", Trouble.RETRY),
        ("SIGNAL SQLSTATE '08S01' SET MYSQL_ERRNO = 1053", Trouble.GONE),
        ("KILL CONNECTION_ID()", Trouble.GONE),
    ],
    ids=["wrong", "unique", "deadlock", "interrupted", "shutdown", "killed"],
)
def test_a_fault_in_the_middle_of_a_packet_leaves_nothing_behind(
    store: Store, statement: str, trouble: Trouble
) -> None:
    """What was before it is rolled back, and what comes behind it is not executed: neither is the COMMIT."""
    enlist(store, "w1")
    with pytest.raises(pymysql.MySQLError) as caught:
        store._writer.perform(writing(lambda tx: tx.send(statement)))
    assert store.driver.trouble(caught.value) is trouble
    assert notes(store) == []
    store._writer.perform(writing(lambda tx: None))
    assert notes(store) == ["before", "after"]


def test_what_was_not_sent_before_a_rollback_is_never_sent(store: Store) -> None:
    """The next statement, which has no transaction around it, would commit it."""

    def failing(tx: Tx) -> None:
        tx.send(NOTE, run="never")
        raise ValueError("in our own code")

    with pytest.raises(ValueError, match="in our own code"):
        store._writer.perform(failing)
    store._writer.perform(lambda tx: tx.run(NOTE, run="alone"), alone=True)
    assert notes(store) == ["alone"]


@pytest.mark.parametrize(("table", "blocked"), [("detent_runs", True), ("detent_workers", False)])
def test_a_lock_that_is_not_had_in_the_middle_is_told_by_its_own_statement(
    store: Store, rival: Store, table: str, blocked: bool
) -> None:
    executing(store)
    locking = f"SELECT id FROM {table} FOR UPDATE"
    with rival._writer.transaction() as tx:
        tx.query(locking)
        with pytest.raises(pymysql.MySQLError) as caught:
            store._splits.perform(writing(lambda tx: tx.send(locking)))
    assert store.driver.trouble(caught.value) is Trouble.RETRY
    assert store.driver.blocked(caught.value) is blocked
    assert "before" not in notes(store)


def test_a_session_that_is_killed_while_its_packet_waits_writes_nothing(store: Store, rival: Store) -> None:
    executing(store)
    locking = "SELECT id FROM detent_runs FOR UPDATE"
    session = store._writer._open().thread_id()
    with rival._writer.transaction() as tx:
        tx.query(locking)
        attempt = Attempt(lambda: store._writer.perform(writing(lambda tx: tx.send(locking))))
        is_seen_waiting(attempt, rival)
        tx.run(f"KILL {session}")
        with pytest.raises(pymysql.MySQLError) as caught:
            attempt.result()
    assert store.driver.trouble(caught.value) is Trouble.GONE
    assert not {"before", "after"} & set(notes(store))


@pytest.mark.parametrize("rows", [1, 2])
def test_an_update_without_a_join_waits_for_what_another_transaction_changes(
    store: Store, rival: Store, rows: int
) -> None:
    """It must not judge a locked row by what was committed before: that row is about to match."""
    executing(store)
    keys = batch([{"run_id": f"run{n or ''}", "node": "main", "attempt": 1} for n in range(rows)])
    update = named_to_pyformat(
        MySqlDialect().update(
            "detent_executions", KEYS, "state = 'ready'", f"{ON_KEY} AND t.state = 'parked'"
        )
    )
    with rival._writer.transaction() as tx:
        tx.run("UPDATE detent_executions SET state = 'parked'")
        attempt = Attempt(lambda: store._writer.perform(lambda tx: tx.run(update, rows=keys)))
        is_seen_waiting(attempt, rival)
    assert "JSON_TABLE" not in write(update, {"rows": keys})
    assert (attempt.result(), execution(store).state) == (1, "ready")


def batches(form: Update | Select) -> Iterator[list[dict[str, Any]]]:
    """One row, two that differ by each key in turn, and as many as a statement takes."""
    columns = {name for _, name in form.keys}
    if isinstance(form, Update):
        columns |= set(re.findall(r"\bx\.(\w+)", form.rest + form.changes))
    row = {name: 1 if kind_of(name) == "int" else "a" for name in columns}
    yield [row]
    for _, key in form.keys:
        yield [row, {**row, key: 2 if kind_of(key) == "int" else "b"}]
    first = form.keys[0][1]
    yield [{**row, first: f"{number:03}"} for number in range(MOST_CASES)]


def length_of_key(tx: Tx, table: str) -> int:
    """The bytes of a primary key, as EXPLAIN tells how much of it is used."""
    [(length,)] = tx.query(
        "SELECT SUM(COALESCE(c.character_octet_length + 2, 4)) FROM information_schema.columns AS c"
        " WHERE c.table_schema = DATABASE() AND c.table_name = %(table)s AND c.column_key = 'PRI'",
        table=table,
    )
    return int(length)


@pytest.mark.parametrize("name", UPDATES)
def test_an_update_without_a_join_reads_only_its_own_rows_by_their_whole_key(store: Store, name: str) -> None:
    """InnoDB locks what it reads, and reads semi-consistently what is not given by its whole key."""
    one(store, start("a", "b", "c"))
    statement = UPDATES[name]
    form = _form(statement)
    assert isinstance(form, Update)
    with store._reading() as tx:
        length = length_of_key(tx, form.table)
        for rows in batches(form):
            text = write(statement, {"rows": batch(rows), "worker": "w1", "now": NOW})
            assert "JSON_TABLE" not in text
            [plan] = tx.query(f"EXPLAIN {text}")
            assert plan[2:6] == ("t", "range", "PRIMARY", "PRIMARY")
            assert (int(plan[6]), int(plan[8]) <= len(rows)) == (length, True)


@pytest.mark.parametrize("name", SELECTS)
def test_a_select_by_keys_reads_only_its_own_rows_by_their_whole_key(store: Store, name: str) -> None:
    one(store, start("a", "b", "c", *(f"{number:03}" for number in range(MOST_CASES))))
    statement = SELECTS[name]
    form = _form(statement)
    assert isinstance(form, Select)
    with store._reading() as tx:
        length = length_of_key(tx, form.head.split(" FROM ")[1].split()[0])
        for rows in batches(form):
            text = write(statement, {"rows": batch(rows)})
            assert "JSON_TABLE" not in text
            plan = tx.query(f"EXPLAIN {text}")[0]
            if plan[2] is not None:  # None: the server has looked already, and there is no such row
                assert plan[3] in ("const", "range")
                assert (plan[5], int(plan[6])) == ("PRIMARY", length)
                assert int(plan[8]) <= len(rows)


def test_a_select_by_keys_waits_for_what_another_transaction_changes(store: Store, rival: Store) -> None:
    executing(store)
    keys = batch([{"run_id": run, "node": "main", "attempt": 1} for run in ("other", "run")])
    lock = store.driver.statements.lock_executions
    with rival._writer.transaction() as tx:
        tx.run("UPDATE detent_executions SET token = 'another'")
        attempt = Attempt(lambda: store._writer.perform(lambda tx: tx.query(lock, rows=keys)))
        is_seen_waiting(attempt, rival)
    assert attempt.result() == [("run", "main", 1, "another", "executing")]


LENGTHS = [0, 1, 250, 251, 252, 255, 256, 65_535, 65_536, 1 << 23]


def test_values_of_every_length_are_read_as_pymysql_reads_them(store: Store) -> None:
    texts = ", ".join(f"REPEAT('a', {length}), NULL" for length in LENGTHS)
    statement = f"SELECT {texts}, 'é漢😀', -5, 18446744073709551615, 1.50, 2e0, NOW(), X'00ff'"
    connection = store._writer._open()
    with closing(store.driver.connect()) as plain, plain.cursor() as cursor:
        cursor.execute("SET SESSION max_statement_time = 0, timestamp = 1700000000")
        cursor.execute(statement)
        expected = list(cursor.fetchall())
    connection.execute_all(["SET SESSION timestamp = 1700000000"])
    [result] = connection.execute_all([statement])
    assert isinstance(result, Result)
    connection.execute_all(["SET SESSION timestamp = DEFAULT"])
    assert list(result.rows) == expected
    assert [len(text) for text in result.rows[0][: 2 * len(LENGTHS) : 2]] == LENGTHS


def test_the_keys_of_tables_are_those_of_the_schema(store: Store) -> None:
    with store._reading() as tx:
        rows = tx.query(
            "SELECT table_name, column_name FROM information_schema.key_column_usage"
            " WHERE table_schema = DATABASE() AND constraint_name = 'PRIMARY'"
        )
    for table, columns in PRIMARY.items():
        assert {column for found, column in rows if found == table} == columns


def test_users_connections_refuse_a_second_statement(store: Store) -> None:
    with pytest.raises(pymysql.err.ProgrammingError), store.transaction() as tx:
        tx.connection.cursor().execute("SELECT 1; SELECT 2")
    for connect in (store.driver.connect, store.driver.plain):  # type: ignore[attr-defined]
        with closing(connect()) as connection:
            assert store.driver.deferring(connection) is None
            with pytest.raises(pymysql.err.ProgrammingError):
                connection.query("SELECT 1; SELECT 2")


def test_what_cannot_be_encoded_is_not_sent(store: Store) -> None:
    with pytest.raises(UnicodeEncodeError):
        store._writer.perform(writing(lambda tx: tx.send(NOTE, run="\udc80'")))
    store._writer.perform(writing(lambda tx: None))
    assert notes(store) == ["before", "after"]


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None
)
@given(st.lists(st.text(st.sampled_from("'\\\";%\n\0 é漢😀-#") | st.characters(codec="utf-8")), min_size=1))
def test_every_text_comes_back_as_it_was(store: Store, texts: list[str]) -> None:
    def verb(tx: Tx) -> list[Any]:
        asked = [tx.ask("SELECT %(text)s, 'next'", text=text) for text in texts]
        return [row for answer in asked for row in answer()]

    assert store._writer.perform(verb) == [(text, "next") for text in texts]


def test_a_session_whose_settings_were_changed_is_given_up(store: Store) -> None:
    enlist(store, "w1")
    store._writer.perform(lambda tx: tx.query("SELECT 1"))
    store._writer._connection.query("SET SESSION sql_mode = ''")
    with pytest.raises(pymysql.InterfaceError) as caught:
        store._writer.perform(writing(lambda tx: None))
    assert store.driver.trouble(caught.value) is Trouble.GONE
    one(store, start("run"))


def test_a_server_that_takes_one_statement_at_a_time_is_served_so(
    another: Callable[[], Store], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MySQL is: it would not tell of a packet that it has left in the middle."""
    monkeypatch.setattr(MySqlConnection, "allow_several", lambda self: False)
    single = another()
    enlist(single, "w1")
    one(single, start("run"))
    [claimed] = claim(single, "w1")
    assert one(single, recording(claimed, new_step(state="completed"))) is Verdict.APPLIED
    assert one(single, settling(claimed)).verdict is Verdict.APPLIED
    assert single.driver.deferring(single._writer._connection) is None
    assert (single.run("run").state, len(single.journal(["run"])["run"])) == ("finished", 1)


def test_a_record_waits_while_its_worker_is_declared_dead_and_is_then_stale(
    store: Store, rival: Store
) -> None:
    claimed = executing(store)
    with rival._beats.transaction() as tx:
        claims.reap(tx, "w1", counted=True, max_recoveries=5, now=NOW)
        tx.query("SELECT 1")
        attempt = Attempt(lambda: one(store, recording(claimed, new_step(state="completed"))))
        is_seen_waiting(attempt, rival)
    assert attempt.result() is Verdict.STALE
    assert store.journal(["run"])["run"] == []


def test_a_final_record_is_not_replaced_by_the_same_step_of_another_try(store: Store) -> None:
    claimed = executing(store)
    first, second = (new_step(state="completed", result=result) for result in ('"first"', '"second"'))
    other = new_step(key="other", state="completed")
    assert one(store, recording(claimed, first)) is Verdict.APPLIED
    assert one(store, recording(claimed, second, other)) is Verdict.APPLIED
    assert {step.key: step.result for step in store.journal(["run"])["run"]} == {
        "charge": '"first"',
        "other": other.result,
    }


def test_a_record_of_a_dead_worker_is_stale(store: Store) -> None:
    claimed = executing(store)
    store.reap("w1", max_recoveries=5, now=NOW)
    steps = [new_step(key=key, state="completed") for key in ("one", "two")]
    assert one(store, recording(claimed, *steps)) is Verdict.STALE
    assert store.journal(["run"])["run"] == []


# Quick batches


def quickly(store: Store, operations: Sequence[Operation]) -> list[Any]:
    """Apply them by the statements of quick batches alone."""
    way = store.driver.quick(operations, helpers_wanted=False)
    assert way is not None
    return store._writer.perform(lambda tx: way.ask(tx)(), alone=way.alone)


def all_three(store: Store, runs: int = 1) -> list[Operation]:
    """As many starts, records and ends, each with its own result."""
    enlist(store, "w1")
    one(store, start(*(f"run{number:03}" for number in range(runs))))
    held = claim(store, "w1", limit=runs)
    operations: list[Operation] = [start(*(f"next{number:03}" for number in range(runs)), input='"it\'s"')]
    operations += [recording(row, new_step(row.run_id, result='"it\'s"')) for row in held]
    operations += [settling(row, waited=False, result=f'"{row.run_id}\'s"') for row in held]
    return operations


@pytest.mark.parametrize("what", ["worker", "paused", "watched", "token", "ended", "start", "gone"])
def test_a_quick_batch_one_part_of_which_does_not_hold_writes_nothing(store: Store, what: str) -> None:
    operations = all_three(store, 3)
    changes = {
        "worker": "DELETE FROM detent_workers",
        "paused": "UPDATE detent_runs SET state = 'paused' WHERE id = 'run001'",
        "watched": "UPDATE detent_runs SET watched = 3 WHERE id = 'run002'",
        "token": "UPDATE detent_executions SET token = 'other' WHERE run_id = 'run000'",
        "ended": "UPDATE detent_executions SET state = 'completed' WHERE run_id = 'run002'",
        "start": "UPDATE detent_runs SET id = 'next002' WHERE id = 'run001'",
        "gone": "DELETE FROM detent_executions WHERE run_id = 'run001'",
    }
    with store._writer.transaction() as tx:
        assert tx.run(changes[what]) == 1
    before = everything(store)
    with pytest.raises(Unexpected) as caught:
        quickly(store, operations)
    assert store.driver.trouble(caught.value) is Trouble.RETRY
    assert everything(store) == before


def test_an_end_waits_while_its_worker_is_declared_dead_and_is_then_stale(store: Store, rival: Store) -> None:
    claimed = executing(store)
    with rival._beats.transaction() as tx:
        claims.reap(tx, "w1", counted=True, max_recoveries=5, now=NOW)
        tx.query("SELECT 1")
        attempt = Attempt(lambda: one(store, settling(claimed, waited=False)))
        is_seen_waiting(attempt, rival)
    assert attempt.result().verdict is Verdict.STALE
    assert store.run("run").state == "ready"


def test_a_record_in_a_quick_batch_does_not_replace_one_that_is_final(store: Store) -> None:
    operations = all_three(store)
    [_, record, _] = operations
    assert isinstance(record, Record)
    step = record.steps[0]
    one(store, replace(record, steps=[replace(step, result='"first"')]))
    assert store.apply(operations).answers[1] is Verdict.APPLIED
    assert [found.result for found in store.journal(["run000"])["run000"]] == ['"first"']


def test_a_later_try_of_a_step_in_a_quick_batch_replaces_the_one_before(store: Store) -> None:
    operations = all_three(store)
    [_, record, _] = operations
    assert isinstance(record, Record)
    step = record.steps[0]
    one(store, replace(record, steps=[replace(step, state="failed_once", result=None)]))
    answers = quickly(store, [operations[0], replace(record, steps=[replace(step, attempt=2)])])
    assert answers[1] is Verdict.APPLIED
    assert [(found.attempt, found.result) for found in store.journal(["run000"])["run000"]] == [
        (2, '"it\'s"')
    ]


@pytest.mark.parametrize("largest", [8 * 2000, 8 * 20_000])
def test_a_quick_batch_is_sent_in_statements_that_the_server_takes(
    store: Store, largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    operations = all_three(store, 60)
    monkeypatch.setattr(store.driver, "largest", largest)
    sent: list[str] = []
    execute_all = MySqlConnection.execute_all

    def noted(self: MySqlConnection, statements: list[str]) -> list[Any]:
        sent.extend(statements)
        return execute_all(self, statements)

    monkeypatch.setattr(MySqlConnection, "execute_all", noted)
    assert None not in quickly(store, operations)
    assert len(sent) > 12
    assert max(map(len, sent)) < largest // 8 + 400  # what is before and behind the rows
    assert sent[-1] == "COMMIT"
    assert [store.run(f"run{number:03}").result for number in (0, 59)] == ['"run000\'s"', '"run059\'s"']
    assert store.run("next059").state == "ready"


@pytest.mark.parametrize("place", [0, 2])
def test_a_row_that_may_not_fit_into_one_statement_goes_the_long_way(
    store: Store, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    operations = all_three(store)
    monkeypatch.setattr(store.driver, "largest", 8 * 3000)
    if place == 0:
        operations[0] = start("next000", input=f'"{"a" * 3000}"')
    else:
        [claimed] = [row for row in store.executions("run000") if row.state == "executing"]
        end = operations[2]
        assert isinstance(end, Settle)
        plan = replace(end.plan, result=f'"{claimed.run_id}{"a" * 3000}"')
        assert plan.run is not None
        operations[2] = replace(end, plan=replace(plan, run=replace(plan.run, result=plan.result)))
    assert quickly(store, operations) == [None, None, None]
    assert store.apply(operations).answers[1] is Verdict.APPLIED
    assert (store.run("run000").state, store.run("next000").state) == ("finished", "ready")


@pytest.mark.parametrize("rows", [1, 2, MOST_CASES])
def test_the_statements_of_quick_batches_read_only_their_own_rows_by_their_whole_key(
    store: Store, rows: int
) -> None:
    """InnoDB locks what it reads."""
    batch = quick_batch(all_three(store, rows))
    assert batch is not None
    with store._reading() as tx:
        for text in quick_batches._statements(batch, "", 1 << 20):
            if (table := re.search(r"(\w+) (?:AS t )?FORCE INDEX", text)) is not None:
                [plan] = tx.query(f"EXPLAIN {text}")
                assert plan[3] in ("const", "range"), text
                assert (plan[5], int(plan[6])) == ("PRIMARY", length_of_key(tx, table[1]))
                assert int(plan[8]) <= rows
