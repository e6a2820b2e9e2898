"""The JSON API: what the pages show and do, with the same rights.

Reads are GET, actions are POST with a JSON object.  A script shows its token (`Authorization: Bearer …`); a
page of the dashboard shows its session and sends the CSRF token in `X-CSRF-Token`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from ..errors import (
    DatabaseUnavailable,
    DetentError,
    RunNotFound,
    UnknownDefinition,
    UnknownQueue,
    UnknownSchedule,
)
from .access import Access, Caller, same_origin
from .actions import ACTIONS, act
from .documents import deciders, drawings, overview, projections, queues, run, runs, schedules, workers
from .documents.runs import BadFilter
from .documents.source import Document, Source
from .forms import BadAction
from .headers import PAGE_HEADERS
from .openapi import Parameter, Read, document
from .pages import Desk
from .schedule_forms import SHOWN, TIMING, preview

log = logging.getLogger("detent.dashboard")
Query = Mapping[str, str]
_RUN = (Parameter("id", "The id of the run.", required=True),)
_FILTERS = tuple(Parameter(name, text) for name, text in {
    "q": "Part of an id, a type or an error.",
    "type": "The name of the workflow or decider.",
    "state": "ready, performing, paused, finished, failed, canceled, or active.",
    "hero": "TYPE/ID.",
    "queue": "The name of the queue.",
    "attribute": "NAME=VALUE.",
    "parent": "The id of the parent.",
    "after": "Created then or later: 30m, 2h, 7d, or ISO 8601.",
    "before": "Created earlier.",
    "overdue": "1: due for more than a minute, and not begun.",
    "drifted": "1: the code asked for other steps than recorded.",
    "cursor": "`next` of the page before.",
}.items())  # fmt: skip


class ApiError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Api:
    """The routes under /api."""

    def __init__(self, source: Source, desk: Desk, rules: Access) -> None:
        self.source = source
        self.desk = desk
        self.rules = rules
        self.reads = (*self._reads_of_runs(), *self._reads_of_deciders(), *self._reads_of_work())

    def routes(self) -> list[Route]:
        found = [
            Route(f"/api{one.path}", self._guarded(self._reader(one)), methods=["GET"]) for one in self.reads
        ]
        found.append(Route("/api/openapi.json", self._guarded(self._openapi), methods=["GET"]))
        found.append(Route("/api/actions/{verb}", self._guarded(self._act), methods=["POST"]))
        return found

    def _reads_of_runs(self) -> tuple[Read, ...]:
        source = self.source
        return (
            Read("/overview", "Counts, failures, what needs a person, throughput.", (), self._overview),
            Read("/runs", "Runs, newest first, 50 at a time.", _FILTERS, self._runs),
            Read("/run", "One run.", _RUN, lambda query: run.run_header(source, self._row(query))),
            Read(
                "/run/steps", "Attempts and steps, with payloads.",
                (*_RUN, Parameter("page", "From 1.")), self._steps,
            ),
            Read("/run/graph", "The graph, laid out.", _RUN, self._graph),
            Read("/run/timeline", "Attempts over time.", _RUN, self._timeline),
            Read("/run/messages", "Messages to the run.", _RUN, self._messages),
            Read(
                "/run/streams", "Streams of the run; with `name`, the entries of one of them, 100 at a time.",
                (*_RUN, Parameter("name", "A stream."), Parameter("after", "`next` of the page before.")),
                self._streams,
            ),
            Read(
                "/run/history", "What happened, newest first.", _RUN,
                lambda query: {"history": run.history(source, self._row(query))},
            ),
        )  # fmt: skip

    def _reads_of_deciders(self) -> tuple[Read, ...]:
        source = self.source
        return (
            Read(
                "/deciders", "The deciders of the app.", (),
                lambda query: deciders.decider_documents(source),
            ),
            Read(
                "/decider", "One decider: instances and state machine.",
                (Parameter("name", "Its name.", required=True), Parameter("cursor", "`next` of a page.")),
                self._decider,
            ),
            Read(
                "/instance", "An instance: state, events, timers, effects.",
                (
                    Parameter("decider", "The decider.", required=True),
                    Parameter("id", "The instance.", required=True),
                    Parameter("at", "The state after this event."),
                ),
                self._instance,
            ),
            Read(
                "/dead-letters", "Effects, timers and inboxes that were given up.",
                (Parameter("decider", "Only those of this decider."),),
                self._letters,
            ),
            Read(
                "/projections", "How far each projection has come.", (),
                lambda query: projections.projection_documents(source),
            ),
        )  # fmt: skip

    def _reads_of_work(self) -> tuple[Read, ...]:
        """Queues, schedules and workers."""
        source = self.source
        return (
            Read(
                "/queues", "Queues: limits, what executes and waits, by key.", (),
                lambda query: queues.queue_documents(source),
            ),
            Read(
                "/schedules", "Schedules: next firings, last runs.",
                (Parameter("after", "`next` of the page before."),),
                lambda query: schedules.schedule_documents(source, after=query.get("after", "")),
            ),
            Read(
                "/schedule", "One schedule: next firings, runs, history.",
                (Parameter("name", "Its name.", required=True),),
                lambda query: schedules.schedule_document(source, _needed(query, "name")),
            ),
            Read(
                "/schedule/preview", f"The next {SHOWN} firings of a timing that is not stored.",
                tuple(Parameter(field.name, field.hint or field.label) for field in TIMING),
                lambda query: preview(source, query),
            ),
            Read(
                "/workers", "Workers, and what they execute.", (),
                lambda query: workers.worker_documents(source, executions=True),
            ),
        )  # fmt: skip

    # Reads

    def _row(self, query: Query) -> Any:
        return self.source.engine.row(_needed(query, "id"))

    def _overview(self, query: Query) -> Document:
        return overview.overview(self.source, self.desk.minutes)

    def _runs(self, query: Query) -> Document:
        return runs.list_runs(self.source, runs.RunFilters.of(query))

    def _steps(self, query: Query) -> Document:
        row = self._row(query)
        return run.steps_page(self.source, run.executions(self.source, row), _whole(query, "page") or 1)

    def _graph(self, query: Query) -> Document:
        row = self._row(query)
        return drawings.graph_document(self.source, row, run.executions(self.source, row))

    def _timeline(self, query: Query) -> Document:
        row = self._row(query)
        return drawings.timeline_document(self.source, row, run.executions(self.source, row))

    def _messages(self, query: Query) -> Document:
        row = self._row(query)
        return {"messages": run.messages(self.source, row.id), "published": run.published(self.source, row)}

    def _streams(self, query: Query) -> Document:
        row = self._row(query)
        if query.get("name"):
            return run.stream_page(self.source, row.id, query["name"], after=_whole(query, "after") or 0)
        return {"streams": run.streams(self.source, row)["streams"]}

    def _decider(self, query: Query) -> Document:
        return deciders.decider_document(self.source, _needed(query, "name"), cursor=query.get("cursor"))

    def _letters(self, query: Query) -> Document:
        return {"dead_letters": deciders.letter_documents(self.source, query.get("decider") or None)}

    def _instance(self, query: Query) -> Document:
        decider, id = _needed(query, "decider"), _needed(query, "id")
        return deciders.instance_document(self.source, decider, id, at=_whole(query, "at"))

    # Requests

    def _guarded(self, handler: Callable[[Request, Caller], Any]) -> Any:
        async def endpoint(request: Request) -> Response:
            try:
                caller = await self.rules.caller(request)
                if caller is None:
                    raise ApiError(401, "show a token: Authorization: Bearer TOKEN")
                return _answer(200, await handler(request, caller))
            except ClientDisconnect:
                return Response(status_code=400)
            except Exception as error:
                body = {"error": type(error).__name__, "message": _message(error)}
                if isinstance(error, BadAction) and error.field:
                    body["field"] = error.field
                return _answer(_status(error, request), body)

        return endpoint

    def _reader(self, read: Read) -> Callable[[Request, Caller], Any]:
        async def handler(request: Request, caller: Caller) -> Any:
            return await run_in_threadpool(read.function, dict(request.query_params))

        return handler

    async def _openapi(self, request: Request, caller: Caller) -> Any:
        root = str(request.scope.get("root_path", "")).rstrip("/")
        return document(self.reads, ACTIONS.values(), f"{root}/api")

    async def _act(self, request: Request, caller: Caller) -> Any:
        action = ACTIONS.get(request.path_params["verb"])
        if action is None:
            raise ApiError(404, "there is no such action")
        if not caller.may_act:
            raise ApiError(403, "only an operator may act")
        if not same_origin(request) or not self.rules.csrf_holds(
            caller, request.headers.get("x-csrf-token", "")
        ):
            raise ApiError(403, "the CSRF token is missing or stale")
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise ApiError(415, "send application/json")
        try:
            body = msgspec.json.decode(await request.body(), type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise ApiError(400, f"the body is not a JSON object: {error}") from None
        unknown = body.keys() - {*action.names, "reason"}
        if unknown:
            raise ApiError(400, f"unknown fields: {', '.join(sorted(unknown))}")
        kinds = {field.name: field.kind for field in action.fields}
        values = {name: _text(kinds.get(name, "text"), name, value) for name, value in body.items()}
        name = caller.identity.name
        return await run_in_threadpool(
            act, self.source, action, values, name=name, reason=values.get("reason", "")
        )


def _text(kind: str, name: str, value: Any) -> str:
    """A field of an action as its form has it; a limit may be a number, a flag or null."""
    if kind == "json":
        return msgspec.json.encode(value).decode()
    if kind == "limit":
        match value:
            case None:
                return ""
            case bool():
                return "yes" if value else "no"
            case int():
                return str(value)
    if not isinstance(value, str):
        raise ApiError(400, f"{name} must be a text")
    return value


def _needed(query: Query, name: str) -> str:
    if not query.get(name):
        raise ApiError(400, f"the parameter {name} is missing")
    return query[name]


def _whole(query: Query, name: str) -> int | None:
    text = query.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ApiError(400, f"{name} must be a whole number")
    return int(text)


def _status(error: Exception, request: Request) -> int:
    match error:
        case ApiError():
            return error.status
        case RunNotFound() | UnknownDefinition() | UnknownQueue() | UnknownSchedule():
            return 404
        case BadFilter() | BadAction():
            return 400
        case DatabaseUnavailable():
            return 503
        case DetentError():
            return 409
    log.exception("a request of the API failed: %s", request.url.path)
    return 500


def _message(error: Exception) -> str:
    known = isinstance(error, ApiError | BadFilter | BadAction | DetentError)
    return str(error) if known else "the log of the dashboard says why"


def _answer(status: int, body: Any) -> Response:
    return Response(
        msgspec.json.encode(body, enc_hook=str), status, media_type="application/json", headers=PAGE_HEADERS
    )
