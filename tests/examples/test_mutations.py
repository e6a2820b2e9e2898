"""Two hundred mutations: all at the same time, then one sum, then one notice."""

import threading
from collections.abc import Iterator

import pytest

import mutations
from detent.testing import TestingApp

NUMBER = 200


@pytest.fixture(autouse=True)
def _world() -> Iterator[None]:
    mutations.prepare(user_id=7, number=NUMBER)
    yield
    for table in (mutations.MUTATIONS, mutations.BALANCES, mutations.NOTICES):
        table.clear()


def test_all_of_them_run_at_the_same_time(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(NUMBER, timeout=60)  # nobody passes before all are there
    post = mutations.post

    def post_together(mutation: mutations.Mutation) -> None:
        together.wait()
        post(mutation)

    monkeypatch.setattr(mutations, "post", post_together)
    with mutations.make_app(url, concurrency=NUMBER) as app:
        run = app.start(mutations.close_the_books(7))
        run.result(timeout=90)
        assert [node.state for node in run.nodes()] == ["completed"] * (NUMBER + 2)
        assert run.verify() == []
    assert mutations.NOTICES == ["user 7: your balance is 20100"]


def test_each_runs_once_and_the_sum_waits_for_the_last(url: str) -> None:
    with mutations.make_app(url) as app:
        run = app.start(mutations.close_the_books(7))
        run.result(timeout=90)
        nodes = {node.name: node for node in run.nodes()}
        parts = [nodes[f"mutation_{id}"] for id in mutations.MUTATIONS]
        assert {(part.state, part.attempts) for part in parts} == {("completed", 1)}
        assert nodes["notify"].depends_on == ("aggregate",)
        assert len(app.start(mutations.close_the_books(7)).nodes()) == 2  # nothing was left to process
    assert {7: sum(range(1, NUMBER + 1))} == mutations.BALANCES


def test_one_that_fails_pauses_the_run_and_is_all_that_runs_again(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    post = mutations.post

    def fragile(mutation: mutations.Mutation) -> None:
        if mutation.id == 13:
            raise ConnectionError("the ledger is locked")
        post(mutation)

    monkeypatch.setattr(mutations, "post", fragile)
    with TestingApp(url) as app:
        run = app.speedrun(app.start(mutations.close_the_books(7)))
        assert run.state == "paused"
        states = {node.name: node.state for node in run.nodes()}
        assert states.pop("mutation_13") == "failed"
        assert states.pop("aggregate") == states.pop("notify") == "pending"
        assert set(states.values()) <= {"completed", "scheduled"}  # a paused run begins nothing new

        monkeypatch.setattr(mutations, "post", post)
        run.resume()
        assert app.speedrun(run).state == "finished"
        attempts = {node.name: node.attempts for node in run.nodes()}
        assert attempts.pop("mutation_13") == 2
        assert set(attempts.values()) == {1}
        assert run.verify() == []
    assert mutations.BALANCES == {7: 20100}
