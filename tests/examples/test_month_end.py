"""A template, workflows as nodes, and waiting for another run."""

from collections.abc import Iterator

import pytest

import detent
import month_end
from running import lines


@pytest.fixture
def app(url: str) -> Iterator[detent.App]:
    month_end.DONE.clear()
    month_end.INVOICES.clear()
    month_end.INVOICES.update({7: [10, 20], 8: [5]})
    with month_end.make_app(url) as app:
        yield app


def test_a_template_is_expanded_with_its_arguments_and_frozen(app: detent.App) -> None:
    run = app.start(month_end.month_end, user_id=7)
    assert run.result(timeout=30) == "user 7 owes 30, audited"
    assert run.type == "month_end"
    assert '"user_id": 7' in run.export_graph()
    assert sorted(lines(run)) == sorted(
        f"{node}: completed (success)" for node in ("invoices", "total", "audit", "statement", "result")
    )


def test_workflows_as_nodes_are_runs_of_their_own(app: detent.App) -> None:
    run = app.start(month_end.month_end, 8)
    run.result(timeout=30)
    children = [child for child in app.runs() if child.row.parent == run.id]
    assert {child.type: child.result() for child in children} == {"total_of": 5, "Audit": "audited"}
    assert month_end.DONE.index("looked at 8") < month_end.DONE.index("signed for 8")


def test_a_run_waits_for_others(app: detent.App) -> None:
    months = [app.start(month_end.month_end, user_id=id) for id in (7, 8)]
    year = app.start(month_end.year_end(2030, months))
    assert year.result(timeout=30) == "2030 is closed"
    assert month_end.DONE[-1] == "closed 2030"
    assert [run.refresh().state for run in months] == ["finished", "finished"]
    assert sorted(lines(year)) == [f"{node}: completed (success)" for node in ("close", "run 1", "run 2")]


def test_wrong_arguments_of_a_template_are_refused_before_anything_is_stored(app: detent.App) -> None:
    with pytest.raises(TypeError, match="user_id"):
        app.start(month_end.month_end)  # type: ignore[call-overload]
    assert app.runs() == []
