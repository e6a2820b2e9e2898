"""What `run.verify()` notices: every change to what a settled node did."""

from typing import Any

import pytest

import detent
from detent import Workflow, step
from tests.functions.world import Apps, result, wait_for


class Invoice(Workflow):
    @step
    def total(self) -> dict[str, Any]:
        return {"amount": 100, "text": "für Ärger \U0001f600 \x00 'quoted' \\ \u2028"}

    @step(on_exception="skip")
    def remind(self) -> None:
        raise ValueError("no address: \x00 ü")

    @step
    def pay(self) -> str:
        return "paid"


def tamper(app: detent.App, run: detent.Run[Any], node: str, column: str, value: str) -> None:
    statement = (
        f"UPDATE detent_executions SET {column} = '{value}' WHERE run_id = '{run.id}' AND node = '{node}'"
    )
    assert app.engine.store.write(lambda tx: tx.run(statement)) == 1


@pytest.mark.parametrize(
    ("node", "column", "value"),
    [
        ("total", "result", "1"),
        ("total", "outcome", "skipped_by_operator"),
        ("pay", "job", "Invoice.other"),
        ("remind", "error", '{"type":"ValueError","message":"another"}'),
        ("remind", "result", "null"),
    ],
)
def test_a_change_to_what_a_node_did_is_found(apps: Apps, node: str, column: str, value: str) -> None:
    app = apps(Invoice)
    run = app.start(Invoice)
    assert result(run) == "paid"
    assert run.verify() == []
    tamper(app, run, node, column, value)
    assert [(broken.node, broken.attempt) for broken in run.verify()] == [(node, 1)]


def test_an_operators_skip_is_part_of_the_chain(apps: Apps) -> None:
    class Stuck(Workflow):
        @step
        def first(self) -> None:
            raise ValueError

        @step
        def second(self) -> str:
            return "done"

    app = apps(Stuck)
    run = app.start(Stuck)
    wait_for(run, "paused")
    run.skip("first")
    assert result(run) == "done"
    assert run.verify() == []
    tamper(app, run, "second", "outcome", "skipped_by_operator")
    assert [broken.node for broken in run.verify()] == ["second"]


class Reversed:
    """Stands in for encryption."""

    def encode(self, text: str) -> str:
        return text[::-1]

    def decode(self, text: str) -> str:
        return text[::-1]


def test_a_run_with_transformed_payloads_is_verified_by_its_stored_text(apps: Apps) -> None:
    run = apps(Invoice, transform=Reversed()).start(Invoice)
    assert result(run) == "paid"
    # Without the key.
    assert apps(Invoice, worker=False).run(run.id).verify() == []


def test_executions_show_their_hashes(apps: Apps) -> None:
    run = apps(Invoice).start(Invoice)
    result(run)
    hashes = {item.node: item.ancestry_hash for item in run.executions()}
    assert hashes == {node.name: node.ancestry_hash for node in run.nodes()}
    assert all(each is not None and each.startswith("2:") for each in hashes.values())
