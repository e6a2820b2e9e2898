"""Security: who gets in, who may act, and what a hostile page or payload cannot do."""

from __future__ import annotations

import hmac
import re
import time
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

import detent
from detent import App
from detent.dashboard import access
from detent.dashboard.access import SESSION, Identity
from detent.dashboard.asgi import LARGEST_BODY
from detent.errors import ConfigurationError, InvalidArgument
from detent.testing import TestingApp
from tests.dashboard.client import TOKEN, VIEWER_TOKEN, Client, csrf_of
from tests.dashboard.conftest import MakeClient, operator
from tests.dashboard.world import fulfil, parrot

CHANGES = (("POST", "/act/pause"), ("POST", "/api/actions/pause"), ("GET", "/act/pause?run=x"))


# -- Without a token -----------------------------------------------------------------------------------


def test_without_a_token_this_machine_may_read_and_never_act(make: MakeClient, small: TestingApp) -> None:
    client = Client(detent.dashboard(small))
    assert client.get("/").status_code == 200
    assert "Pause" not in client.get("/runs").text
    for method, path in CHANGES:
        assert client.request(method, path).status_code in (401, 403)


@pytest.mark.parametrize(
    "place",
    [
        {"address": "10.0.0.9"},
        {"host": "dashboard.example.org"},
        {"host": "evil.test:8321"},
        {"address": "not-an-ip"},
    ],
)
def test_another_machine_or_another_host_name_gets_nothing(small: TestingApp, place: dict[str, str]) -> None:
    """A page of another site whose name was rebound to 127.0.0.1 sends its own name as the host."""
    client = Client(detent.dashboard(small), **place)
    assert client.get("/").status_code == 403
    assert client.get("/api/runs").status_code == 401
    assert client.get("/live?page=/").status_code == 403


@pytest.mark.parametrize("header", access.FORWARDED)
def test_a_request_that_a_proxy_passed_on_is_not_local(small: TestingApp, header: str) -> None:
    assert Client(detent.dashboard(small)).get("/", headers={header: "10.1.1.1"}).status_code == 403


# -- Tokens and sessions -------------------------------------------------------------------------------


def test_a_wrong_token_is_refused(make: MakeClient) -> None:
    client = make(host="dash.example.org", address="10.0.0.9")
    assert client.login("wrong" * 5).status_code == 403
    assert SESSION not in client.cookies
    assert client.get("/api/runs", headers={"authorization": "Bearer wrong"}).status_code == 401


def test_many_wrong_tokens_close_the_login_for_a_while(make: MakeClient) -> None:
    client = make()
    codes = [client.login(f"wrong-{n}").status_code for n in range(access.FAILURES + 1)]
    assert codes == [403] * access.FAILURES + [429]
    assert client.login().status_code == 429


def test_a_login_sets_a_cookie_that_scripts_and_other_sites_cannot_use(make: MakeClient) -> None:
    for scheme, secure in (("http", False), ("https", True)):
        cookie = (
            make(scheme=scheme, host="dash.example.org", address="10.0.0.9").login().headers["set-cookie"]
        )
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert ("Secure" in cookie) is secure


def test_a_session_opens_the_pages_from_anywhere(make: MakeClient) -> None:
    client = make(host="dash.example.org", address="10.0.0.9")
    assert client.get("/runs").headers["location"].startswith("/login")
    client.login()
    assert client.get("/runs").status_code == 200


