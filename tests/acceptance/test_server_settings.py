"""A MariaDB with settings that other applications asked for: Detent's own sessions do not depend on them."""

from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlsplit
from uuid import uuid4

import pymysql
import pytest

import detent
from detent import App
from detent.errors import PacketTooLarge
from tests.acceptance.support import eventually
from tests.deciders.declared import Create, Created, Order
from tools import servers

pytestmark = pytest.mark.acceptance

LIMIT = 1024 * 1024
QUOTES = 'it\'s "quoted" \\ and | piped'
# Ends a text or begins a statement, if it is not escaped for the sql_mode of its session.
HOSTILE = "\\'; DROP TABLE detent_runs; -- \"; DROP TABLE detent_runs; # %(rows)s %% \u00bf'\u7e17'\\"
HOSTILE_VALUE = f"{HOSTILE}\0\x1a\n'"


@detent.step(transactional=True)
def book(tx: detent.Transaction, number: int) -> str:
    tx.execute("INSERT INTO booked VALUES (%s)", [number])
    return QUOTES


@detent.step
def answer(size: int) -> str:
    return "x" * size


@detent.workflow
def order(number: int, size: int = 1, padding: str = "") -> tuple[str, int]:
    return book(number), len(answer(size))


@detent.step(id=HOSTILE.replace("#", ""))
def refuse(text: str) -> str:
    raise ValueError(text)


@detent.step(transactional=True)
def echo(tx: detent.Transaction, text: str) -> str:
    return text


@detent.workflow
def talk(text: str) -> list[str]:
    detent.publish(HOSTILE, text)
    detent.append(HOSTILE, text)
    heard = [echo(text), detent.receive(HOSTILE)]
    try:
        refuse(text)
    except ValueError as error:
        heard.append(str(error))
    return heard


def _connect(url: str) -> "pymysql.Connection[pymysql.cursors.Cursor]":
    place = urlsplit(url)
    return pymysql.connect(
        host=place.hostname,
        port=place.port or 3306,
        user=place.username,
        password=place.password or "",
        database=place.path.lstrip("/") or None,
    )


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A MariaDB of our own, with a small limit for packets."""
    with servers.running(["mysql"], [f"--max-allowed-packet={LIMIT}"], private=True) as variables:
        yield variables["DETENT_TEST_MYSQL_URL"]


@pytest.fixture
def url(server: str) -> str:
    name = f"detent_{uuid4().hex[:12]}"
    with closing(_connect(server)) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
        cursor.execute(f"CREATE TABLE {name}.booked (number INT)")
        cursor.execute("SET GLOBAL sql_mode = DEFAULT")
    return urlsplit(server)._replace(path=f"/{name}").geturl()


@pytest.mark.parametrize(
    "modes",
    [
        "",
        "ORACLE",
        "ANSI",
        "ANSI_QUOTES",
        "PIPES_AS_CONCAT",
        "NO_BACKSLASH_ESCAPES",
        "TRADITIONAL",
        "SIMULTANEOUS_ASSIGNMENT,EMPTY_STRING_IS_NULL,HIGH_NOT_PRECEDENCE,PAD_CHAR_TO_FULL_LENGTH",
    ],
)
def test_any_sql_mode_of_the_server_will_do(url: str, modes: str) -> None:
    with closing(_connect(url)) as admin, admin.cursor() as cursor:
        cursor.execute("SET GLOBAL sql_mode = %s", [modes])
    with App(url, include=[order], migrate=True) as app:
        assert app.start(order, 1).result(timeout=60) == (QUOTES, 1)
        with closing(_connect(url)) as connection:
            connection.query("START TRANSACTION")
            run = app.within(connection).start(order, 2)
            connection.commit()
        assert run.result(timeout=60) == (QUOTES, 1)
        assert {found.id for found in app.runs(state="finished")} >= {run.id}


@pytest.mark.parametrize("modes", ["", "NO_BACKSLASH_ESCAPES,ANSI_QUOTES"])
def test_hostile_text_is_stored_as_it_is(url: str, modes: str) -> None:
    """In Detent's own sessions, which execute several statements at once, and in users' transactions."""
    with closing(_connect(url)) as admin, admin.cursor() as cursor:
        cursor.execute("SET GLOBAL sql_mode = %s", [modes])
    with App(url, include=[talk, Order], migrate=True) as app:
        first = app.options(
            id=HOSTILE, key=HOSTILE, hero=(HOSTILE, HOSTILE), attributes={"name": HOSTILE}
        ).start(talk, HOSTILE_VALUE)
        with closing(_connect(url)) as connection:
            connection.query("START TRANSACTION")
            within = app.within(connection)
            second = within.options(id=f"{HOSTILE}2", attributes={"name": HOSTILE}).start(talk, HOSTILE_VALUE)
            within.send(second, HOSTILE, HOSTILE_VALUE, id=HOSTILE)
            within.execute(Order, Create(f"{HOSTILE}4", HOSTILE_VALUE), input_id=HOSTILE)
            connection.commit()
        first.send(HOSTILE, HOSTILE_VALUE, id=HOSTILE)
        app.execute(Order, Create(f"{HOSTILE}3", HOSTILE_VALUE), input_id=HOSTILE)
        for run in (first, second):
            assert run.result(timeout=60) == [HOSTILE_VALUE] * 3
            assert run.published(HOSTILE) == HOSTILE_VALUE
            assert list(run.stream(HOSTILE)) == [HOSTILE_VALUE]
        assert {found.id for found in app.runs(attributes={"name": HOSTILE})} == {first.id, second.id}
        for number in "34":
            [event] = [e.event for e in app.events(Order, HOSTILE + number) if isinstance(e.event, Created)]
            assert event == Created(HOSTILE_VALUE)
        third = app.options(id=f"{HOSTILE}5").start(talk, "")
        third.cancel(reason=HOSTILE)
        assert {"reason": HOSTILE} in [event.detail for event in third.history()]


def test_what_is_too_large_for_the_server_fails_alone(url: str) -> None:
    with App(url, include=[order], migrate=True) as app:
        runs = [app.start(order, number) for number in range(5)]
        large = app.start(order, 5, size=2 * LIMIT)
        with pytest.raises(PacketTooLarge, match="max_allowed_packet"):
            app.start(order, 6, padding="x" * 2 * LIMIT)
        with pytest.raises(PacketTooLarge, match=r"step 'answer'.*max_allowed_packet"):
            large.result(timeout=60)
        assert [run.result(timeout=60) for run in runs] == [(QUOTES, 1)] * 5


def test_a_limit_that_shrank_is_reported_as_such(url: str) -> None:
    """The server refuses a statement (error 1153) that fits by what it has said before."""
    with App(url, include=[order], migrate=True) as app:
        assert app.start(order, 1).result(timeout=60)
        eventually(lambda: app.engine.store.driver.largest < LIMIT, "the limit is known")
        app.engine.store.driver.largest = 16 * LIMIT
        with pytest.raises(PacketTooLarge, match="max_allowed_packet"):
            app.start(order, 2, padding="x" * (LIMIT + 10_000))
        assert app.start(order, 3).result(timeout=60) == (QUOTES, 1)
