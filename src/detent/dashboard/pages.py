"""The pages: what stands in the navigation, and what each page reads.

To add a page, write a function that returns a View, and add a line to PAGES.  Its documents come from
`documents/`, so that the API can show the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..kernel.decide import DECIDER
from .documents import deciders, drawings, overview, projections, queues, run, runs, schedules, workers
from .documents.source import Document, Source

Query = Mapping[str, str]


@dataclass(slots=True)
class View:
    """What a page shows."""

    template: str
    title: str
    context: Document = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Page:
    """A page: its path, and where it stands in the navigation."""

    path: str
    build: Callable[[Desk, Query], View]
    section: str
    nav: str = ""  # its words in the navigation; empty: it is reached from another page


class Desk:
    """What pages read from."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.minutes = overview.Minutes()


def overview_page(desk: Desk, query: Query) -> View:
    return View("overview.html", "Overview", {"data": overview.overview(desk.source, desk.minutes)})


def runs_page(desk: Desk, query: Query) -> View:
    asked = runs.RunFilters.of(query)
    context: Document = {"filters": asked.all(), "types": runs.types(desk.source), "problem": ""}
    try:
        context["data"] = runs.list_runs(desk.source, asked)
    except (runs.BadFilter, ValueError) as error:
        context |= {"data": {"runs": [], "next": None, "searched": 0}, "problem": str(error)}
    return View("runs.html", "Runs", context)


TABS = ("timeline", "graph", "steps", "messages", "streams", "history")


def run_page(desk: Desk, query: Query) -> View:
    source = desk.source
    row = source.engine.row(query.get("id", ""))
    tabs = [tab for tab in TABS if tab != "graph" or row.kind != DECIDER]
    tab = query.get("tab", "")
    if tab not in tabs:
        tab = "graph" if row.kind in ("class", "graph") else "timeline"
    items = run.executions(source, row)
    context: Document = {
        "run": run.run_header(source, row),
        "tabs": tabs,
        "tab": tab,
        "steps_total": len(items),
        "selected": _selected(source, items, query.get("node", "")),
        "node": query.get("node", ""),
    }
    if tab == "timeline":
        context["timeline"] = drawings.timeline_document(
            source, row, items, fold_idle=query.get("idle") != "1"
        )
        context["idle"] = query.get("idle") == "1"
    elif tab == "graph":
        context["graph"] = drawings.graph_document(source, row, items)
    elif tab == "steps":
        context["steps"] = run.steps_page(source, items, _page_number(query))
    elif tab == "messages":
        context |= {"messages": run.messages(source, row.id), "published": run.published(source, row)}
    elif tab == "streams":
        context["streams"] = run.streams(source, row, query.get("stream", ""))
    else:
        context["history"] = run.history(source, row)
    return View("run.html", row.id[:80], context)


def _selected(source: Source, items: list[Any], node: str) -> list[Document]:
    """All attempts at the node that is looked at, the latest first."""
    found = [one for one in items if node and node in (one.node_id, one.node)]
    return [run.execution_document(source, one) for one in reversed(found[-20:])]


def _page_number(query: Query) -> int:
    text = query.get("page", "1")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else 1


def deciders_page(desk: Desk, query: Query) -> View:
    context: Document = {
        "data": deciders.decider_documents(desk.source),
        "letters": deciders.letter_documents(desk.source),
    }
    return View("deciders.html", "Deciders", context)


def decider_page(desk: Desk, query: Query) -> View:
    name = query.get("name", "")
    data = deciders.decider_document(desk.source, name, cursor=query.get("cursor"))
    letters = deciders.letter_documents(desk.source, name)
    return View("decider.html", name, {"data": data, "letters": letters})


def instance_page(desk: Desk, query: Query) -> View:
    text = query.get("at", "")
    at = int(text) if text.isascii() and text.isdigit() and len(text) < 12 else None
    data = deciders.instance_document(desk.source, query.get("decider", ""), query.get("id", ""), at=at)
    return View("instance.html", data["instance"][:80], {"data": data, "pinned": at is not None})


def projections_page(desk: Desk, query: Query) -> View:
    return View("projections.html", "Projections", {"data": projections.projection_documents(desk.source)})


def queues_page(desk: Desk, query: Query) -> View:
    return View("queues.html", "Queues", {"data": queues.queue_documents(desk.source)})


def schedules_page(desk: Desk, query: Query) -> View:
    data = schedules.schedule_documents(desk.source, after=query.get("after", ""))
    return View("schedules.html", "Schedules", {"data": data})


def schedule_page(desk: Desk, query: Query) -> View:
    data = schedules.schedule_document(desk.source, query.get("name", ""))
    return View("schedule.html", data["name"][:80], {"data": data, "history": data["history"]})


def workers_page(desk: Desk, query: Query) -> View:
    return View("workers.html", "Workers", {"data": workers.worker_documents(desk.source, executions=True)})


PAGES = (
    Page("/", overview_page, "overview", "Overview"),
    Page("/runs", runs_page, "runs", "Runs"),
    Page("/runs/{id}", run_page, "runs"),
    Page("/run", run_page, "runs"),  # ids that cannot stand in a path
    Page("/deciders", deciders_page, "deciders", "Deciders"),
    Page("/decider", decider_page, "deciders"),
    Page("/instance", instance_page, "deciders"),
    Page("/projections", projections_page, "projections", "Projections"),
    Page("/schedules", schedules_page, "schedules", "Schedules"),
    Page("/schedule", schedule_page, "schedules"),
    Page("/queues", queues_page, "queues", "Queues"),
    Page("/workers", workers_page, "workers", "Workers"),
)
