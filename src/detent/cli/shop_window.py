"""`detent demo --dashboard`: a small shop that keeps working, and its dashboard."""

from __future__ import annotations

import logging
import secrets
import threading

from ..dashboard import dashboard
from .dashboard import serve
from .output import console
from .shop import keep_busy, open_shop, populate

HOST = "127.0.0.1"


def run_shop(url: str, port: int) -> None:
    """Serve the dashboard of a shop that takes orders, until a signal."""
    logging.getLogger("detent").addHandler(logging.NullHandler())  # orders fail on purpose
    token = secrets.token_urlsafe(18)
    app, stop = open_shop(url), threading.Event()
    with app:
        populate(app)
        orders = threading.Thread(target=keep_busy, args=(app, stop), name="detent-demo-orders", daemon=True)
        orders.start()
        console().print(f"the token to log in with: {token}", soft_wrap=True)
        try:
            serve(dashboard(app, token=token, mask=["card_number"], label="demo"), app, HOST, port, token)
        finally:
            stop.set()
            orders.join(timeout=5)
