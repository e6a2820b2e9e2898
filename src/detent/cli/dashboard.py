"""`detent dashboard`: serves the dashboard of an app."""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from datetime import timedelta
from typing import Any

import click

from ..app.app import App
from ..dashboard import dashboard as make_dashboard
from .command import Failure, app_argument, command
from .find_app import find, place, require_file
from .output import console

TOKEN_VARIABLE = "DETENT_DASHBOARD_TOKEN"
DEFAULT_PORT = 8321
_PATIENCE = timedelta(seconds=3)  # a page waits no longer for a database that is away


@command(example="detent dashboard shop:app --port 8321")
@app_argument
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=DEFAULT_PORT, show_default=True, help="The port."
)
@click.option(
    "--token",
    envvar=TOKEN_VARIABLE,
    help=f"With this token, people log in and act.  [default: {TOKEN_VARIABLE}, otherwise read-only]",
)
@click.option(
    "--mask", metavar="NAME", multiple=True, help="Hide payload fields of this name; may be repeated."
)
@click.option("--label", default="", help="Words beside the name, such as production.")
def dashboard(app: str, host: str, port: int, token: str | None, mask: tuple[str, ...], label: str) -> None:
    """Serve the dashboard: see every run, act safely.

    Without a token it can only be read, and only from this machine.
    """
    if token is None and not is_loopback(host):
        raise Failure(
            f"--host {host} opens the dashboard to other machines: give a --token, or set {TOKEN_VARIABLE}"
        )
    target = find(app)
    if not target.definitions:
        require_file(target.app.engine.url)
    site = make_dashboard(target.app, token=token, mask=mask or None, label=label)
    target.app.engine.adjust(patience=_PATIENCE)
    target.app.open()
    try:
        serve(site, target.app, host, port, token)
    finally:
        target.app.close()


def serve(site: Any, app: App, host: str, port: int, token: str | None) -> None:
    """Serve until a signal."""
    import uvicorn

    from ..dashboard.rendering import compile_templates

    compile_templates()

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets=sockets)
            if self.started:
                number = self.servers[0].sockets[0].getsockname()[1]
                name = f"[{host}]" if ":" in host else host
                role = (
                    "log in with the token to act" if token is not None else "read-only: no token was given"
                )
                console().print(
                    f"dashboard of {place(app.engine.url)}: http://{name}:{number}/  ({role})", soft_wrap=True
                )

    config = uvicorn.Config(
        site,
        host=host,
        port=port,
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
        limit_concurrency=2_000,
    )
    with suppress(KeyboardInterrupt):  # uvicorn raises it again when it has closed its connections
        Server(config).run()


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches that address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
