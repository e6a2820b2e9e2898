"""Which projections an app takes, and which it refuses."""

from types import ModuleType
from typing import Any

import pytest

import detent
from detent import Projection, Recorded, View
from detent.errors import DefinitionError, UnknownProjection
from tests.projections.conftest import Timeless
from tests.projections.world import Account, Totals, add, totals

MEMORY = "sqlite:///:memory:"


def build(*include: Any) -> detent.App:
    return detent.App(MEMORY, include=include)


class Nothing(Projection):
    name = "nothing"

    def apply(self, event: Recorded[Any], view: View) -> None:
        pass


def test_two_projections_of_one_name_are_refused() -> None:
    class Again(Totals):
        pass

    with pytest.raises(DefinitionError, match="two definitions have the name 'totals'"):
        build(Totals, Again)


def test_a_projection_that_is_included_twice_is_one() -> None:
    assert [plan.name for plan in build(Totals, Totals).engine.registry.projections] == ["totals"]


def test_two_objects_of_one_projection_are_refused() -> None:
    with pytest.raises(DefinitionError, match="two definitions have the name 'totals'"):
        build(Totals(), Totals())


def test_a_projection_may_be_called_like_a_decider() -> None:
    class Accounts(Totals):
        name = "account"

    assert build(Accounts).engine.registry.decider("account").cls is Account


def test_its_deciders_are_included_with_it() -> None:
    assert build(Totals).engine.registry.decider(Account).name == "account"


def test_a_module_gives_all_its_projections() -> None:
    class Abstract(Projection):
        pass

    module = ModuleType("readmodels")
    vars(module).update(Projection=Projection, Totals=Totals, Nothing=Nothing, Abstract=Abstract)
    names = sorted(plan.name for plan in build(module).engine.registry.projections)
    assert names == ["nothing", "totals"]


def test_a_projection_is_no_work_that_a_worker_claims() -> None:
    assert "totals" not in build(Totals).engine.registry.names


@pytest.mark.parametrize(
    ("attributes", "why"),
    [
        ({"name": None}, "needs a name"),
        ({"name": ""}, "needs a name"),
        ({"name": " x"}, "needs a name"),
        ({"name": "x" * 201}, "needs a name"),
        ({"name": "a\nb"}, "cannot be printed"),
        ({"batch": 0}, "batch=0"),
        ({"batch": True}, "batch=True"),
        ({"version": "2"}, "version='2'"),
        ({"retry": 3}, "retry=3"),
        ({"deciders": ["account"]}, "give their classes"),
        ({"apply": Projection.apply}, "no method apply"),
    ],
)
def test_a_projection_that_makes_no_sense_is_refused(attributes: dict[str, Any], why: str) -> None:
    with pytest.raises(DefinitionError, match=why):
        build(type("Odd", (Nothing,), attributes))


def test_a_projection_that_needs_arguments_is_included_as_an_object(timeless: Timeless) -> None:
    class Scaled(Totals):
        def __init__(self, factor: int) -> None:
            self.factor = factor

        def apply(self, event: Recorded[Any], view: View) -> None:
            event.event.amount *= self.factor
            super().apply(event, view)

    with pytest.raises(DefinitionError, match=r"include an object: Scaled\(...\)"):
        build(Scaled)
    app = timeless(Scaled(10))
    add(app, 2)
    app.settle_down()
    assert totals(app, Scaled) == {"a": 20}


def test_a_projection_that_is_not_included_is_unknown() -> None:
    app = build(Totals)
    with pytest.raises(UnknownProjection, match="this app has no projection 'Nothing'"):
        app.projections.view(Nothing)
    with pytest.raises(UnknownProjection, match="it has totals"):
        app.projections.rebuild("nothing")


def test_a_projection_can_be_included_while_the_app_is_open(timeless: Timeless) -> None:
    app = timeless()
    add(app, 1, 2)
    app.include(Totals)
    app.settle_down()
    assert totals(app) == {"a": 3}
