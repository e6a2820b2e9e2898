"""Every page with data and without; filters in the URL; what each page shows."""

from __future__ import annotations

import pytest

import detent
from detent.testing import TestingApp
from tests.dashboard.client import Client
from tests.dashboard.world import Account, Close, Onboard, Open, fulfil, parent, parrot

PAGES = ("/", "/runs", "/deciders", "/projections", "/queues", "/schedules", "/workers")


def reader(app: detent.App) -> Client:
    return Client(detent.dashboard(app))


@pytest.mark.parametrize("path", PAGES)
def test_a_page_without_data_says_what_would_be_there(small: TestingApp, path: str) -> None:
    answer = reader(small).get(path)
    assert answer.status_code == 200
    assert "<h1" in answer.text


def test_an_empty_list_of_runs_shows_how_to_start_one(small: TestingApp) -> None:
    text = reader(small).get("/runs").text
    assert "No runs yet" in text
    assert "app.start(" in text


def test_every_page_shows_what_there_is(shop: TestingApp) -> None:
    shop.speedrun(shop.options(id="order-1").start(fulfil, "order-1", 5))
    with pytest.raises(ValueError, match="less than nothing"):
        shop.options(id="order-2").start(fulfil, "order-2", -5).result()
    shop.options(id="order-3").start(fulfil, "order-3", 500)
    shop.options(id="supplier").start(Onboard, name="bad")
    shop.execute(Account, Open("a-1", "nobody"))
    shop.settle_down()
    client = reader(shop)

    overview = client.get("/").text
    assert "dead letter" in overview
    assert "run waiting for" in overview
    runs = client.get("/runs").text
    for words in ("order-1", "waits for the message", "less than nothing", "the sample failed"):
        assert words in runs
    assert "a-1" in client.get("/decider?name=account").text
    assert "nobody is not an address" in client.get("/deciders").text
    assert "count" in client.get("/projections").text
    assert "slots" in client.get("/workers").text
    for tab in ("timeline", "graph", "steps", "messages", "history"):
        assert client.get(f"/runs/order-1?tab={tab}").status_code == 200
        assert client.get(f"/runs/supplier?tab={tab}").status_code == 200


def test_an_instance_shows_its_state_at_any_event(shop: TestingApp) -> None:
    shop.execute(Account, Open("a-1", "ada@example.org"))
    shop.execute(Account, Close("a-1"))
    client = reader(shop)
    assert client.api("instance", decider="account", id="a-1")["state"]["status"] == "closed"
    assert client.api("instance", decider="account", id="a-1", at="1")["state"]["status"] == "open"
    page = client.get("/instance?decider=account&id=a-1&at=1").text
    assert "State after event #1" in page
    assert 'type="range"' in page


def test_runs_are_found_by_filters_in_the_url(shop: TestingApp) -> None:
    shop.options(id="a", hero=("Customer", "7"), attributes={"city": "Oslo"}).start(parrot, "hello")
    shop.options(id="b").start(parrot, "!the bank is closed")
    shop.options(id="c").start(fulfil, "c", 500)
    shop.settle_down()
    client = reader(shop)

    def found(**query: str) -> set[str]:
        return {run["id"] for run in client.api("runs", **query)["runs"]}

    assert found() == {"a", "b", "c"}
    assert found(type="parrot") == {"a", "b"}
    assert found(state="failed") == {"b"}
    assert found(hero="Customer/7") == {"a"}
    assert found(attribute="city=Oslo") == {"a"}
    assert found(q="bank is CLOSED") == {"b"}
    assert found(q="c") == {"c"}  # an id, exactly
    assert found(after="1h") == {"a", "b", "c"}
    assert found(before="1h") == set()
    assert found(queue="other") == set()


def test_a_filter_that_makes_no_sense_says_so(small: TestingApp) -> None:
    client = reader(small)
    for query in ("state=odd", "hero=x", "attribute=x", "after=never", "cursor=nowhere"):
        page = client.get(f"/runs?{query}")
        assert page.status_code in (200, 409), query
        assert 'role="alert"' in page.text or "Refused" in page.text
        assert client.get(f"/api/runs?{query}").status_code in (400, 409), query


def test_pages_follow_each_other_without_a_gap(small: TestingApp) -> None:
    small.start_many(parrot, [(str(n),) for n in range(120)])
    client, seen, cursor = reader(small), [], ""
    while cursor is not None:
        page = client.api("runs", cursor=cursor)
        seen += [run["id"] for run in page["runs"]]
        cursor = page["next"]
    assert len(seen) == len(set(seen)) == 120
    assert 'rel="next"' in client.get("/runs").text


