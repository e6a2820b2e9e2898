"""The dashboard: see every run, act safely.

    app.mount("/detent", detent.dashboard(detent_app, token=os.environ["DETENT_TOKEN"]))

`detent.dashboard` is this package, and can be called like a function.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..aio.app import AsyncApp
from ..app.app import App
from ..app.settings import PayloadMask, check_mask
from ..errors import ConfigurationError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from .access import Auth, Identity


def dashboard(
    app: App | AsyncApp,
    *,
    token: str | None = None,
    viewer_token: str | None = None,
    auth: Auth | None = None,
    mask: PayloadMask | None = None,
    key: str | None = None,
    label: str = "",
) -> ASGIApp:
    """The dashboard of an app, as an ASGI application.

        app.mount("/detent", detent.dashboard(detent_app, auth=who))

    Without `token` and `auth` it answers only to this machine, and only to reads.  `token` is for
    operators, `viewer_token` for people who only look.  `auth(request)` is the authentication of
    the host application: it returns an `Identity(name, role)`, or None.  `mask` hides fields of
    payloads, besides those of `App(mask=...)`.  `key` signs sessions and forms: give all processes
    of a service the same, if you use `auth`.  `label` stands beside the name, such as "production".
    """
    try:
        import jinja2  # noqa: F401
        import starlette  # noqa: F401
    except ImportError as error:
        raise ConfigurationError(
            "the dashboard is not installed; run: pip install 'detent[dashboard]'"
        ) from error
    from .access import Access
    from .asgi import Site
    from .documents.source import Source
    from .masking import Mask

    plain = app.sync if isinstance(app, AsyncApp) else app
    if not isinstance(plain, App):
        raise ConfigurationError(
            f"dashboard() takes a detent.App or a detent.AsyncApp, not {type(app).__name__}"
        )
    rules = Access(token=token, viewer_token=viewer_token, auth=auth, key=key)
    if mask is not None:
        check_mask("dashboard()", mask)
    shown = Source(plain, Mask(plain.engine.settings.mask, mask))
    return Site(shown, rules, label=label).application()


class _Package(ModuleType):
    """A package that can be called: `import detent.dashboard` sets `detent.dashboard` to the package."""

    def __call__(self, app: App | AsyncApp, **options: Any) -> Any:
        return _dashboard(app, **options)


_dashboard = dashboard
if not TYPE_CHECKING:
    sys.modules[__name__].__class__ = _Package
    dashboard = sys.modules[__name__]

    def __getattr__(name: str) -> Any:
        if name == "Identity":
            from .access import Identity

            return Identity
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["Identity", "dashboard"]
