"""Inheritance: conditions add up, options override, nodes can be inserted and overridden, parents stay."""

from collections.abc import Iterator

import pytest

import detent
import onboarding
from detent.definitions.blueprint import blueprint
from onboarding import BaseWorkflow, Onboarding, PremiumOnboarding, User
from running import lines


@pytest.fixture
def app(url: str) -> Iterator[detent.App]:
    onboarding.USERS.clear()
    onboarding.LOG.clear()
    with onboarding.make_app(url) as app:
        yield app


def _start(app: detent.App, workflow: type[detent.Workflow], **facts: bool) -> detent.Run[None]:
    user = onboarding.USERS[1] = User(1, **facts)
    return app.options(hero=user).start(workflow)


def test_a_subclass_begins_with_what_its_parents_declare_and_never_changes_them() -> None:
    parent, child = blueprint(Onboarding), blueprint(PremiumOnboarding)
    assert parent.graph.needs == {"create_account": (), "send_welcome": ("create_account",)}
    assert child.graph.needs == {
        "create_account": (),
        "assign_manager": ("create_account",),
        "send_welcome": ("assign_manager",),
    }
    assert [
        len(blueprint(cls).cancel_conditions) for cls in (BaseWorkflow, Onboarding, PremiumOnboarding)
    ] == [
        1,
        1,
        2,
    ]
    assert (parent.queue, parent.priority) == ("workflows", 1)
    assert (child.queue, child.priority) == ("premium", 1)


def test_hooks_and_bodies_run_in_order(app: detent.App) -> None:
    run = _start(app, PremiumOnboarding)
    run.result(timeout=30)
    assert run.row.queue == "premium"
    assert [
        line
        for node, body in (
            ("create_account", "account"),
            ("assign_manager", "manager"),
            ("send_welcome", "welcome, with flowers"),
        )
        for line in (f"PremiumOnboarding.{node} starts", f"> {node}", body, f"< {node}")
    ] == onboarding.LOG


def test_the_parent_goes_on_as_before(app: detent.App) -> None:
    run = _start(app, Onboarding, subscribed=False)
    run.result(timeout=30)
    assert run.row.queue == "workflows"
    assert "welcome" in onboarding.LOG
    assert "manager" not in onboarding.LOG


@pytest.mark.parametrize("facts", [{"active": False}, {"subscribed": False}])
def test_conditions_of_both_cancel(app: detent.App, facts: dict[str, bool]) -> None:
    run = _start(app, PremiumOnboarding, **facts)
    with pytest.raises(detent.RunCanceled):
        run.result(timeout=30)
    assert lines(run) == ["create_account: canceled (canceled_by_condition)"]
    assert onboarding.LOG == []


def test_a_class_without_nodes_cannot_be_started(app: detent.App) -> None:
    with pytest.raises(detent.DefinitionError, match="has no nodes"):
        app.start(BaseWorkflow)
