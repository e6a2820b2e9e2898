"""Declaring nodes of a workflow class, where no database is needed."""

from __future__ import annotations

import re

import pytest

import detent
from detent import step, task
from detent.definitions.blueprint import blueprint


@step
def charge(order_id: int) -> str:
    return str(order_id)


def test_a_node_that_is_a_job_can_be_named_by_itself() -> None:
    class Order(detent.Workflow):
        order_id: int
        pay = step(job=charge)
        pay_again = task(job=charge, depends_on=pay)

        @step(after_step=pay)
        def audit(self) -> None: ...

    assert blueprint(Order).graph.needs == {"pay": (), "pay_again": ("pay",), "audit": ("pay",)}


def test_an_error_about_such_a_node_names_the_users_line() -> None:
    with pytest.raises(detent.DefinitionError, match=re.escape(__file__) + r":\d+"):

        class Order(detent.Workflow):
            pay = step(job=charge, depends_on="nobody")
