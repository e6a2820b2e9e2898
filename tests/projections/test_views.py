"""What a projection keeps by key."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import detent
from detent import Projection, Recorded, View
from detent.errors import ConfigurationError, DefinitionError
from tests.functions.world import Apps
from tests.projections.conftest import Timeless
from tests.projections.world import Account, add, rows, status, wait


def projection(apply: Callable[[int, View], None], **options: Any) -> Projection:
    """A projection whose `apply` is given the amount of each event."""

    def each(self: Projection, event: Recorded[Any], view: View) -> None:
        apply(event.event.amount, view)

    made: Projection = type("Kept", (Projection,), {"name": "kept", "apply": each, **options})()
    return made


def test_values_are_read_as_they_were_put(timeless: Timeless) -> None:
    found: list[Any] = []

    def apply(amount: int, view: View) -> None:
        if amount == 1:
            view["plain"] = {"a": [1, None, "ü"]}
            view["gone"] = 1
            found.append((view.get("plain"), "gone" in view, view.get("never", "default"), view["gone"]))
            del view["gone"]
            del view["never"]
            found.append(("gone" in view, view.get("gone", 7)))
        else:
            found.append((view.get("plain"), "gone" in view))

    kept = projection(apply, batch=1)
    app = timeless(kept)
    add(app, 1, 2)
    app.settle_down()
    assert found == [({"a": [1, None, "ü"]}, True, "default", 1), (False, 7), ({"a": [1, None, "ü"]}, False)]
    assert app.projections.view(kept).items() == [("plain", {"a": [1, None, "ü"]})]


def test_a_key_that_is_not_there_raises(timeless: Timeless) -> None:
    app = timeless(projection(lambda amount, view: view["never"]))
    add(app, 1)
    app.settle_down()
    assert status(app).error == "KeyError: 'never'"


def test_a_value_that_is_changed_without_being_put_back_is_not_changed(timeless: Timeless) -> None:
    def apply(amount: int, view: View) -> None:
        if amount == 1:
            view["list"] = []
        view.get("list").append(amount)

    kept = projection(apply)
    app = timeless(kept)
    add(app, 1, 2)
    app.settle_down()
    assert app.projections.view(kept).get("list") == []


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("k" * 256, "256 characters"),
        ("", "empty"),
        ("k ", "ends with a space"),
        ("a\x00", "NUL"),
        (3, "not a text"),
    ],
    ids=["long", "empty", "space", "NUL", "number"],
)
def test_a_key_that_no_database_can_store_blocks(timeless: Timeless, key: Any, why: str) -> None:
    def apply(amount: int, view: View) -> None:
        view[key] = amount

    app = timeless(projection(apply))
    add(app, 1)
    app.settle_down()
    assert status(app).blocked_at == 1
    assert why in (status(app).error or "")


def test_the_longest_key_is_kept(timeless: Timeless) -> None:
    def apply(amount: int, view: View) -> None:
        view["ü" * 255] = amount

    kept = projection(apply)
    app = timeless(kept)
    add(app, 1)
    app.settle_down()
    assert app.projections.view(kept).get("ü" * 255) == 1


def test_a_value_without_a_json_form_blocks_at_its_event(timeless: Timeless) -> None:
    def apply(amount: int, view: View) -> None:
        view["value"] = object() if amount == 13 else amount

    kept = projection(apply)
    app = timeless(kept)
    add(app, 1, 13)
    app.settle_down()
    assert status(app).blocked_at == 2
    assert "NotSerializable" in (status(app).error or "")
    assert app.projections.view(kept).get("value") == 1


def test_more_items_than_are_read_at_once(timeless: Timeless) -> None:
    def apply(amount: int, view: View) -> None:
        if amount == 0:
            for number in range(1200):
                view[f"{number:04}"] = number
        else:
            view["0600"] = view.get("0600") + amount
            view["1199"] = view.get("1199") + amount
            view["new"] = view.get("new", 0) + amount

    kept = projection(apply)
    app = timeless(kept)
    add(app, 0)
    app.settle_down()
    app.close()
    again = timeless(kept)
    add(again, 1, 2)
    again.settle_down()
    view = again.projections.view(kept)
    assert [view.get(key) for key in ("0600", "1199", "new")] == [603, 1202, 3]
    assert len(view.items(limit=5000)) == 1201


def test_what_another_worker_has_written_is_seen(apps: Apps) -> None:
    def apply(amount: int, view: View) -> None:
        view["sum"] = view.get("sum", 0) + amount

    kept = projection(apply)
    one = apps(Account, kept)
    add(one, 1, 2)
    wait(one, kept)
    assert one.engine.worker is not None
    one.engine.worker.projector.end()
    one.engine.worker.projector.join(5)
    other = apps(Account, kept)
    add(other, 4)
    wait(other, kept)
    runner = one.engine.worker.projector._runner
    assert other.engine.worker is not None
    other.engine.worker.projector.end()
    other.engine.worker.projector.join(5)
    add(other, 8)
    runner.ending.clear()
    runner.advance(one.engine.registry.projection(kept), 1, 4)
    assert one.projections.view(kept).get("sum") == 15


def test_items_are_found_by_prefix_in_the_order_of_their_keys(timeless: Timeless) -> None:
    keys = ["a", "a:1", "a:10", "a:2", "aa", "B", "a_x", "a%x", "ä:1", "a:ü"]

    def apply(amount: int, view: View) -> None:
        for key in keys:
            view[key] = key

    kept = projection(apply)
    app = timeless(kept)
    add(app, 1)
    app.settle_down()
    view = app.projections.view(kept)
    assert [key for key, _ in view.items()] == sorted(keys)
    assert [key for key, _ in view.items(prefix="a:")] == ["a:1", "a:10", "a:2", "a:ü"]
    assert [key for key, _ in view.items(prefix="a:", limit=2)] == ["a:1", "a:10"]
    assert [key for key, _ in view.items(prefix="a:", after="a:10")] == ["a:2", "a:ü"]
    assert view.items(prefix="a%") == [("a%x", "a%x")]
    assert view.items(prefix="nothing") == []
    with pytest.raises(ConfigurationError, match="limit"):
        view.items(limit=0)


@dataclass
class Total:
    amount: int


def test_values_are_read_as_a_type(timeless: Timeless) -> None:
    def apply(amount: int, view: View) -> None:
        total = view.get("total", Total(0), type=Total)
        view["total"] = Total(total.amount + amount)

    kept = projection(apply)
    app = timeless(kept)
    add(app, 1, 2)
    app.settle_down()
    view = app.projections.view(kept)
    assert view.get("total", type=Total) == Total(3)
    assert view.items(type=Total) == [("total", Total(3))]
    assert view.get("never", 5) == 5


def test_values_go_through_the_apps_transform(timeless: Timeless) -> None:
    class Backwards:
        def encode(self, text: str) -> str:
            return text[::-1]

        def decode(self, text: str) -> str:
            return text[::-1]

    def apply(amount: int, view: View) -> None:
        view["secret"] = "abc"

    kept = projection(apply)
    app = timeless(kept, transform=Backwards())
    add(app, 1)
    app.settle_down()
    assert rows(app.engine.store, "SELECT value FROM detent_views") == [('"cba"',)]
    assert app.projections.view(kept).get("secret") == "abc"


def test_a_table_that_cannot_be_named_so_is_refused(timeless: Timeless) -> None:
    app = timeless(projection(lambda amount, view: None))
    for name in ("drop table", "x; --", "", "t" * 60):
        with pytest.raises(DefinitionError, match="letters, digits"):
            app.projections.view("kept").table(name)


def test_a_projection_must_not_end_its_transaction_or_execute_inputs(timeless: Timeless) -> None:
    tried: list[str] = []
    used: list[detent.App] = []

    def apply(amount: int, view: View) -> None:
        for job in (view.tx.commit, view.tx.rollback, lambda: add(used[0], 1)):
            try:
                job()
            except detent.DetentError as error:
                tried.append(type(error).__name__)

    app = timeless(projection(apply))
    used.append(app)
    add(app, 1)
    app.settle_down()
    assert tried == ["TransactionMisused"] * 3
