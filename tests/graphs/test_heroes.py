"""Heroes that are SQLAlchemy models work without being registered."""

from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import orm

import detent
from detent import AlreadyRunning, step
from detent.app.models import _engine
from tests.functions.world import Apps, result, wait_for


class Base(orm.DeclarativeBase):
    pass


class Customer(Base):
    __tablename__ = "customers_of_tests"
    id: orm.Mapped[int] = orm.mapped_column(primary_key=True)
    name: orm.Mapped[str] = orm.mapped_column(sqlalchemy.String(50))


class Greeting(detent.Workflow):
    hero: Customer

    @step
    def greet(self) -> str:
        return f"hello {self.hero.name}"


@pytest.fixture
def customers(url: str) -> Any:
    engine = _engine(url)
    Base.metadata.create_all(engine)
    yield engine
    Base.metadata.drop_all(engine)


def stored(engine: Any, name: str) -> Customer:
    with orm.Session(engine, expire_on_commit=False) as session:
        customer = Customer(name=name)
        session.add(customer)
        session.commit()
        return customer


def test_a_model_is_named_and_loaded_again(apps: Apps, customers: Any) -> None:
    app = apps(Greeting)
    run = app.options(hero=stored(customers, "Ada")).start(Greeting)
    assert result(run) == "hello Ada"


def test_a_model_that_is_gone_cancels_its_run(apps: Apps, customers: Any) -> None:
    app = apps(Greeting)
    ada = stored(customers, "Ada")
    with orm.Session(customers) as session:
        session.delete(session.get(Customer, ada.id))
        session.commit()
    run = app.options(hero=ada).start(Greeting)
    wait_for(run, "canceled")
    assert run.nodes()[0].outcome == "canceled_by_missing_hero"


def test_one_active_run_per_model(apps: Apps, customers: Any) -> None:
    app = apps(Greeting, worker=False)
    ada, bob = stored(customers, "Ada"), stored(customers, "Bob")
    first = app.options(hero=ada).start(Greeting)
    app.options(hero=bob).start(Greeting)
    with pytest.raises(AlreadyRunning) as caught:
        app.options(hero=ada).start(Greeting)
    assert caught.value.run_id == first.id