def test_a_run_shows_its_parent_and_its_children(shop: TestingApp) -> None:
    run = shop.options(id="above").start(parent, "x")
    shop.speedrun(run)
    client = reader(shop)
    [child] = client.api("run", id="above")["children"]
    assert child["phase"] == "finished"
    page = client.get(f"/run?id={child['id']}").text
    assert "above" in page
    assert {one["id"] for one in client.api("runs", parent="above")["runs"]} == {child["id"]}


def test_a_steps_arguments_have_the_names_of_its_parameters(shop: TestingApp) -> None:
    shop.speedrun(shop.options(id="order").start(fulfil, "order", 5))
    steps = {one["node"]: one for one in reader(shop).api("run/steps", id="order")["steps"]}
    assert steps["charge"]["input"] == {"card": "4111-1111", "euros": 5}
    assert steps["charge"]["result"] == "receipt for 5"


def test_a_failed_step_has_its_traceback(shop: TestingApp) -> None:
    shop.options(id="order").start(fulfil, "order", -1)
    shop.settle_down()
    page = reader(shop).get("/runs/order?tab=steps").text
    assert "Traceback" in page
    assert "is less than nothing" in page
    assert "world.py" in page


def test_messages_and_published_values_are_listed(shop: TestingApp) -> None:
    run = shop.options(id="order").start(fulfil, "order", 500)
    shop.settle_down()
    run.send("approval", {"by": "ada"})
    shop.settle_down()
    found = reader(shop).api("run/messages", id="order")
    assert found["messages"][0]["value"] == {"by": "ada"}
    assert found["messages"][0]["received"]
    assert found["published"][0]["name"] == "progress"


def test_a_run_that_is_not_there_is_not_found(small: TestingApp) -> None:
    client = reader(small)
    assert client.get("/runs/nothing").status_code == 404
    assert client.get("/api/run?id=nothing").status_code == 404
    assert client.get("/decider?name=nothing").status_code == 404
    assert client.get("/nothing").status_code == 404


def test_a_run_without_a_worker_says_so(url: str) -> None:
    app = detent.App(url, include=[parrot]).open()
    try:
        app.options(id="alone").start(parrot, "x")
        assert "no worker is alive" in reader(app).get("/runs/alone").text
    finally:
        app.close()


def test_the_api_is_described_by_its_openapi_document(small: TestingApp) -> None:
    document = reader(small).api("openapi.json")
    assert document["openapi"].startswith("3.")
    for path, methods in document["paths"].items():
        for method in methods:
            answer = reader(small).request(method.upper(), f"/api{path}")
            assert answer.status_code != 404 or "id" in str(methods), path


def test_the_overview_counts_what_ended_by_minute(small: TestingApp) -> None:
    client = reader(small)
    small.speedrun(small.start(parrot, "x"))
    assert client.api("overview")["ended_last_hour"] == 1
    small.advance(minutes=5)
    small.speedrun(small.start(parrot, "y"))
    overview = client.api("overview")
    assert [n for n in overview["per_minute"] if n] == [1, 1]
    assert overview["latency"][0]["type"] == "parrot"
    assert [one["queue"] for one in overview["latency_by_queue"]] == ["default"]
    small.advance(hours=2)
    assert client.api("overview")["ended_last_hour"] == 0


def test_a_mounted_dashboard_links_below_its_path(small: TestingApp) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    small.options(id="one").start(parrot, "x")
    host = Starlette(routes=[Mount("/admin/detent", app=detent.dashboard(small))])
    page = Client(host).get("/admin/detent/runs").text
    assert 'href="/admin/detent/runs/one"' in page
    assert 'href="/runs' not in page
    assert Client(host).get("/admin/detent/static/detent.css").status_code == 200


def test_overdue_runs_are_listed_newest_first_however_many_there_are(shop: TestingApp) -> None:
    """Many fill a page from the newest active runs; few are found by what is due."""
    shop.queues["default"].pause("closed")
    late = [shop.options(id=f"late-{number:03}").start(parrot, "x").id for number in range(60)]
    shop.advance(seconds=90)
    shop.options(id="new").start(parrot, "x")
    client = Client(detent.dashboard(shop))
    first = client.api("runs", overdue="1")
    rest = client.api("runs", overdue="1", cursor=first["next"])
    assert sorted(run["id"] for run in (*first["runs"], *rest["runs"])) == late
    assert (len(first["runs"]), len(rest["runs"]), rest["next"]) == (50, 10, None)


def test_the_versions_of_a_run_and_of_a_worker_are_shown(url: str) -> None:
    with TestingApp(url, include=[parrot], version="2026-11-16") as app:
        app.speedrun(app.options(id="one").start(parrot, "x"))
        client = Client(detent.dashboard(app))
        document = client.api("run", id="one")
        assert (document["versions"], document["pinned_to"]) == (["2026-11-16"], None)
        assert [one["version"] for one in client.api("workers")["workers"]] == ["2026-11-16"]
        assert "2026-11-16" in client.get("/runs/one").text
        assert "2026-11-16" in client.get("/workers").text
