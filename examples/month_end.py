"""A template, workflows as nodes, and a run that waits for another run."""

import detent
from detent import step, task, workflow
from running import database_url, show

# A stand-in for your database.
INVOICES: dict[int, list[int]] = {}
DONE: list[str] = []


@step
def collect_invoices(user_id: int) -> list[int]:
    return INVOICES[user_id]


@step
def send_statement(user_id: int, total: int, audited: str) -> str:
    DONE.append(f"statement for {user_id}")
    return f"user {user_id} owes {total}, {audited}"


@step
def add_up(amounts: list[int]) -> int:
    return sum(amounts)


@workflow
def total_of(amounts: list[int]) -> int:
    """A durable function: as a node it is a child run."""
    return add_up(amounts)


class Audit(detent.Workflow):
    """A workflow class: as a node it is a child run too."""

    user_id: int

    @step
    def look(self) -> None:
        DONE.append(f"looked at {self.user_id}")

    @task(depends_on=look)
    def sign(self) -> None:
        DONE.append(f"signed for {self.user_id}")
        self.finished("audited")  # the result of the run


@step
def close_year(year: int) -> str:
    DONE.append(f"closed {year}")
    return f"{year} is closed"


@detent.template
def month_end(g: detent.Graph, user_id: int) -> None:
    """A graph with a parameter: `app.start(month_end, user_id=7)` builds and freezes it."""
    invoices = g.node("invoices", job=collect_invoices, args={"user_id": user_id})
    total = g.node("total", job=total_of, args={"amounts": invoices.output})
    audit = g.node("audit", job=Audit, args={"user_id": user_id}, depends_on=None)
    statement = g.node(
        "statement",
        job=send_statement,
        args={"user_id": user_id, "total": total.output, "audited": audit.output},
    )
    g.result(statement.output)


def year_end(year: int, months: list[detent.Run[str]]) -> detent.Graph:
    """A graph that starts when other runs have finished."""
    g = detent.Graph("year-end")
    g.node("close", job=close_year, args={"year": year}, depends_on=months)
    return g


def make_app(url: str) -> detent.App:
    return detent.App(url, include=[month_end, total_of, Audit, close_year], migrate=True)


def main(url: str) -> None:
    INVOICES.update({7: [10, 20], 8: [5]})
    with make_app(url) as app:
        months = [app.start(month_end, user_id=id) for id in INVOICES]
        year = app.start(year_end(2030, months))
        print(year.result())
        for run in months:
            print(run.result())
            show(run)
        show(year)


if __name__ == "__main__":
    main(database_url())
