"""Bad input: refused alike on every database, by an error that says why, and leaving nothing behind.

And odd input, which is none of our business and comes back as it went in.
"""

from typing import Any
from urllib.parse import urlsplit

import pymysql
import pytest

import detent.stores.mysql.driver
import detent.stores.postgres.driver
from detent.errors import (
    DatabaseUnavailable,
    DetentError,
    MissingDriver,
    NameUnfit,
    PacketTooLarge,
    UnknownScheme,
)
from detent.kernel.external_changes import Note
from detent.kernel.operations import Operation, Start, Verdict
from detent.serialization.codec import Codec
from detent.stores.driver import Trouble, Tx
from detent.stores.open import open_store
from detent.stores.store import Store
from tests.conformance.builders import (
    NOW,
    claim,
    detail,
    enlist,
    everything,
    executing,
    for_message,
    message,
    new_main,
    new_run,
    new_step,
    one,
    parking,
    recording,
    settling,
    spawning,
    start,
    state_of,
    worker_row,
)

ODD = [
    "plain",
    "Zürich 東京 مرحبا",
    "🚀👩‍👩‍👧‍👦",
    'it\'s "quoted" `so`',
    "back\\slash \\n \\u0000 \\' \\\\",
    "100% %s %(id)s %%",
    ":name ::text ?1 $1 {x} {{filters}}",
    "line\nbreak\ttab\rreturn\x01\x1f\x7f",
    "; DROP TABLE detent_runs; --",
    "null",
    "",
    "[]",
]
UNFIT = {"NUL": "a\x00b", "a lone surrogate": "a\ud800b", "too long": "x" * 501, "a space at the end": "a "}


@pytest.mark.parametrize("text", ODD)
def test_odd_text_comes_back_as_it_went_in(store: Store, text: str) -> None:
    value = Codec().encode({"text": text, text: [text]}, "it")
    enlist(store, "w1")
    one(store, start("run", input=value))
    [main] = claim(store)
    one(store, recording(main, new_step(input=value, result=value, error=value, progress=value)))
    one(store, message(value=value))
    [step] = store.journal(["run"])["run"]
    [sent] = store.unread("run", "paid", limit=1)
    one(store, settling(main, result=value))
    run = store.run("run")
    assert {main.run_input, step.input, step.result, step.error, step.progress, sent.value, run.result} == {
        value
    }
    assert detail(run.result or "") == {"text": text, text: [text]}


@pytest.mark.parametrize("name", [text for text in ODD if text])
def test_odd_names_find_what_they_named(store: Store, name: str) -> None:
    enlist(store, "w1")
    run = new_run(name, type=name, queue=name, hero_type=name, hero_id=name, exclusive=1)
    one(store, Start(runs=[run], executions=[new_main(name, job=name, queue=name)], chosen=True))
    [main] = claim(store, jobs=[name], queues=[name])
    one(store, recording(main, new_step(name, name)))
    one(store, spawning(main, name, topic=name))
    one(store, message(name, message_id=name, name=name))
    store.change(Note(name, name, name), now=NOW)
    found = store.run(name)
    assert (found.id, found.type, found.queue, found.hero_id) == (name,) * 4
    assert {step.key for step in store.journal([name])[name]} == {name}
    assert [row.name for row in store.unread(name, name, limit=1)] == [name]
    assert [run.id for run in store.runs(limit=5, type=name, queue=name)] == [name]
    assert store.history(name)[0][1] == name
    one(store, parking(main, for_message(name, name)))
    assert state_of(store, name) == "ready"


def test_names_that_differ_only_in_case_or_accent_are_different(store: Store) -> None:
    names = ["order", "ORDER", "ordér", "ord\u0065\u0301r"]
    one(store, start(*names, chosen=True))
    assert len(store.runs(limit=10)) == 4


def refused_operations(bad: str) -> dict[str, Operation]:
    executions = [new_main()]
    step: dict[str, Any] = {"worker": "w1", "token": "t", "deliveries": 1}
    return {
        "run id": start(bad),
        "workflow": start(type=bad),
        "queue": start(queue=bad),
        "hero": start(hero_type="Order", hero_id=bad),
        "hero type": start(hero_type=bad, hero_id="7"),
        "queue of an execution": Start(runs=[new_run()], executions=[new_main(queue=bad, **step)]),
        "message": message(name=bad),
        "message id": message(message_id=bad),
        "node": Start(runs=[new_run()], executions=[*executions, new_main(node=bad, kind="step")]),
    }


# A hero's id is the user's own, and only ever compared by its hash: it may end with a space.
REFUSED = [
    pytest.param(what, bad, id=f"{what}: {name}")
    for name, bad in UNFIT.items()
    for what in refused_operations("x")
    if not (what.startswith("hero") and bad.endswith(" "))
]