def test_a_changed_or_old_session_is_none(make: MakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    client = make(host="dash.example.org", address="10.0.0.9")
    client.login()
    good = client.cookies[SESSION]
    body, _, signature = good.rpartition(".")
    for bad in (f"{body}.{signature[::-1]}", f"x{good}", signature, "", "..", "a" * 5000):
        client.cookies = {SESSION: bad}
        assert client.get("/runs").status_code == 303, bad
    client.cookies = {SESSION: good}
    assert client.get("/runs").status_code == 200
    later = time.time() + access.SESSION_SECONDS + 1
    monkeypatch.setattr("detent.dashboard.access.time.time", lambda: later)
    assert client.get("/runs").status_code == 303


def test_a_session_of_another_token_is_none(small: TestingApp) -> None:
    first = operator(small)
    second = Client(detent.dashboard(small, token="another-token-1234"), host="dash.example.org")
    second.cookies = dict(first.cookies)
    assert second.get("/runs").status_code == 303


def test_a_short_token_is_refused_when_the_dashboard_is_made(small: TestingApp) -> None:
    with pytest.raises(ConfigurationError, match="16 characters"):
        detent.dashboard(small, token="short")


def test_tokens_are_compared_in_constant_time(make: MakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    real = hmac.compare_digest

    def noting(a: bytes, b: bytes) -> bool:
        compared.append(len(a))
        return real(a, b)

    monkeypatch.setattr("detent.dashboard.access.hmac.compare_digest", noting)
    rules = access.Access(token=TOKEN, viewer_token=VIEWER_TOKEN)
    for given in ("", "x", TOKEN, VIEWER_TOKEN, "x" * 10_000):
        compared.clear()
        rules.role_of(given)
        assert compared == [32, 32]  # digests: neither the content nor the length shows


def test_logging_out_ends_the_session(make: MakeClient) -> None:
    client = make(host="dash.example.org", address="10.0.0.9")
    client.login()
    client.post("/logout", {"csrf": csrf_of(client.get("/").text)})
    assert client.get("/").status_code == 303


# -- Roles ---------------------------------------------------------------------------------------------


def test_a_viewer_cannot_act(make: MakeClient, small: TestingApp) -> None:
    small.options(id="one").start(fulfil, "one", 500)
    small.settle_down()
    client = make()
    client.login(VIEWER_TOKEN)
    page = client.get("/runs/one").text
    assert "/act/" not in page
    for method, path in CHANGES:
        assert client.request(method, path).status_code == 403
    bearer = {"authorization": f"Bearer {VIEWER_TOKEN}", "content-type": "application/json"}
    answer = client.request(
        "POST", "/api/actions/pause", headers=bearer, content=b'{"run": "one", "reason": "x"}'
    )
    assert answer.status_code == 403
    assert small.run("one").state == "ready"


def test_the_host_applications_own_authentication_decides(small: TestingApp) -> None:
    small.options(id="one").start(fulfil, "one", 500)
    small.settle_down()
    people = {"ada": Identity("ada", "operator"), "bob": Identity("bob")}

    async def who(request: Request) -> Identity | None:
        return people.get(request.headers.get("x-user", ""))

    client = Client(detent.dashboard(small, auth=who))
    assert client.get("/").status_code == 403  # also from this machine: the host application decides
    assert client.get("/", headers={"x-user": "bob"}).status_code == 200
    assert client.get("/act/pause?run=one", headers={"x-user": "bob"}).status_code == 403
    form = client.get("/act/pause?run=one", headers={"x-user": "ada"})
    fields = {"run": "one", "reason": "lunch", "csrf": csrf_of(form.text)}
    assert client.post("/act/pause", fields, headers={"x-user": "ada"}).status_code == 303
    assert small.run("one").state == "paused"


def test_an_identity_needs_a_name_and_a_known_role() -> None:
    with pytest.raises(ConfigurationError):
        Identity("")
    with pytest.raises(ConfigurationError):
        Identity("ada", "root")  # type: ignore[arg-type]


# -- CSRF and origins ----------------------------------------------------------------------------------


def test_an_action_without_a_csrf_token_is_refused(make: MakeClient, small: TestingApp) -> None:
    small.options(id="one").start(fulfil, "one", 500)
    small.settle_down()
    client = make()
    client.login()
    for token in ("", "1.2", "é", csrf_of(client.get("/act/pause?run=one").text)[:-1] + "x"):
        answer = client.post("/act/pause", {"run": "one", "reason": "x", "csrf": token})
        assert answer.status_code == 403, token
    assert small.run("one").state == "ready"


def test_a_csrf_token_of_another_session_or_of_yesterday_is_refused(
    make: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = make(key="the same"), make(key="the same")
    one.login()
    other.login()
    stolen = csrf_of(other.get("/act/pause?run=one").text)
    assert one.post("/act/pause", {"run": "one", "reason": "x", "csrf": stolen}).status_code == 403
    rules = access.Access(token=TOKEN)
    caller = access.Caller(Identity("ada", "operator"), "hook", "seed")
    token = rules.csrf(caller)
    assert rules.csrf_holds(caller, token)
    later = time.time() + access.SESSION_SECONDS + 3600
    monkeypatch.setattr("detent.dashboard.access.time.time", lambda: later)
    assert not rules.csrf_holds(caller, token)


@pytest.mark.parametrize(
    "headers", [{"origin": "https://evil.test"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}]
)
def test_a_form_of_another_site_is_refused(
    make: MakeClient, small: TestingApp, headers: dict[str, str]
) -> None:
    small.options(id="one").start(fulfil, "one", 500)
    small.settle_down()
    client = make()
    client.login()
    csrf = csrf_of(client.get("/act/pause?run=one").text)
    fields = {"run": "one", "reason": "x", "csrf": csrf}
    assert client.post("/act/pause", fields, headers=headers).status_code == 403
    assert make().post("/login", {"token": TOKEN}, headers=headers).status_code == 403
    assert small.run("one").state == "ready"


def test_the_api_needs_a_csrf_token_with_a_session_and_none_with_a_bearer_token(
    make: MakeClient, small: TestingApp
) -> None:
    small.options(id="one").start(fulfil, "one", 500)
    small.settle_down()
    client = make()
    client.login()
    body = {"run": "one", "reason": "x"}
    assert client.request("POST", "/api/actions/pause", json=body).status_code == 403
    csrf = csrf_of(client.get("/act/pause?run=one").text)
    answer = client.request("POST", "/api/actions/pause", json=body, headers={"x-csrf-token": csrf})
    assert answer.status_code == 200, answer.text
    script = make()
    bearer = {"authorization": f"Bearer {TOKEN}"}
    assert script.request("POST", "/api/actions/resume", json=body, headers=bearer).status_code == 200


# -- Answers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/", "/runs", "/nothing", "/login", "/static/detent.js", "/api/runs", "/api/run?id=x"]
)
def test_every_answer_carries_a_strict_policy(make: MakeClient, path: str) -> None:
    headers = make().get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in headers
    assert "no-store" in headers["cache-control"] or path.startswith("/static")


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/runs",
        "/runs/one",
        "/runs/one?tab=graph",
        "/runs/one?tab=steps",
        "/queues",
        "/schedules",
        "/workers",
    ],
)
def test_no_page_has_an_inline_script_or_style(small: TestingApp, path: str) -> None:
    small.speedrun(small.options(id="one").start(fulfil, "one", 5))
    page = Client(detent.dashboard(small)).get(path).text
    assert not re.search(r"<script(?![^>]*\bsrc=)", page)
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:", page)


