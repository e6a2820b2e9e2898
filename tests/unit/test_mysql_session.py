"""Which statements travel together to MariaDB, and what becomes of them when one fails."""

from types import SimpleNamespace
from typing import Any

import pymysql
import pytest
from pymysql.protocol import MysqlPacket

from detent.stores.mysql.connection import LOST, MySqlConnection
from detent.stores.mysql.results import Result
from detent.stores.mysql.session import Session


class Server:
    """Takes packets; a statement that contains `bad` fails."""

    largest: int | None = 4000

    def __init__(self) -> None:
        self.packets: list[list[str]] = []

    def execute_all(self, statements: list[str]) -> list[Any]:
        self.packets.append(statements)
        if any("bad" in statement for statement in statements):
            raise pymysql.err.OperationalError(1213, "deadlock")
        return [SimpleNamespace(rows=((number,),), affected_rows=1) for number in range(len(statements))]


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def session(server: Server) -> Session:
    return Session(server)


def test_the_commit_travels_with_the_statements_before_it(server: Server, session: Session) -> None:
    session.begin()
    asked = session.ask("SELECT 1", {})
    assert server.packets == []
    assert session.answer(asked) == [(1,)]
    session.defer("INSERT %(a)s", {"a": "it's"})
    session.defer("UPDATE", {})
    session.commit()
    assert server.packets == [["START TRANSACTION", "SELECT 1"], ["INSERT 'it''s'", "UPDATE", "COMMIT"]]


def test_a_transaction_without_statements_is_not_sent(server: Server, session: Session) -> None:
    session.begin()
    session.commit()
    assert server.packets == []


def test_outside_of_a_transaction_nothing_waits(server: Server, session: Session) -> None:
    session.defer("ONE", {})
    assert session.execute("TWO", {}).changed == 1
    assert server.packets == [["ONE"], ["TWO"]]


def test_what_waits_goes_with_the_transaction_that_fails(server: Server, session: Session) -> None:
    session.begin()
    session.defer("bad", {})
    with pytest.raises(pymysql.err.OperationalError):
        session.commit()
    session.forget()
    session.begin()
    session.defer("good", {})
    session.commit()
    assert server.packets[1:] == [["START TRANSACTION", "good", "COMMIT"]]


def test_a_packet_stays_below_what_the_server_takes(server: Server, session: Session) -> None:
    session.begin()
    for _ in range(3):
        session.defer("x" * 600, {})
    session.commit()
    assert [sum(map(len, packet)) <= 1000 for packet in server.packets] == [True] * 3
    assert [statement[:6] for packet in server.packets for statement in packet] == [
        "START ",
        *["xxxxxx"] * 3,
        "COMMIT",
    ]


def _connection(*answers: Any) -> Any:
    """A connection without a server; an answer is an error, or whether more follow."""
    connection: Any = MySqlConnection(defer_connect=True)
    connection.server_status = 512  # a backslash is a backslash
    left = list(answers)

    def answer() -> None:
        said = left.pop(0)
        if isinstance(said, Exception):
            raise said
        connection._result = SimpleNamespace(has_next=said)

    connection._execute_command = lambda command, packet: setattr(connection, "asking", True)
    connection._read_query_result = answer
    return connection


def test_a_packet_that_the_server_has_left_early_is_tried_again() -> None:
    """Its COMMIT, the last statement, was not executed."""
    connection = _connection(True, False)
    with pytest.raises(pymysql.err.OperationalError) as caught:
        connection.execute_all(["ONE", "TWO", "COMMIT"])
    assert (caught.value.args[0], connection.asking) == (1317, False)


def test_an_answer_to_something_else_is_a_lost_connection() -> None:
    """The server has ended the session, and the number of its last packet does not fit."""
    connection = _connection(True, pymysql.InternalError("Packet sequence number wrong - got 1 expected 5"))
    with pytest.raises(pymysql.err.OperationalError) as caught:
        connection.execute_all(["ONE", "TWO"])
    assert caught.value.args[0] == LOST


@pytest.mark.parametrize("answers", [[True, False], [pymysql.err.ProgrammingError(1064, "syntax error")]])
def test_several_statements_are_sent_only_where_two_were_answered(
    answers: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy may accept the option, and then refuse a second statement."""
    connection = _connection(*answers)
    connection._read_packet = lambda: None
    monkeypatch.setattr(MySqlConnection, "open", True)
    assert connection.allow_several() is (len(answers) == 2)
    assert not connection.asking


def test_an_interrupt_between_two_answers_leaves_the_connection_unusable() -> None:
    connection = _connection(True)
    interrupted = KeyboardInterrupt()
    connection._read_query_result = lambda: (_ for _ in ()).throw(interrupted)
    with pytest.raises(KeyboardInterrupt):
        connection.execute_all(["ONE", "TWO"])
    assert connection.asking


def test_a_lock_timeout_names_its_own_statement() -> None:
    connection = _connection(True, pymysql.err.OperationalError(1205, "Lock wait timeout exceeded"))
    with pytest.raises(pymysql.err.OperationalError) as caught:
        connection.execute_all(["SELECT FROM detent_workers", "SELECT FROM detent_runs", "COMMIT"])
    assert caught.value.statement == "SELECT FROM detent_runs"  # type: ignore[attr-defined]


def test_a_session_with_other_settings_gets_no_statement_with_our_quotes() -> None:
    connection = _connection(False)
    connection.server_status = 0
    with pytest.raises(pymysql.InterfaceError):
        connection.execute_all(["SELECT 'a'"])
    assert not connection.asking


@pytest.mark.parametrize("length", [b"\x02", b"\xfc\x02\0", b"\xfd\x02\0\0", b"\xfe\x02" + bytes(7)])
def test_a_length_of_any_width_is_read(length: bytes) -> None:
    """No server of the tests answers with a text that is long enough for the last one."""
    connection: Any = SimpleNamespace()
    result = Result(connection)
    result.converters = [("utf-8", None), ("ascii", int), (None, None)]
    packet = MysqlPacket(b"\xfb" + length + b"42" + length + b"\xff'", "utf-8")
    assert result._read_row_from_packet(packet) == (None, 42, b"\xff'")
