"""The dashboard in a real browser: Debian's Chromium, driven by Playwright.

One browser serves the session, one page each test.  The server runs in a thread of this process.
"""

from __future__ import annotations

import re
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from playwright.sync_api import Browser, Page, expect, sync_playwright

import detent
from detent import Queue, Rate
from detent.dashboard import rendering
from tests.dashboard.client import TOKEN
from tests.dashboard.test_access import HOSTILE
from tests.dashboard.world import INCLUDE, Account, Onboard, Open, fulfil, parrot

CSS = (Path(rendering.__file__).parent / "static" / "detent.css").read_text()
Visit = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.fail("chromium is not installed: run `make test`, which installs it", pytrace=False)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[detent.App]:
    url = f"sqlite:///{tmp_path_factory.mktemp('browser') / 'shop.db'}"
    queues = [Queue("default"), Queue("mail", concurrency=5, rate=Rate(100, per=60)), Queue("llm", fair=True)]
    with detent.App(url, include=INCLUDE, queues=queues) as app:
        app.schedule("nightly", parrot, args=("good night",), cron="0 3 * * *", tz="Europe/Paris")
        app.schedules["nightly"].trigger()
        app.options(id="done", attributes={"customer": "acme"}).start(fulfil, "done", 5).result()
        app.options(id="broken").start(parrot, "!it broke")
        app.options(id="supplier").start(Onboard, name="good").result()
        for kind, text in HOSTILE.items():
            name = text if text.isprintable() else kind
            app.options(id=name, hero=(name, name), attributes={"note": name}).start(parrot, f"!{text}")
        app.execute(Account, Open("a-1", "nobody"))
        yield app