@pytest.mark.parametrize(("what", "bad"), REFUSED)
def test_an_unfit_name_is_refused_and_its_neighbours_go_on(store: Store, what: str, bad: str) -> None:
    one(store, start("neighbour"))
    refused, fine = store.apply([refused_operations(bad)[what], start("fine")]).answers
    assert isinstance(refused, NameUnfit)
    assert fine[0].created
    assert {run.id for run in store.runs(limit=10)} == {"neighbour", "fine"}


@pytest.mark.parametrize("bad", UNFIT.values(), ids=UNFIT)
def test_a_step_of_an_unfit_name_is_refused_and_its_neighbours_go_on(store: Store, bad: str) -> None:
    main = executing(store)
    refused, fine = store.apply([recording(main, new_step(key=bad)), recording(main, new_step())]).answers
    assert isinstance(refused, NameUnfit)
    assert fine is Verdict.APPLIED
    assert isinstance(one(store, recording(main, new_step(key=bad))), NameUnfit)


def test_the_longest_names_fit(store: Store) -> None:
    name, key = "é" * 255, "ü" * 500
    enlist(store, "w1")
    run = new_run(name, type=name, queue=name, hero_type=name, hero_id=name, exclusive=1)
    one(store, Start(runs=[run], executions=[new_main(name, job=name, queue=name)]))
    [main] = claim(store, jobs=[name], queues=[name])
    store.apply(
        [
            recording(main, new_step(name, key, name=name)),
            spawning(main, name, topic=name),
            message(name, message_id=key, name=name),
        ]
    )
    one(store, parking(main, for_message(name, name)))
    assert (state_of(store, name), state_of(store, name, name)) == ("ready", "ready")


def test_four_mebibytes_travel_in_a_batch(store: Store) -> None:
    """The largest payload that an app takes by default, of characters that have to be escaped."""
    quotes = Codec().encode("\"'\\" * 500_000, "it")
    emoji = Codec().encode("🚀" * 1_000_000, "it")
    enlist(store, "w1")
    one(store, start("a", "b", input=quotes))
    first, second = claim(store, limit=2)
    store.apply(
        [
            settling(first, result=emoji),
            recording(second, new_step("b", result=quotes)),
            recording(second, new_step("b", "more", result=emoji)),
            message("b", value=quotes),
        ]
    )
    assert store.run("a").result == emoji
    assert store.run("b").input == quotes
    assert {step.result for step in store.journal(["b"])["b"]} == {quotes, emoji}
    assert store.unread("b", "paid", limit=1)[0].value == quotes


def test_a_batch_of_more_than_one_packet_is_written_in_pieces(store: Store) -> None:
    enlist(store, "w1")
    one(store, start("a"))
    [main] = claim(store)
    values = [f'"{number:02}{"x" * 2_000_000}"' for number in range(20)]
    steps = [new_step("a", f"s{number:02}", result=value) for number, value in enumerate(values)]
    assert one(store, recording(main, *steps)) is Verdict.APPLIED
    assert sorted(step.result or "" for step in store.journal(["a"])["a"]) == values


@pytest.mark.parametrize("module_url", ["mysql"], indirect=True)
def test_what_the_server_cannot_take_at_all_is_an_error_and_not_a_lost_connection(store: Store) -> None:
    """A committer waits for a lost database for ever; for this there would be nothing to wait for."""
    before = everything(store)
    with pytest.raises(PacketTooLarge, match=r"the input of run .* MySQL .*max_allowed_packet") as caught:
        store.apply([start(input=f'"{"x" * store.driver.largest}"')])
    assert caught.value.limit == store.driver.largest
    assert store.driver.trouble(caught.value) is Trouble.OTHER
    assert everything(store) == before


