"""A server that no other test uses, so that a test may stop, crash or freeze it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit
from uuid import uuid4

from tests.databases import MySQLAdmin, PostgresAdmin
from tools import servers

ADMINS: dict[str, type[PostgresAdmin | MySQLAdmin]] = {"postgres": PostgresAdmin, "mysql": MySQLAdmin}


class PrivateServer:
    def __init__(self, kind: str, url: str, control: str) -> None:
        self.kind = kind
        self._url = url
        self._control = control

    def stop(self, *, crash: bool = False) -> None:
        servers.stop(self._control, crash=crash)

    def start(self) -> None:
        servers.start(self._control)

    def away(self, seconds: float, *, crash: bool) -> None:
        self.stop(crash=crash)
        time.sleep(seconds)
        self.start()

    def freeze(self) -> None:
        servers.freeze(self._control)

    def thaw(self) -> None:
        servers.thaw(self._control)

    @contextmanager
    def database(self) -> Iterator[str]:
        """A new, empty database; when it is dropped, the server runs, whatever the test did to it."""
        admin = ADMINS[self.kind](self._url)
        name = f"detent_{uuid4().hex[:12]}"
        admin.create(name)
        try:
            yield urlsplit(self._url)._replace(path=f"/{name}").geturl()
        finally:
            self.start()
            self.thaw()
            admin.drop(name)
            admin.close()


@contextmanager
def private_server(kind: str) -> Iterator[PrivateServer]:
    with servers.running([kind], private=True) as variables:
        name = kind.upper()
        yield PrivateServer(
            kind, variables[f"DETENT_TEST_{name}_URL"], variables[f"DETENT_TEST_{name}_CONTROL"]
        )
