"""What the drivers of database servers share."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from ..errors import ForkedProcess
from ..process_forks import cut_off, watch_forks
from .driver import NodeSettler, QuickClaim
from .process_forks import INHERITED


class ServerDriver:
    """Knows the connections to a server, and cuts them off in a forked child."""

    inherited = INHERITED
    closed_at_fork = False
    heritable = True
    settle_nodes: NodeSettler | None = None
    quick_claim: QuickClaim | None = None
    single = True
    launches = False

    def __init__(self) -> None:
        self._connections: WeakSet[Any] = WeakSet()
        self._is_inherited = False
        watch_forks(self)

    def socket_of(self, connection: Any) -> int | None:
        """The descriptor of a connection; None if it is closed."""
        raise NotImplementedError

    def check_process(self) -> None:
        """Called before connecting: the parent's driver cannot be used in a forked child."""
        if self._is_inherited:
            raise ForkedProcess(self.inherited)

    def opened(self, connection: Any) -> None:
        self._connections.add(connection)

    def forked(self) -> None:
        """In the child: send nothing to the server, which would take the child for the parent."""
        self._is_inherited = True
        sockets = [self.socket_of(connection) for connection in self._connections]
        cut_off([number for number in sockets if number is not None])

    def forsake(self, connection: Any) -> None:
        """It is cut off."""

    def suspend(self, deadline: float) -> None:
        """Connections stay open during a fork."""

    def resume(self) -> None:
        """See `suspend`."""

    def verify(self, connection: Any) -> None:
        """A server knows its database."""