@pytest.fixture(scope="module")
def address(app: detent.App) -> Iterator[str]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        config = uvicorn.Config(
            detent.dashboard(app, token=TOKEN), lifespan="off", log_level="error", timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield f"http://localhost:{listening.getsockname()[1]}"
        server.should_exit = True
        thread.join()


@pytest.fixture
def visit(browser: Browser, address: str) -> Iterator[Visit]:
    """Opens pages; a script error or a violation of the policy fails the test."""
    contexts: list[Any] = []
    problems: list[str] = []

    def open(path: str, *, login: bool = False, **options: Any) -> Page:
        context = browser.new_context(base_url=address, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        expect.set_options(timeout=20_000)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("dialog", lambda dialog: problems.append(f"a dialog: {dialog.message}"))
        if login:
            page.goto("/login")
            page.fill("input[name=name]", "ada")
            page.fill("input[name=token]", TOKEN)
            page.press("input[name=token]", "Enter")
            page.wait_for_url("**/")
        page.goto(path)
        return page

    yield open
    for context in contexts:
        context.close()
    assert problems == []


PAGES = (
    "/",
    "/runs",
    "/runs/done",
    "/runs/supplier?tab=graph&node=check",
    "/runs/broken?tab=steps",
    "/runs/done?tab=history",
    "/runs/done?tab=messages",
    "/runs/done?tab=streams",
    "/deciders",
    "/decider?name=account",
    "/instance?decider=account&id=a-1",
    "/projections",
    "/queues",
    "/schedules",
    "/schedule?name=nightly",
    "/workers",
    "/act/cancel?run=done",
    "/act/create-schedule?workflow=parrot",
)


def test_a_node_turns_green_without_a_reload(app: detent.App, visit: Visit) -> None:
    app.options(id="live").start(fulfil, "live", 500)
    page = visit("/runs/live?tab=graph")
    expect(page.locator("#header .badge")).to_have_text("waiting")
    waits = page.locator(".node.s-waiting", has_text="approval")
    expect(waits).to_be_visible()
    expect(page.locator("#live-mark.on")).to_be_visible()
    page.evaluate("window.notReloaded = true")
    app.run("live").send("approval", True)
    expect(page.locator(".node.s-completed", has_text="approval")).to_be_visible()
    expect(page.locator("#header .badge")).to_have_text("finished")
    assert page.evaluate("window.notReloaded") is True


def test_a_new_run_appears_in_the_list(app: detent.App, visit: Visit) -> None:
    page = visit("/runs")
    expect(page.locator("#live-mark.on")).to_be_visible()
    app.options(id="brand-new").start(parrot, "hello")
    expect(page.get_by_role("link", name="brand-new")).to_be_visible()


def test_what_is_open_stays_open_when_its_part_is_replaced(app: detent.App, visit: Visit) -> None:
    app.options(id="open").start(fulfil, "open", 500)
    page = visit("/runs/open?tab=steps")
    expect(page.locator("#live-mark.on")).to_be_visible()
    charge = page.locator("details.step", has_text="charge").first
    charge.locator("summary").first.click()
    app.run("open").send("approval", True)
    expect(page.locator("#header .badge")).to_have_text("finished")
    expect(page.locator("details.step[open]", has_text="charge")).to_be_visible()


def test_an_action_from_the_button_to_its_line_in_the_history(app: detent.App, visit: Visit) -> None:
    app.options(id="act").start(fulfil, "act", 500)
    page = visit("/runs/act", login=True)
    page.get_by_role("link", name="Pause").click()
    page.get_by_label("Reason").fill("lunch")
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#header .badge")).to_have_text("paused")
    expect(page.get_by_role("status")).to_have_text(re.compile("paused"))
    page.get_by_role("link", name="History").click()
    expect(page.locator("#history")).to_contain_text("by ada")
    expect(page.locator("#history")).to_contain_text("lunch")
    app.run("act").cancel()


def test_a_queue_is_paused_with_a_reason_and_the_page_follows_its_runs(app: detent.App, visit: Visit) -> None:
    page = visit("/queues", login=True)
    card = page.locator("article.queue", has_text="mail")
    card.get_by_role("link", name="Pause").click()
    page.get_by_label("Reason").fill("the provider is down")
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("status")).to_have_text(re.compile("The queue is paused"))
    expect(card.locator(".badge")).to_have_text("paused")
    expect(card).to_contain_text("the provider is down")
    expect(page.locator("#live-mark.on")).to_be_visible()
    app.options(id="letter", queue="mail").start(parrot, "hello")
    expect(card.locator("dd").nth(1)).to_have_text("1")  # waiting, without a reload
    card.get_by_role("link", name="Limits").click()
    page.get_by_label("Concurrency", exact=False).first.fill("7")
    page.get_by_label("Reason").fill("a smaller provider")
    page.get_by_role("button", name="Change limits").click()
    expect(card.locator(".limits")).to_contain_text("the code says 5")
    app.queues["mail"].resume()
    expect(card.locator(".badge")).to_have_text("open")
    expect(card.locator("dd").nth(1)).to_have_text("0")


def test_a_schedule_is_started_now_and_paused(app: detent.App, visit: Visit) -> None:
    page = visit("/schedules", login=True)
    row = page.locator("#schedules tbody tr", has_text="nightly")
    expect(row.locator("time").first).to_have_text(re.compile("^in "))
    row.get_by_role("link", name="Start now").click()
    page.get_by_label("Reason").fill("the report is wanted today")
    page.get_by_role("button", name="Start now").click()
    page.wait_for_url("**/runs/nightly@**")
    expect(page.get_by_role("status")).to_have_text(re.compile("is started"))
    page.goto("/schedule?name=nightly")
    expect(page.locator("#history")).to_contain_text("by ada")
    page.get_by_role("link", name="Pause").click()
    page.get_by_label("Reason").fill("holidays")
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#header .badge")).to_have_text("paused")
    app.schedules["nightly"].resume()
    expect(page.locator("#header .badge")).to_have_text("active")


def test_a_worker_is_drained_and_the_page_follows(app: detent.App, visit: Visit) -> None:
    page = visit("/workers", login=True)
    page.get_by_role("link", name="Drain").click()
    page.get_by_label("Reason").fill("a new machine")
    page.get_by_role("button", name="Drain").click()
    expect(page.locator("#workers .badge")).to_have_text("drained")  # first draining, then by itself
    page.get_by_role("link", name="Claim again").click()
    page.get_by_label("Reason").fill("not yet")
    page.get_by_role("button", name="Claim again").click()
    expect(page.locator("#workers .badge")).to_have_text("alive")


def test_the_keyboard_is_enough(visit: Visit) -> None:
    page = visit("/runs")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("/")
    search = page.get_by_role("searchbox")
    expect(search).to_be_focused()
    page.keyboard.type("it broke")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=it+broke**")
    expect(page.locator("#list tbody tr")).to_have_count(1)
    link = page.get_by_role("link", name="broken")
    link.focus()
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs/broken")


def test_a_graph_is_walked_with_the_keyboard(visit: Visit) -> None:
    page = visit("/runs/supplier?tab=graph")
    node = page.locator("a.node").first
    node.focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**node=**")
    expect(page.locator("#side h2").first).to_be_visible()


@pytest.mark.parametrize("path", PAGES)
def test_a_page_fits_a_phone_and_has_names_labels_and_landmarks(visit: Visit, path: str) -> None:
    page = visit(path, viewport={"width": 390, "height": 844}, login=path.startswith("/act"))
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate(CHECK) == []


def test_a_schedule_is_previewed_and_made_without_javascript(visit: Visit, app: detent.App) -> None:
    page = visit("/schedules", login=True, java_script_enabled=False)
    page.get_by_role("link", name="New schedule").click()
    page.get_by_label("Workflow").select_option("parrot")
    page.get_by_role("button", name="Next").click()
    page.locator("[name=name]").fill("weekly")
    page.locator("[name='field.text']").fill("hello")
    page.locator("[name=cron]").fill("0 3 * * 1")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("status").locator("li")).to_have_count(5)
    page.locator("[name=reason]").fill("a new week")
    page.get_by_role("button", name="Create").click()
    expect(page.locator("#header h1")).to_have_text("weekly")
    expect(page.locator("#history")).to_contain_text("a new week")
    app.schedules["weekly"].delete()


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_read_without_javascript(visit: Visit, path: str) -> None:
    page = visit(path, java_script_enabled=False, login=path.startswith("/act"))
    expect(page.locator("h1").first).to_be_attached()
    expect(page.locator("#live-mark")).to_be_hidden()
    assert "undefined" not in page.content()


