"""Fan-out and join: two hundred mutations of a ledger in parallel, then one sum, then one notice.

The number of nodes is known only when the run is started, so the graph is built then.
"""

from dataclasses import dataclass
from typing import Any

import detent
from detent import step
from running import database_url


@dataclass
class Mutation:
    id: int
    user_id: int
    amount: int
    status: str = "pending"


# A stand-in for your database.
MUTATIONS: dict[int, Mutation] = {}
BALANCES: dict[int, int] = {}
NOTICES: list[str] = []


@step
def process_mutation(mutation_id: int) -> None:
    post(MUTATIONS[mutation_id])


def post(mutation: Mutation) -> None:
    mutation.status = "processed"


@step
def aggregate(user_id: int) -> None:
    # No data is passed on: this reads the rows that the mutations wrote.
    mine = [item for item in MUTATIONS.values() if item.user_id == user_id]
    assert all(item.status == "processed" for item in mine)
    BALANCES[user_id] = sum(item.amount for item in mine)


@step
def notify(user_id: int) -> None:
    NOTICES.append(f"user {user_id}: your balance is {BALANCES[user_id]}")


def close_the_books(user_id: int) -> detent.Graph:
    pending = [m.id for m in MUTATIONS.values() if m.user_id == user_id and m.status == "pending"]
    g = detent.Graph("close-the-books")
    mutations = g.fan_out(
        pending,
        name=lambda id: f"mutation_{id}",
        job=process_mutation,
        args=lambda id: {"mutation_id": id},
        depends_on=None,
    )
    g.node("aggregate", job=aggregate, args={"user_id": user_id}, depends_on=mutations)
    g.node("notify", job=notify, args={"user_id": user_id})  # without depends_on: after the previous node
    return g


def make_app(url: str, **settings: Any) -> detent.App:
    return detent.App(url, include=[process_mutation, aggregate, notify], migrate=True, **settings)


def prepare(user_id: int, number: int) -> None:
    for id in range(1, number + 1):
        MUTATIONS[id] = Mutation(id, user_id, amount=id)


def main(url: str) -> None:
    prepare(user_id=7, number=200)
    with make_app(url) as app:
        run = app.start(close_the_books(7))  # frozen as JSON now; code changes do not affect it
        run.result()
        nodes = run.nodes()
        print(len(nodes), "nodes,", sum(node.state == "completed" for node in nodes), "completed")
        print(NOTICES[-1])
        print(run.to_mermaid())  # folds the two hundred nodes into one


if __name__ == "__main__":
    main(database_url())
