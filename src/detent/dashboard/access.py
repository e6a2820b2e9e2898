"""Who may do what: identities, sessions, CSRF tokens.

A request has one of these identities, the first that applies:

    hook       what the host application's `auth(request)` returns
    bearer     `Authorization: Bearer TOKEN`, for scripts
    session    the signed cookie that a login with the token sets
    local      a person on this machine: may read, never act

All other requests are refused.  A request is local only if it comes from the loopback, names a loopback
host (a page of another site that was rebound to 127.0.0.1 does not), and was not passed on by a proxy.

Sessions are not stored: the cookie carries name, role and time, signed with a key that is made from the
tokens.  Another token is another key, and ends all sessions.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

import msgspec
from starlette.requests import Request

from ..errors import ConfigurationError
from ..serialization.decoders import decode

Role = Literal["viewer", "operator"]
ROLES: tuple[Role, ...] = ("viewer", "operator")
SESSION = "detent_session"
SESSION_SECONDS = 12 * 3600
SHORTEST_TOKEN = 16
FAILURES = 10  # wrong tokens in a minute, after which logins are refused for the rest of it
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})
FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip")


@dataclass(frozen=True, slots=True)
class Identity:
    """A person or a program that uses the dashboard; `name` is written into the history of runs."""

    name: str
    role: Role = "viewer"

    def __post_init__(self) -> None:
        if not self.name.strip() or len(self.name) > 200:
            raise ConfigurationError(f"Identity(name={self.name!r}): give a name of 1 to 200 characters")
        if self.role not in ROLES:
            raise ConfigurationError(f"Identity(role={self.role!r}): it is one of {', '.join(ROLES)}")

    @property
    def may_act(self) -> bool:
        return self.role == "operator"


Auth = Callable[[Request], Identity | Awaitable[Identity | None] | None]


@dataclass(frozen=True, slots=True)
class Caller:
    """The identity of a request, and how it was shown."""

    identity: Identity
    source: Literal["hook", "bearer", "session", "local"]
    seed: str = ""  # what the CSRF token is made from

    @property
    def may_act(self) -> bool:
        return self.identity.may_act


class _Session(msgspec.Struct, array_like=True):
    name: str
    role: str
    at: int
    nonce: str


class Access:
    """The rules of one dashboard."""

    def __init__(
        self,
        *,
        token: str | None = None,
        viewer_token: str | None = None,
        auth: Auth | None = None,
        key: str | None = None,
    ) -> None:
        self.auth = auth
        self._tokens: list[tuple[bytes, Role]] = []
        if token is not None:
            self._tokens.append((_checked("token", token), "operator"))
        if viewer_token is not None:
            self._tokens.append((_checked("viewer_token", viewer_token), "viewer"))
        secret = key.encode() if key else b"\0".join(one for one, _ in self._tokens)
        self._key = hashlib.sha256(b"detent dashboard\0" + (secret or secrets.token_bytes(32))).digest()
        self._failures: deque[float] = deque(maxlen=FAILURES)

    @property
    def has_login(self) -> bool:
        return bool(self._tokens)

    async def caller(self, request: Request) -> Caller | None:
        """The identity of a caller; None if it may not see anything."""
        if self.auth is not None:
            found = self.auth(request)
            identity = found if found is None or isinstance(found, Identity) else await found
            if identity is not None:
                return Caller(identity, "hook", f"hook\0{identity.name}")
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            role = self.role_of(given.strip())
            return None if role is None else Caller(Identity("api token", role), "bearer")
        session = self._session(request.cookies.get(SESSION, ""))
        if session is not None:
            return session
        if self.auth is None and is_local(request):
            return Caller(Identity("local"), "local")
        return None

    # Tokens

    def role_of(self, given: str) -> Role | None:
        """The role of a token; takes the same time for every wrong one."""
        found: Role | None = None
        for token, role in self._tokens:
            if hmac.compare_digest(hashlib.sha256(token).digest(), hashlib.sha256(given.encode()).digest()):
                found = found or role
        return found

    @property
    def throttled(self) -> bool:
        """Whether too many wrong tokens were given in the last minute."""
        return len(self._failures) == FAILURES and time.monotonic() - self._failures[0] < 60

    def failed(self) -> None:
        self._failures.append(time.monotonic())

    # Sessions

    def session_cookie(self, name: str, role: Role) -> str:
        """The value of the cookie of a new session."""
        body = msgspec.json.encode(_Session(name, role, int(time.time()), secrets.token_urlsafe(16)))
        text = urlsafe_b64encode(body).decode()
        return f"{text}.{self._sign('session', text)}"

    def _session(self, cookie: str) -> Caller | None:
        text, _, signature = cookie.rpartition(".")
        if not text or not hmac.compare_digest(signature.encode(), self._sign("session", text).encode()):
            return None
        session = decode(urlsafe_b64decode(text), _Session)
        if not 0 <= time.time() - session.at < SESSION_SECONDS:
            return None
        role: Role = "operator" if session.role == "operator" else "viewer"
        return Caller(Identity(session.name, role), "session", text)

    # CSRF

    def csrf(self, caller: Caller) -> str:
        """The token that forms of this caller carry.  It ends with the session."""
        hour = int(time.time() // 3600)
        return f"{hour}.{self._sign('csrf', f'{hour} {caller.seed}')}"

    def csrf_holds(self, caller: Caller, given: str) -> bool:
        if caller.source == "bearer":  # no browser sends this header by itself
            return True
        hour, _, signature = given.partition(".")
        if not hour.isascii() or not hour.isdigit() or len(hour) > 9:
            return False
        if not 0 <= int(time.time() // 3600) - int(hour) <= SESSION_SECONDS // 3600:
            return False
        return hmac.compare_digest(signature.encode(), self._sign("csrf", f"{hour} {caller.seed}").encode())

    def _sign(self, purpose: str, text: str) -> str:
        return hmac.new(self._key, f"{purpose}\0{text}".encode(), hashlib.sha256).hexdigest()


def _checked(name: str, token: str) -> bytes:
    if len(token) < SHORTEST_TOKEN:
        raise ConfigurationError(
            f"{name}: a token has {SHORTEST_TOKEN} characters or more; "
            f"make one: python -c 'import secrets; print(secrets.token_urlsafe(24))'"
        )
    return token.encode()


def is_local(request: Request) -> bool:
    """Whether a person on this machine asks, directly."""
    host = request.headers.get("host", "")
    name = host if host.endswith("]") or host == "::1" else host.rpartition(":")[0] if ":" in host else host
    if name not in LOCAL_NAMES or any(header in request.headers for header in FORWARDED):
        return False
    try:
        return request.client is not None and ipaddress.ip_address(request.client.host).is_loopback
    except ValueError:
        return False


def same_origin(request: Request) -> bool:
    """Whether a request that changes something comes from one of our own pages, as the browser says."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = request.headers.get("origin")
    # Not the scheme: behind a proxy that ends TLS, we see another one than the browser.
    return origin is None or urlsplit(origin).netloc == request.headers.get("host", "")
