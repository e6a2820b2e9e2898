"""The order that `detent demo` ships, written as you would write your own.

Every step notes in a file that it ran, so that what the demo says can be counted.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import detent
from detent import step, workflow

URL_VARIABLE = "DETENT_DEMO_URL"
NOTES_VARIABLE = "DETENT_DEMO_NOTES"
PARCELS = ("a kettle", "two cups", "a tea towel", "green tea", "biscuits", "honey", "a spoon", "a card")


@step
def reserve_stock(order: str) -> int:
    ran("reserve_stock", takes=0.5)
    return len(PARCELS)


@step
def charge_card(order: str, euros: float) -> str:
    ran("charge_card", takes=0.7)
    return f"receipt-{order.rpartition('-')[2]}"


@step
def pack(ctx: detent.Context, order: str) -> int:
    ran("pack")
    for thing in ctx.iterate(PARCELS, key=str):
        time.sleep(0.35)  # wrapping takes a moment
        note(f"packed {thing}")
    return len(PARCELS)


@step
def ship(order: str) -> str:
    ran("ship", takes=0.5)
    return f"parcel-{order.rpartition('-')[2]}"


@step
def send_email(order: str, receipt: str, parcel: str) -> None:
    ran("send_email", takes=0.3)


@workflow
def fulfil(ctx: detent.Context, order: str) -> dict[str, str]:
    reserve_stock(order)
    receipt = charge_card(order, 42.50)
    detent.sleep(1)  # durable: it could as well be two days
    pack(ctx, order)
    parcel = ship(order)
    send_email(order, receipt, parcel)
    return {"receipt": receipt, "parcel": parcel}


def ran(name: str, takes: float = 0.0) -> None:
    """Note that a step ran, as a real one would leave its mark on the world; then take some time."""
    note(f"{name} ran")
    time.sleep(takes)


def note(text: str) -> None:
    """Append a line, for good: what was noted survives the process that is killed next."""
    path = os.environ.get(NOTES_VARIABLE)
    if path:
        with Path(path).open("a") as notes:
            notes.write(f"{os.getpid()} {text}\n")


app = detent.App(
    os.environ.get(URL_VARIABLE, "sqlite:///detent-demo.db"), include=[fulfil], migrate=True, concurrency=4
)