def test_a_body_that_is_too_large_is_refused_with_and_without_a_length(make: MakeClient) -> None:
    client = make()
    client.login()
    large = b"x" * (LARGEST_BODY + 1)
    assert client.request("POST", "/act/pause", content=large).status_code == 413

    async def pieces() -> Any:
        for _ in range(LARGEST_BODY // 1024 + 2):
            yield b"x" * 1024

    headers = {"content-type": "application/x-www-form-urlencoded"}
    assert client.request("POST", "/act/pause", content=pieces(), headers=headers).status_code == 400
    assert client.get(f"/runs?q={'x' * 9000}").status_code == 414


@pytest.mark.parametrize(
    "path",
    [
        "/static/..%2f__init__.py",
        "/static/../access.py",
        "/static/%2e%2e/%2e%2e/app.py",
        "/static//etc/passwd",
        "/runs/..%2f..%2fetc%2fpasswd",
        "/runs/%00",
        "/api/run?id=%00",
        "/live?page=//evil.test/runs",
        "/live?page=/static/detent.css",
        "/act/__init__?run=x",
    ],
)
def test_a_path_leads_nowhere_but_to_pages(make: MakeClient, path: str) -> None:
    client = make()
    client.login()
    answer = client.get(path)
    assert answer.status_code in (303, 404, 409), (path, answer.status_code)
    assert "root:" not in answer.text
    assert "import " not in answer.text


def test_the_name_at_the_login_is_text_like_any_other(make: MakeClient) -> None:
    client = make()
    client.login(name="<script>alert(1)</script>")
    page = client.get("/").text
    assert "<script>alert" not in page
    assert "&lt;script&gt;" in page


# -- Hostile payloads ----------------------------------------------------------------------------------

HOSTILE = {
    "script": "<script>alert(1)</script>",
    "attribute": "\"><img src=x onerror=alert(1)>'",
    "template": "{{ 7 * 7 }}{% for x in y %}",
    "rtl": "invoice\u202egpj.exe\u2066",
    "unicode": "𝔘nicode and emoji 🚀",
    "path": "../../etc/passwd",
    "query": "?a=b&c=#d;",
    "mark": "@@VERSION@@",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_text_is_shown_as_text_wherever_it_stands(shop: TestingApp, kind: str) -> None:
    text = HOSTILE[kind]
    name = text if text.isprintable() else "order"  # a name with control characters is refused
    shop.options(id=name, hero=(name, name), attributes={"note": name}).start(parrot, f"!{text}")
    shop.settle_down()
    client = operator(shop)
    [run] = client.api("runs")["runs"]
    assert run["id"] == name
    pages = [client.get("/"), client.get("/runs"), client.get("/runs", params={"q": text})]
    pages += [
        client.get("/run", params={"id": name, "tab": tab})
        for tab in ("timeline", "graph", "steps", "history")
    ]
    pages.append(client.get("/act/fork", params={"run": name}))
    for page in pages:
        assert page.status_code == 200
        assert "<script>alert" not in page.text
        assert "<img" not in page.text
        assert "{{ 7 * 7 }}" in page.text or kind != "template"
        assert "\u202e" not in re.sub(r'value="[^"]*"', "", page.text)  # a field holds what was typed
    assert client.act("fork", reason=text, run=name).status_code == 303
    history = client.get("/run", params={"id": name, "tab": "history"}).text
    assert "<script>alert" not in history


def test_a_megabyte_is_cut_on_pages_and_whole_in_the_api(small: TestingApp) -> None:
    small.speedrun(small.options(id="big").start(parrot, "x" * 900_000))
    client = operator(small)
    page = client.get("/runs/big?tab=steps")
    assert len(page.text) < 100_000
    assert len(client.api("run", id="big")["result"]) == 900_000


def test_nul_and_other_controls_become_visible(small: TestingApp) -> None:
    small.speedrun(small.options(id="nul").start(parrot, "a\x00b\x1bc"))
    page = Client(detent.dashboard(small)).get("/runs/nul").text
    assert "a\\u0000b\\u001bc" in page
    assert "\x00" not in page


# -- Masks ---------------------------------------------------------------------------------------------


def masked(app: App) -> list[str]:
    """Everything that pages, the API and live updates show of a run."""
    site = detent.dashboard(app, token=TOKEN, mask=["card", "SECRET", "city"])
    client = Client(site)
    client.login()
    tabs = ("timeline", "graph", "steps", "messages", "history")
    texts = [client.get(f"/runs/one?tab={tab}&node=charge").text for tab in tabs]
    texts += [client.get(f"/api/run{part}?id=one").text for part in ("", "/steps", "/messages", "/history")]
    return [*texts, client.get("/runs").text, client.get("/api/runs").text]


def test_a_mask_holds_in_pages_and_in_the_api(shop: TestingApp) -> None:
    run = shop.options(id="one", attributes={"city": "Oslo-City"}).start(fulfil, "one", 500)
    shop.settle_down()
    run.send("approval", {"secret": "a secret value", "fine": 1})
    shop.settle_down()
    for text in masked(shop):
        assert "4111-1111" not in text
        assert "a secret value" not in text
        assert "Oslo-City" not in text


def test_a_masked_attribute_cannot_be_searched_for(small: TestingApp) -> None:
    client = Client(detent.dashboard(small, mask=["city"]))
    assert client.get("/api/runs?attribute=city=Oslo").status_code == 400


def test_positional_arguments_of_unknown_code_are_masked_as_a_whole(url: str) -> None:
    with TestingApp(url, include=[parrot]) as app:
        app.speedrun(app.options(id="one").start(parrot, "4111-1111"))
    stranger = App(url).open()
    try:
        client = Client(detent.dashboard(stranger, mask=["text"]))
        assert "4111-1111" not in str(client.api("run", id="one")["input"])
    finally:
        stranger.close()


def test_a_mask_can_be_a_function_and_hides_what_it_fails_on(small: TestingApp) -> None:
    small.speedrun(small.options(id="one").start(parrot, "4111-1111"))

    def rule(path: tuple[str | int, ...], value: Any) -> Any:
        if value == "4111-1111":
            raise RuntimeError("cannot look at this")
        return value

    document = Client(detent.dashboard(small, mask=rule)).api("run", id="one")
    assert "4111" not in str(document)


def test_what_the_app_masks_is_hidden_in_every_dashboard_of_it(url: str) -> None:
    with TestingApp(url, include=[parrot], mask=["text"]) as app:
        app.speedrun(app.options(id="one", attributes={"city": "Oslo"}).start(parrot, "4111-1111"))
        documents = [
            Client(detent.dashboard(app, mask=mask)).api("run", id="one") for mask in (None, ["city"])
        ]
    for document in documents:
        assert "4111-1111" not in str(document["input"])
    assert ["Oslo" in str(document) for document in documents] == [True, False]


def test_every_control_in_the_documentation_names_a_test_that_exists() -> None:
    here = Path(__file__).parent
    table = (
        (here.parents[1] / "docs" / "dashboard.md")
        .read_text()
        .partition("## Threats")[2]
        .partition("\n## ")[0]
    )
    written = set(
        re.findall(r"^def (test_\w+)", "".join(p.read_text() for p in here.glob("test_*.py")), re.M)
    )
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 15
    for row in rows:
        named = set(re.findall(r"`(test_\w+)`", row))
        assert named, row
        assert named <= written, row


def test_a_mask_is_a_list_of_names(small: TestingApp) -> None:
    for wrong in ("card", [""], 7):
        with pytest.raises(InvalidArgument, match=r'mask=\["card_number"\]'):
            detent.dashboard(small, mask=wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match=r'mask=\["card_number"\]'):
            detent.App("sqlite:///:memory:", mask=wrong)  # type: ignore[arg-type]