@pytest.mark.parametrize("module_url", ["mysql"], indirect=True)
def test_a_small_packet_limit_of_the_server_is_respected(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that fit are sent in pieces; one that does not is refused, and its neighbours with it."""
    enlist(store, "w1")
    one(store, start("a"))
    [main] = claim(store)
    sent: list[int] = []
    run = Tx.run

    def watched(tx: Tx, statement: str, **params: Any) -> int:
        sent.append(max((len(value) for value in params.values() if isinstance(value, str)), default=0))
        return run(tx, statement, **params)

    monkeypatch.setattr(Tx, "run", watched)
    monkeypatch.setattr(store.driver, "largest", 1_000_000)
    steps = [new_step("a", f"s{number:02}", result=f'"{"x" * 100_000}"') for number in range(20)]
    assert one(store, recording(main, *steps)) is Verdict.APPLIED
    assert max(sent) < 1_000_000
    before = everything(store)
    small, large = new_step("a", "small"), new_step("a", "large", result=f'"{"x" * 1_000_000}"')
    with pytest.raises(PacketTooLarge, match="the result of step 'large' of run a has"):
        store.apply([recording(main, small, large)])
    with pytest.raises(PacketTooLarge, match="the value of message 'paid' to run a has"):
        store.apply([message("a", value=f'"{"x" * 1_000_000}"')])
    assert everything(store) == before


@pytest.mark.parametrize("module_url", ["mysql"], indirect=True)
def test_the_packet_limit_counts_what_a_users_session_escapes(store: Store, url: str) -> None:
    """There a backslash and a double quote take two bytes each, and the connection would be lost."""
    place = urlsplit(url)
    connection = pymysql.connect(
        host=place.hostname,
        port=place.port or 3306,
        user=place.username,
        password=place.password or "",
        database=place.path[1:],
    )
    quotes = Codec(max_payload=1 << 30).encode('"' * 3_000_000, "it")
    with pytest.raises(PacketTooLarge, match="the input of run"):
        store.apply_within(store.joined(connection), start(input=quotes))
    connection.rollback()
    connection.close()
    one(store, start("ours", input=quotes))
    assert store.run("ours").input == quotes


# -- Databases -------------------------------------------------------------------------------------


def test_an_unknown_scheme_is_named() -> None:
    with pytest.raises(UnknownScheme, match="oracle"):
        open_store("oracle://somewhere/x")


@pytest.mark.parametrize(
    ("module", "driver", "url", "extra"),
    [
        (detent.stores.postgres.driver, "psycopg", "postgresql://u@h/x", "postgres"),
        (detent.stores.mysql.driver, "pymysql", "mysql://u@h/x", "mysql"),
    ],
)
def test_a_missing_driver_names_the_extra_to_install(
    monkeypatch: pytest.MonkeyPatch, module: Any, driver: str, url: str, extra: str
) -> None:
    monkeypatch.setattr(module, driver, None)
    with pytest.raises(MissingDriver, match=rf"pip install 'detent\[{extra}\]'"):
        open_store(url)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://nobody@127.0.0.1:1/nothing",
        "mysql://nobody@127.0.0.1:1/nothing",
        "sqlite:////proc/nowhere/detent.db",
    ],
)
def test_a_database_that_is_not_there_is_unavailable(url: str) -> None:
    store = open_store(url)
    for verb in (store.check_schema, lambda: store.run("x"), lambda: store.apply([start()])):
        with pytest.raises(DatabaseUnavailable) as caught:
            verb()
        assert store.driver.trouble(caught.value) is Trouble.GONE
        assert isinstance(caught.value, DetentError)
    store.close()


@pytest.mark.parametrize("module_url", ["postgres", "mysql"], indirect=True)
def test_a_cut_connection_is_told_as_lost_and_the_next_verb_has_another(store: Store, rival: Store) -> None:
    one(store, start("a"))
    _cut_all_connections(store, rival)
    with pytest.raises(Exception) as caught:
        one(store, start("b"))
    assert store.driver.trouble(caught.value) is Trouble.GONE
    assert one(store, start("b"))[0].created


def test_a_connection_in_use_when_its_store_is_closed_is_closed_by_its_user(store: Store) -> None:
    with store._reading() as tx:
        connection = tx.connection
        store.close()
        assert tx.query("SELECT 1") == [(1,)]
    with pytest.raises(Exception, match=r"(?i)closed|^\(0, ''\)$"):
        connection.cursor().execute("SELECT 1")


def _cut_all_connections(store: Store, through: Store) -> None:
    with store._writer.transaction() as tx:
        mine = tx.query(
            "SELECT pg_backend_pid()" if store.dialect == "postgres" else "SELECT CONNECTION_ID()"
        )
    with through._reading() as tx:
        if store.dialect == "postgres":
            tx.query("SELECT pg_terminate_backend(CAST(%(pid)s AS integer))", pid=mine[0][0])
        else:
            tx.run(f"KILL {int(mine[0][0])}")


def test_a_clock_that_goes_backwards_makes_nothing_early(store: Store) -> None:
    enlist(store, "w1")
    one(store, Start(runs=[new_run()], executions=[new_main(state="timer", scheduled_for=NOW)]))
    assert claim(store, now=NOW - 1) == []
    [main] = claim(store, now=NOW)
    one(store, settling(main, now=NOW - 10))
    assert store.run("run").finished_at == NOW - 10


def test_a_worker_may_have_any_name(store: Store) -> None:
    store.register(worker_row("w:%s'\\\"🚀"))
    assert [row.id for row in store.workers()] == ["w:%s'\\\"🚀"]