def test_dark_mode_follows_the_system_and_the_button(visit: Visit) -> None:
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    dark = visit("/", color_scheme="dark")
    light = visit("/", color_scheme="light")
    assert dark.evaluate(ground) != light.evaluate(ground)
    light.get_by_role("button", name="Change between light and dark").click()
    assert light.evaluate(ground) == dark.evaluate(ground)
    light.reload()
    assert light.evaluate(ground) == dark.evaluate(ground)


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_text_runs_nothing_and_breaks_nothing(visit: Visit, kind: str) -> None:
    """Not in the list, nor on its own page; a script, a dialog or an error would fail the fixture."""
    text = HOSTILE[kind]
    name = text if text.isprintable() else kind
    page = visit("/runs")
    page.locator("#list a.strong", has_text=name).first.click()
    expect(page.locator("#header h1")).to_have_text(name)
    expect(page.locator("#header .badge")).to_have_text("failed")
    assert page.locator("main img, main script").count() == 0
    expect(page.locator("#live-mark.on")).to_be_visible()


def test_nothing_moves_when_a_state_changes(app: detent.App, visit: Visit) -> None:
    app.options(id="still").start(fulfil, "still", 500)
    page = visit("/runs/still?tab=steps")
    expect(page.locator("#live-mark.on")).to_be_visible()
    before = page.locator(".tabs").bounding_box()
    app.run("still").send("approval", True)
    expect(page.locator("#header .badge")).to_have_text("finished")
    assert page.locator(".tabs").bounding_box() == before


# -- Accessibility -------------------------------------------------------------------------------------

CHECK = (Path(__file__).parent / "accessible.js").read_text()


def themes() -> dict[str, dict[str, str]]:
    """The custom properties of both themes."""
    blocks = re.findall(r":root(\[data-theme=\"dark\"\])? \{(.*?)\n\}", CSS, re.DOTALL)
    return {
        "dark" if dark else "light": dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", text))
        for dark, text in blocks
    }


def contrast(one: str, other: str) -> float:
    def light(colour: str) -> float:
        parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    a, b = sorted((light(one), light(other)), reverse=True)
    return (a + 0.05) / (b + 0.05)


PAIRS = [
    (name, ground) for name in ("ink", "muted", "accent", "bad") for ground in ("surface", "ground", "raised")
]
PAIRS += [(name, f"{name}-tint") for name in ("good", "busy", "wait", "hold", "bad", "gone", "accent")]
PAIRS += [("accent-ink", "accent"), ("ink", "bad-tint")]
PAIRS += [(name, "raised") for name in ("code-key", "code-text", "code-number")]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_has_the_contrast_of_wcag_aa(theme: str) -> None:
    colours = themes()[theme]
    weak = {pair: round(contrast(colours[pair[0]], colours[pair[1]]), 2) for pair in PAIRS}
    assert {pair: value for pair, value in weak.items() if value < 4.5} == {}


def test_both_dark_themes_are_the_same() -> None:
    """The one of the system and the one of the button."""
    blocks = re.findall(
        r"(?:not\(\[data-theme=\"light\"\]\)|data-theme=\"dark\"\]) \{(.*?)\}", CSS, re.DOTALL
    )
    first, second = ([line.strip() for line in block.strip().splitlines()] for block in blocks)
    assert first == second


def test_states_differ_in_shape_not_only_in_colour() -> None:
    parts = (Path(rendering.__file__).parent / "templates" / "parts.html").read_text()
    shapes = re.findall(r"%\}(<(?:circle|path|rect).*)", parts)
    assert len(shapes) == len(set(shapes))
