"""A browser without a screen: requests to a dashboard inside this process, with cookies."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import urlencode

import httpx

TOKEN = "an-operator-token-1"
VIEWER_TOKEN = "a-viewer-token-123"


class Client:
    """Keeps cookies, as a browser does."""

    def __init__(
        self, site: Any, *, host: str = "localhost", address: str = "127.0.0.1", scheme: str = "http"
    ):
        self._site = site
        self._base = f"{scheme}://{host}"
        self._address = address
        self.cookies: dict[str, str] = {}

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(
                app=self._site, client=(self._address, 50_000), raise_app_exceptions=False
            )
            async with httpx.AsyncClient(
                transport=transport, base_url=self._base, cookies=self.cookies
            ) as client:
                answer = await client.request(method, path, **options)
                for header in answer.headers.get_list("set-cookie"):
                    for name, cookie in SimpleCookie(header).items():
                        self.cookies.pop(name, None)
                        if cookie["max-age"] != "0":
                            self.cookies[name] = cookie.value
                return answer

        return asyncio.run(ask())

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, form: Mapping[str, str], **options: Any) -> httpx.Response:
        headers = {"content-type": "application/x-www-form-urlencoded", **options.pop("headers", {})}
        return self.request("POST", path, content=urlencode(form), headers=headers, **options)

    def login(self, token: str = TOKEN, name: str = "ada") -> httpx.Response:
        return self.post("/login", {"name": name, "token": token})

    def act(self, verb: str, reason: str = "because", **fields: str) -> httpx.Response:
        """Open the form of an action, fill it in, and send it."""
        form = self.get(f"/act/{verb}?{urlencode(fields)}")
        assert form.status_code == 200, form.text
        return self.post(f"/act/{verb}", {**fields, "reason": reason, "csrf": csrf_of(form.text)})

    def api(self, path: str, **query: str) -> Any:
        answer = self.get(f"/api/{path}?{urlencode(query)}")
        assert answer.status_code == 200, answer.text
        return answer.json()


def csrf_of(html: str) -> str:
    """The token in a form."""
    found = re.search(r'name="csrf" value="([^"]+)"', html)
    assert found is not None
    return found[1]
