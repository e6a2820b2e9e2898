"""The ASGI application: routes, and what every request has to pass.

1. A body that is too large is refused before it is read.
2. The caller is known, or gets the login page (pages) or 401 (API).
3. Whatever changes something needs the role operator, a request from our own pages, and a CSRF token.
4. Every answer carries the headers that keep a browser from running or showing anything else.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route, compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from ..errors import (
    DatabaseUnavailable,
    DetentError,
    RunNotFound,
    ScheduleConflict,
    UnknownDefinition,
    UnknownQueue,
    UnknownSchedule,
)
from . import access
from .access import Access, Caller, same_origin
from .actions import ACTIONS, act, bulk_walk
from .api import Api
from .documents.runs import BadFilter
from .documents.source import Source
from .feed import Feed, TooManyViewers
from .forms import REASON, Action, BadAction
from .headers import PAGE_HEADERS, answer_headers
from .pages import PAGES, Desk, Page, View
from .rendering import HERE, STATIC, Links, Parts, Renderer

log = logging.getLogger("detent.dashboard")
LARGEST_BODY = 256 * 1024
LONGEST_QUERY = 8 * 1024


# The page that an action begins on, where that is not a run.
PLACES = {
    "run": "runs",
    "step": "runs",
    "runs": "runs",
    "letter": "deciders",
    "decider": "deciders",
    "projection": "projections",
    "queue": "queues",
    "schedule": "schedules",
    "worker": "workers",
}


class Watched(NamedTuple):
    """A page as the feed knows it: everything that its rendering depends on."""

    root: str
    path: str
    query: tuple[tuple[str, str], ...]
    may_act: bool


class Refused(Exception):
    """A request that gets no further."""

    def __init__(self, status: int, title: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.title = title
        self.message = message


class Site:
    """One dashboard."""

    def __init__(self, source: Source, rules: Access, *, label: str) -> None:
        self.source = source
        self.rules = rules
        self.label = label
        self.desk = Desk(source)
        self.renderer = Renderer()
        self.feed: Feed[Watched] = Feed(self._render_watched, source.engine.follow)
        self._files = {name: (HERE / "static" / name).read_bytes() for name in STATIC}
        self._patterns = [(page, *compile_path(page.path)) for page in PAGES]

    def application(self) -> ASGIApp:
        """The routes, behind the limits."""
        routes = [Route(page.path, self._page(page), methods=["GET"]) for page in PAGES]
        routes += [
            Route("/live", self._guarded(self._live), methods=["GET"]),
            Route("/act/{verb}", self._guarded(self._form), methods=["GET"]),
            Route("/act/{verb}", self._guarded(self._perform), methods=["POST"]),
            Route("/login", self._login_form, methods=["GET"]),
            Route("/login", self._login, methods=["POST"]),
            Route("/logout", self._guarded(self._logout), methods=["POST"]),
            Route("/static/{name}", self._static, methods=["GET"]),
            *Api(self.source, self.desk, self.rules).routes(),
        ]
        site = Starlette(
            routes=routes,
            exception_handlers={404: self._not_found, 405: self._not_found, Exception: self._broken},
        )
        return Limits(site)

    # Every request

    def _guarded(self, handler: Callable[[Request, Caller], Awaitable[Response]]) -> Any:
        async def endpoint(request: Request) -> Response:
            try:
                caller = await self.rules.caller(request)
                if caller is None:
                    return self._unknown(request)
                return await handler(request, caller)
            except Refused as refused:
                return self._message(request, refused.status, refused.title, refused.message)
            except ClientDisconnect:
                return Response(status_code=400)
            except Exception as error:
                return self._failed(request, error)

        return endpoint

    def _failed(self, request: Request, error: Exception) -> Response:
        match error:
            case RunNotFound() | UnknownDefinition() | UnknownQueue() | UnknownSchedule():
                return self._message(request, 404, "Not found", str(error))
            case DatabaseUnavailable():
                return self._message(request, 503, "The database does not answer", str(error))
            case BadFilter() | BadAction() | DetentError():
                return self._message(
                    request, 409 if isinstance(error, DetentError) else 400, "Refused", str(error)
                )
        log.exception("a page failed: %s", request.url.path)
        return self._message(request, 500, "This page failed", "The log of the dashboard says why.")

    def _unknown(self, request: Request) -> Response:
        """A caller without rights: to the login, where there is one."""
        if not self.rules.has_login:
            text = (
                "This dashboard answers only to this machine. To open it to others, give it a token "
                "(detent dashboard APP --token …) or the authentication of your application."
            )
            return self._message(request, 403, "Not here", text)
        return RedirectResponse(f"{root_of(request)}/login", 303, PAGE_HEADERS)

    async def _not_found(self, request: Request, error: Exception) -> Response:
        return self._message(
            request, getattr(error, "status_code", 404), "Not found", "There is no such page."
        )

    async def _broken(self, request: Request, error: Exception) -> Response:
        return self._failed(request, error)

    # Pages

    def _page(self, page: Page) -> Any:
        async def handler(request: Request, caller: Caller) -> Response:
            query = {**dict(request.query_params), **request.path_params}
            view = await run_in_threadpool(page.build, self.desk, query)
            html, _ = await run_in_threadpool(self._render, page, view, query, caller, root_of(request))
            return Response(html, media_type="text/html", headers=PAGE_HEADERS)

        return self._guarded(handler)

    def _render(
        self, page: Page, view: View, query: Mapping[str, str], caller: Caller, root: str
    ) -> tuple[str, Parts]:
        common = self._common(caller, root, section=page.section, title=view.title)
        action = ACTIONS.get(query.get("done", ""))
        context = {
            **common,
            "live_page": True,
            "done": action.done if action is not None else "",
            "actions": ACTIONS,
            "query": query,
            **view.context,
        }
        return self.renderer.page(view.template, context, root=root, now=self.source.now())

    def _common(self, caller: Caller | None, root: str, *, section: str, title: str) -> dict[str, Any]:
        return {
            "title": title,
            "section": section,
            "navigation": [(page.path.lstrip("/"), page.nav, page.section) for page in PAGES if page.nav],
            "label": self.label,
            "viewer": caller,
            "csrf": "" if caller is None else self.rules.csrf(caller),
            "has_login": self.rules.has_login,
            "live_page": False,
        }

    def _message(self, request: Request, status: int, title: str, message: str) -> Response:
        common = self._common(None, root_of(request), section="", title=title)
        html, _ = self.renderer.page(
            "message.html", {**common, "message": message}, root=root_of(request), now=self.source.now()
        )
        return Response(html, status, media_type="text/html", headers=PAGE_HEADERS)

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in STATIC:
            return self._message(request, 404, "Not found", "There is no such file.")
        headers = answer_headers("public, max-age=31536000, immutable")
        return Response(self._files[name], media_type=STATIC[name], headers=headers)

    # Live updates

    async def _live(self, request: Request, caller: Caller) -> Response:
        parts = urlsplit(request.query_params.get("page", "/"))
        query = tuple(sorted(parse_qsl(parts.query, keep_blank_values=True, max_num_fields=40)))
        watched = Watched(root_of(request), parts.path or "/", query, caller.may_act)
        if parts.scheme or parts.netloc or self._match(watched.path) is None:
            raise Refused(404, "Not found", "There is no such page.")
        stream = self.feed.watch(watched, request.query_params.get("version", ""))
        try:
            first = await anext(stream)
        except TooManyViewers:
            return Response("too many viewers", 503, PAGE_HEADERS)

        async def body() -> AsyncIterator[Any]:
            yield first
            async for message in stream:
                yield message

        headers = {**PAGE_HEADERS, "X-Accel-Buffering": "no"}
        return StreamingResponse(body(), media_type="text/event-stream", headers=headers)

    def _match(self, path: str) -> tuple[Page, dict[str, str]] | None:
        for page, regex, _, convertors in self._patterns:
            found = regex.match(path)
            if found is not None:
                return page, {k: convertors[k].convert(v) for k, v in found.groupdict().items()}
        return None

    def _render_watched(self, watched: Watched) -> Parts:
        matched = self._match(watched.path)
        assert matched is not None
        page, params = matched
        query = {**dict(watched.query), **params}
        view = page.build(self.desk, query)
        identity = access.Identity("viewer", "operator" if watched.may_act else "viewer")
        # Live parts contain no CSRF token and no name: all viewers with the same rights share them.
        _, parts = self._render(page, view, query, Caller(identity, "session"), watched.root)
        return parts

    # Actions

    async def _form(self, request: Request, caller: Caller) -> Response:
        action = self._action(request, caller)
        values = dict(request.query_params)
        if action.present is not None:
            values = {**await run_in_threadpool(action.present, self.source, values), **values}
        shown = None
        if action.preview is not None and values.get("preview"):
            try:
                shown = await run_in_threadpool(action.preview, self.source, values)
            except BadAction as error:
                return await self._show_form(request, caller, action, values, problem=error, status=400)
        return await self._show_form(request, caller, action, values, preview=shown)

    async def _show_form(
        self,
        request: Request,
        caller: Caller,
        action: Action,
        values: Mapping[str, str],
        *,
        problem: Exception | None = None,
        status: int = 200,
        preview: Mapping[str, Any] | None = None,
    ) -> Response:
        root = root_of(request)
        place = PLACES[action.target]
        common = self._common(caller, root, section=place, title=action.title)
        context = {
            **common,
            "action": action,
            "values": values,
            "problem": "" if problem is None else str(problem),
            "problem_field": _field_of(problem),
            "preview": preview,
            "reason": REASON,
            "number": None,
            "place": place,
            "fields": await run_in_threadpool(action.fields_for, self.source, values),
        }
        if action.target == "runs" and problem is None:
            context["number"] = await run_in_threadpool(self._number, action, values)
        html, _ = self.renderer.page("action.html", context, root=root, now=self.source.now())
        return Response(html, status, media_type="text/html", headers=PAGE_HEADERS)

    def _number(self, action: Action, values: Mapping[str, str]) -> int:
        """How many runs a bulk action is about."""
        walk, number = bulk_walk(self.source, action.verb, values), 0
        while not walk.over:
            number += len(walk.next_page())
        return number

    async def _perform(self, request: Request, caller: Caller) -> Response:
        action = self._action(request, caller)
        form = await _form_of(request)
        self._check_csrf(request, caller, form.get("csrf", ""))
        name = caller.identity.name
        try:
            if action.preview is not None and form.get("preview"):
                shown = await run_in_threadpool(action.preview, self.source, form)
                return await self._show_form(request, caller, action, form, preview=shown)
            done = await run_in_threadpool(
                act, self.source, action, form, name=name, reason=form.get("reason", "")
            )
        except (BadAction, BadFilter) as error:
            return await self._show_form(request, caller, action, form, problem=error, status=400)
        except DetentError as error:
            return await self._show_form(request, caller, action, form, problem=error, status=409)
        return RedirectResponse(self._behind(request, action, form, done), 303, PAGE_HEADERS)

    def _behind(
        self, request: Request, action: Action, form: Mapping[str, str], done: Mapping[str, Any]
    ) -> str:
        """The page to show after an action."""
        links = Links(root_of(request))
        if action.target in ("run", "step") or "run" in done:
            return links.run(done["run"], done=action.verb)
        if action.target == "runs":
            return links.to("runs", changed=done["changed"], refused=len(done["refused"]))
        if action.target == "schedule" and done["schedule"] is not None:
            return links.to("schedule", name=done["schedule"], done=action.verb)
        return links.to(PLACES[action.target], done=action.verb)

    def _action(self, request: Request, caller: Caller) -> Action:
        action = ACTIONS.get(request.path_params["verb"])
        if action is None:
            raise Refused(404, "Not found", "There is no such action.")
        if not caller.may_act:
            raise Refused(403, "You may only look", "To act, log in with the token of an operator.")
        return action

    def _check_csrf(self, request: Request, caller: Caller, given: str) -> None:
        if not same_origin(request) or not self.rules.csrf_holds(caller, given):
            raise Refused(
                403, "This form is too old", "Open the page again, and repeat what you wanted to do."
            )

    # Sessions

    async def _login_form(self, request: Request) -> Response:
        return await self._show_login(request, "")

    async def _show_login(self, request: Request, problem: str, status: int = 200) -> Response:
        if not self.rules.has_login:
            return self._message(request, 404, "No login", "This dashboard was started without a token.")
        root = root_of(request)
        context = {**self._common(None, root, section="", title="Log in"), "problem": problem}
        html, _ = self.renderer.page("login.html", context, root=root, now=self.source.now())
        return Response(html, status, media_type="text/html", headers=PAGE_HEADERS)

    async def _login(self, request: Request) -> Response:
        if not self.rules.has_login:
            return await self._show_login(request, "")
        if not same_origin(request):
            return self._message(request, 403, "Refused", "This form was sent by another site.")
        if self.rules.throttled:
            return await self._show_login(request, "Too many wrong tokens. Wait a minute.", 429)
        try:
            form = await _form_of(request)
        except Refused as refused:
            return self._message(request, refused.status, refused.title, refused.message)
        role = self.rules.role_of(form.get("token", ""))
        name = form.get("name", "").strip()[:200] or role or ""
        if role is None:
            self.rules.failed()
            return await self._show_login(request, "This token is not known.", 403)
        answer = RedirectResponse(f"{root_of(request)}/", 303, PAGE_HEADERS)
        answer.set_cookie(
            access.SESSION,
            self.rules.session_cookie(name, role),
            max_age=access.SESSION_SECONDS,
            path=root_of(request) or "/",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return answer

    async def _logout(self, request: Request, caller: Caller) -> Response:
        form = await _form_of(request)
        self._check_csrf(request, caller, form.get("csrf", ""))
        answer = RedirectResponse(f"{root_of(request)}/", 303, PAGE_HEADERS)
        answer.delete_cookie(access.SESSION, path=root_of(request) or "/", httponly=True, samesite="strict")
        return answer


def root_of(request: Request) -> str:
    """The path that the dashboard is mounted at."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def _field_of(problem: Exception | None) -> str:
    """The field of the form that an error is about; empty if it is about no single one."""
    match problem:
        case BadAction():
            return problem.field
        case ScheduleConflict():
            return "name"
    return ""


async def _form_of(request: Request) -> dict[str, str]:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise Refused(415, "Refused", "A form is sent as application/x-www-form-urlencoded.")
    body = await request.body()
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=40))
    except ValueError:
        raise Refused(400, "Refused", "This form cannot be read.") from None


class Limits:
    """Refuses what is too large, before anything else looks at it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1000})
            else:
                await self._app(scope, receive, send)
            return
        if len(scope.get("query_string", b"")) > LONGEST_QUERY:
            await Response("the address is too long", 414, PAGE_HEADERS)(scope, receive, send)
            return
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if not length.isdigit() or int(length) > LARGEST_BODY:
            await Response("the body is too large", 413, PAGE_HEADERS)(scope, receive, send)
            return
        read = 0

        async def counted() -> Any:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > LARGEST_BODY:  # it had no length, or a wrong one
                return {"type": "http.disconnect"}
            return message

        await self._app(scope, counted, send)
