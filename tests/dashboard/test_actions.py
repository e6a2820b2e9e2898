"""Every action, and the line in the history that says who did it and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pytest

import detent
from detent.dashboard.actions import ACTIONS
from detent.dashboard.asgi import PLACES
from detent.dashboard.forms import BadAction
from detent.dashboard.typed_fields import described, fields_of, payload_of
from detent.testing import TestingApp
from tests.dashboard.client import TOKEN, Client, csrf_of
from tests.dashboard.conftest import MakeClient, operator
from tests.dashboard.world import Account, Count, Onboard, Open, fulfil, parrot


def audit(app: detent.App, run_id: str, event: str) -> dict[str, Any]:
    """The signed line of a run's history."""
    lines = [line for line in app.run(run_id).history() if line.event == event]
    assert lines, [line.event for line in app.run(run_id).history()]
    detail: dict[str, Any] = lines[-1].detail
    return {"by": detail.get("by"), "reason": detail.get("reason")}


@dataclass
class Parcel:
    id: str
    euros: int
    express: bool
    size: Literal["s", "m"]
    items: list[str]
    note: str | None = None
    weight: float = 1.0


SIGNED = {"by": "ada", "reason": "because"}


def waiting(app: TestingApp, id: str = "order") -> None:
    app.options(id=id).start(fulfil, id, 500)
    app.settle_down()


def test_pause_resume_and_cancel_are_done_and_signed(shop: TestingApp) -> None:
    waiting(shop)
    client = operator(shop)
    for verb, state, event in (
        ("pause", "paused", "paused"),
        ("resume", "ready", "resumed"),
        ("cancel", "canceled", "canceled"),
    ):
        answer = client.act(verb, run="order")
        assert (answer.status_code, answer.headers["location"]) == (303, f"/runs/order?done={verb}")
        assert shop.run("order").state == state
        assert audit(shop, "order", event) == SIGNED
    page = client.get("/runs/order?tab=history").text
    assert "by <bdi>ada</bdi>" in page
    assert "because" in page


