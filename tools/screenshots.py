"""Screenshots of every page of the dashboard, from the data of the demo shop.

python -m tools.screenshots docs/dashboard

Each page in light, in dark, and at the width of a phone.  Needs Chromium.
"""

from __future__ import annotations

import logging
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from playwright.sync_api import Browser, ViewportSize, sync_playwright

import detent
from detent.cli import shop

TOKEN = "a-token-for-screenshots"
DESK: ViewportSize = {"width": 1280, "height": 800}
PHONE: ViewportSize = {"width": 390, "height": 844}
PAGES = {
    "overview": "/",
    "runs": "/runs?cursor=",
    "run-timeline": "/runs/order-1004?tab=timeline&node=book_carrier",
    "run-graph": "/runs/supplier-risky?tab=graph&node=check_quality",
    "run-fan-out": "/runs/catalogue-lamps?tab=graph",
    "run-steps": "/runs/order-1900?tab=steps&node=charge_card",
    "run-history": "/runs/order-1904?tab=history",
    "run-streams": "/runs/order-1004?tab=streams",
    "action": "/act/cancel?run=order-1901",
    "deciders": "/deciders",
    "decider": "/decider?name=subscription",
    "instance": "/instance?decider=subscription&id=s-1",
    "projections": "/projections",
    "schedules": "/schedules",
    "schedule": "/schedule?name=nightly-report",
    "schedule-new": "/act/create-schedule?workflow=newsletter&name=weekly-news&field.customer=ada"
    "&cron=0+9+*+*+mon&tz=Europe/Paris&overlap=skip&preview=1",
    "queues": "/queues",
    "limits": "/act/set-limits?queue=mail",
    "workers": "/workers",
}


def main(folder: Path) -> None:
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        sys.exit("chromium is not installed; run: python3 tools/servers.py browser")
    logging.getLogger("detent").addHandler(logging.NullHandler())
    folder.mkdir(parents=True, exist_ok=True)
    with serving() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        take(browser, address, folder, dark=False, phone=False)
        take(browser, address, folder, dark=True, phone=False)
        take(browser, address, folder, dark=False, phone=True)
        browser.close()


@contextmanager
def serving() -> Iterator[str]:
    """The shop, with a worker, when most of its orders are done."""
    with (
        tempfile.TemporaryDirectory() as home,
        socket.socket() as listening,
        shop.open_shop(f"sqlite:///{home}/shop.db") as app,
    ):
        shop.populate(app)
        settle(app)
        listening.bind(("127.0.0.1", 0))
        site = detent.dashboard(app, token=TOKEN, mask=["card_number"], label="demo")
        config = uvicorn.Config(site, lifespan="off", log_level="error", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        app.queues["newsletter"].pause("the provider is down")
        for number, customer in enumerate((*shop.CUSTOMERS, "ada", "ada", "grace"), 201):
            options = app.options(id=f"news-{number}", queue="newsletter", key=customer)
            options.start(shop.newsletter, customer)
        app.schedules.create(
            "spring-sale", shop.newsletter, args=("ada",), cron="0 8 * * 1-5", tz="Europe/Paris"
        )
        app.schedules["spring-sale"].pause(reason="it begins in March")
        app.queues["mail"].set(concurrency=6)
        app.options(id="order-1950").start(shop.fulfil, "order-1950", "ada", ["kettle", "tray"], 81)
        yield f"http://localhost:{listening.getsockname()[1]}"
        server.should_exit = True
        thread.join()


def settle(app: detent.App) -> None:
    """Wait until nothing executes and no step is to be tried again."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        active = [run for run in app.runs.active(limit=200) if run.type != "subscription"]
        if all(run.id in ("order-1901", "order-1902") or run.state == "paused" for run in active):
            return
        time.sleep(0.5)


def take(browser: Browser, address: str, folder: Path, *, dark: bool, phone: bool) -> None:
    context = browser.new_context(
        base_url=address, viewport=PHONE if phone else DESK, color_scheme="dark" if dark else "light"
    )
    page = context.new_page()
    page.goto("/login")
    page.fill("input[name=name]", "ada")
    page.fill("input[name=token]", TOKEN)
    page.press("input[name=token]", "Enter")
    page.wait_for_url("**/")
    for name, path in PAGES.items():
        page.goto(path)
        page.wait_for_selector("#live-mark.on, form.stack")
        suffix = "-phone" if phone else "-dark" if dark else ""
        page.screenshot(path=folder / f"{name}{suffix}.png")
    context.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