def test_the_line_and_the_change_are_one_transaction(
    shop: TestingApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the line cannot be written, nothing is paused."""
    from detent.stores.verbs import control

    waiting(shop)

    def broken(*args: Any) -> None:
        raise RuntimeError("no history today")

    monkeypatch.setattr(control, "note", broken)
    answer = operator(shop).act("pause", run="order")
    assert answer.status_code == 500
    assert shop.run("order").state == "ready"


def test_a_step_of_a_graph_is_skipped_and_tried_again(shop: TestingApp) -> None:
    shop.options(id="bad").start(Onboard, name="bad")
    shop.settle_down()
    client = operator(shop)
    assert "Try again" in client.get("/runs/bad?node=check").text
    client.act("reattempt", run="bad", node="check")
    assert audit(shop, "bad", "reattempted") == SIGNED
    shop.settle_down()
    client.act("skip", run="bad", node="check")
    assert audit(shop, "bad", "skipped") == SIGNED
    client.act("resume", run="bad") if shop.run("bad").state == "paused" else None
    shop.settle_down()
    assert shop.run("bad").state == "finished"


def test_a_fork_begins_a_new_run_and_signs_both(shop: TestingApp) -> None:
    shop.speedrun(shop.options(id="order").start(fulfil, "order", 5))
    answer = operator(shop).act("fork", run="order", node="pack")
    made = answer.headers["location"].removeprefix("/runs/").partition("?")[0]
    assert shop.run(made).forked_from == "order"
    assert audit(shop, "order", "forked") == SIGNED
    assert audit(shop, made, "forked from") == SIGNED


def test_a_message_is_sent_with_a_json_value(shop: TestingApp) -> None:
    waiting(shop)
    client = operator(shop)
    client.act("send", run="order", name="approval", value='{"ok": true}')
    shop.settle_down()
    assert shop.run("order").state == "finished"
    assert audit(shop, "order", "message sent") == SIGNED
    wrong = client.act("send", run="order", name="approval", value="yes")
    assert wrong.status_code == 400
    assert "not JSON" in wrong.text


def test_many_runs_are_resumed_and_canceled_by_filter(shop: TestingApp) -> None:
    for number in range(3):
        waiting(shop, f"order-{number}")
        shop.run(f"order-{number}").pause()
    client = operator(shop)
    form = client.get("/act/resume-all?state=paused&type=fulfil")
    assert "<dd>3</dd>" in form.text
    assert (
        client.act("resume-all", state="paused", type="fulfil").headers["location"]
        == "/runs?changed=3&refused=0"
    )
    assert audit(shop, "order-1", "resumed") == SIGNED
    client.act("cancel-all", state="active")
    assert {shop.run(f"order-{number}").state for number in range(3)} == {"canceled"}
    assert audit(shop, "order-2", "canceled") == SIGNED
    assert client.get("/act/resume-all").status_code == 400


def test_dead_letters_are_replayed_and_discarded(shop: TestingApp) -> None:
    for id in ("a-1", "a-2"):
        shop.execute(Account, Open(id, "nobody"))
    shop.settle_down()
    client = operator(shop)
    first, second = client.api("dead-letters")["dead_letters"]
    client.act("replay", letter=first["id"])
    assert audit(shop, f"account:{first['instance']}", "replayed") == SIGNED
    client.act("discard", letter=second["id"])
    assert audit(shop, f"account:{second['instance']}", "discarded") == SIGNED
    shop.settle_down()
    assert client.act("replay-all", decider="account").status_code == 303


def test_an_input_is_executed_and_signed(shop: TestingApp) -> None:
    client = operator(shop)
    fields = {"decider": "account", "input": "Open", "payload": '{"id": "a-9", "email": "x@example.org"}'}
    assert client.act("execute", **fields).status_code == 303
    assert shop.state_at(Account, "a-9").status == "open"
    assert audit(shop, "account:a-9", "input executed") == SIGNED
    for wrong in ({"payload": "[]"}, {"payload": "x"}, {"input": "Nothing"}, {"payload": '{"id": 7}'}):
        assert client.act("execute", **{**fields, **wrong}).status_code in (400, 409), wrong


def test_the_form_of_an_input_has_a_field_for_each_of_its_fields(shop: TestingApp) -> None:
    client = operator(shop)
    assert "/act/execute?decider=account&amp;input=Open" in client.get("/decider?name=account").text
    form = client.get("/act/execute?decider=account&input=Open").text
    assert 'name="field.id"' in form
    assert 'name="field.email"' in form
    assert 'name="payload"' not in form
    chosen = {"decider": "account", "input": "Open"}
    answer = client.act("execute", **chosen, **{"field.id": "a-7", "field.email": "x@example.org"})
    assert answer.status_code == 303
    assert shop.state_at(Account, "a-7").email == "x@example.org"
    assert audit(shop, "account:a-7", "input executed") == SIGNED
    incomplete = client.act("execute", **chosen, **{"field.id": "a-8"})
    assert incomplete.status_code == 400
    assert "Fill in: Email" in incomplete.text


def test_fields_have_the_kinds_of_their_types() -> None:
    kinds = {
        one.label: (one.kind, one.required, one.choices) for one in fields_of(described(Parcel) or ()) or ()
    }
    assert kinds == {
        "Id": ("text", True, ()),
        "Euros": ("text", True, ()),
        "Express": ("choice", True, ("no", "yes")),
        "Size": ("choice", True, ("m", "s")),
        "Items": ("json", True, ()),
        "Note": ("text", False, ()),
        "Weight": ("text", False, ()),
    }
    given = {"id": "o", "euros": "5", "express": "yes", "size": "m", "items": '["cup"]', "note": ""}
    values = {f"field.{name}": value for name, value in given.items()}
    expected = {"id": "o", "euros": 5, "express": True, "size": "m", "items": ["cup"]}
    assert payload_of(described(Parcel) or (), values) == expected
    for name, wrong in (("euros", "many"), ("express", "perhaps"), ("items", "[")):
        with pytest.raises(BadAction, match=name):
            payload_of(described(Parcel) or (), {**values, f"field.{name}": wrong})


def test_a_projection_is_rebuilt(shop: TestingApp) -> None:
    shop.execute(Account, Open("a-1", "x@example.org"))
    shop.settle_down()
    assert operator(shop).act("rebuild", projection=Count.name).status_code == 303
    lines = [event for _, event, _ in shop.engine.store.history("projection:count")]
    assert "rebuilding" in lines


def test_an_action_needs_a_reason(make: MakeClient, small: TestingApp) -> None:
    waiting(small)
    client = make()
    client.login()
    csrf = csrf_of(client.get("/act/pause?run=order").text)
    for reason in ("", "   ", "x" * 1001):
        answer = client.post("/act/pause", {"run": "order", "reason": reason, "csrf": csrf})
        assert answer.status_code == 400
        assert 'role="alert"' in answer.text
    assert small.run("order").state == "ready"


def test_an_action_that_does_not_apply_says_why_and_keeps_the_form(small: TestingApp) -> None:
    small.speedrun(small.options(id="done").start(parrot, "x"))
    answer = operator(small).act("pause", reason="a long reason", run="done")
    assert answer.status_code == 409
    assert "finished" in answer.text
    assert "a long reason" in answer.text


def test_the_api_acts_like_the_pages(shop: TestingApp) -> None:
    waiting(shop)
    client = Client(detent.dashboard(shop, token=TOKEN))
    bearer = {"authorization": f"Bearer {TOKEN}"}

    def post(verb: str, **body: Any) -> int:
        return client.request("POST", f"/api/actions/{verb}", json=body, headers=bearer).status_code

    assert post("pause", run="order", reason="x") == 200
    assert post("pause", run="order", reason="x") == 409
    assert post("resume", run="order") == 400
    assert post("resume", run="nothing", reason="x") == 404
    assert post("resume", run="order", reason="x", extra="y") == 400
    assert post("resume", run=7, reason="x") == 400
    assert post("nothing", reason="x") == 404
    assert post("resume", run="order", reason="x") == 200
    assert post("send", run="order", reason="x", name="approval", value={"ok": True}) == 200
    assert audit(shop, "order", "resumed") == {"by": "api token", "reason": "x"}


def test_every_action_has_words_and_a_target() -> None:
    for verb, action in ACTIONS.items():
        assert verb == action.verb
        assert action.title
        assert action.explains.endswith(".")
        assert action.target in PLACES
