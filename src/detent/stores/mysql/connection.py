"""Connections of Detent to MySQL and MariaDB: PyMySQL's, with what the driver has to know about them."""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING, Any

from ...errors import PacketTooLarge
from ..addresses import unchecked

if TYPE_CHECKING:
    import pymysql
    from pymysql import connections
    from pymysql.constants import COMMAND

    class Connection(connections.Connection[Any]):
        """With the private parts that we use, and that have no type information."""

        _sock: socket.socket
        ctx: ssl.SSLContext

        def _create_ssl_ctx(self, sslp: Any) -> ssl.SSLContext: ...
        def _execute_command(self, command: Any, sql: Any) -> None: ...
        def _read_ok_packet(self) -> Any: ...
else:
    try:
        import pymysql
        from pymysql.connections import Connection
        from pymysql.constants import COMMAND
    except ImportError:  # the driver reports it when this database is opened
        pymysql = None
        Connection = object

LOCK_TIMEOUT, PACKET_TOO_LARGE, INTERRUPTED = 1205, 1153, 1317  # errors of the server
_TELLING = 200  # characters of a statement that name its table; its parameters come later
# In seconds, and the last one in milliseconds.
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 60_000}


class MySqlConnection(Connection):
    """Encrypted where the server can, as PyMySQL's own connections are.

    Those read all certificates that the machine trusts, each of them, and then check against none: that takes
    ten times as long as to connect.
    """

    def _create_ssl_ctx(self, sslp: Any) -> ssl.SSLContext:
        return super()._create_ssl_ctx(sslp) if sslp else unchecked()

    strict_snapshots = False  # locking reads fail on rows that changed since the snapshot
    asking = False  # a command was sent, and its answer not read to the end
    asked = 0  # how many commands were sent
    patient = False  # its answer may take long: it sleeps in the server
    unanswered = False  # it was given up while it waited for an answer
    largest: int | None = None  # bytes of a statement, where all statements are ours
    _read_timeout: float | None

    def connect(self, sock: Any = None) -> None:
        """Connect; a server that takes the connection and then says nothing is not waited for either."""
        limit, self._read_timeout = self._read_timeout, self.connect_timeout
        try:
            super().connect(sock)
        finally:
            self._read_timeout = limit
        self._keep_alive()

    def _keep_alive(self) -> None:
        """Let the system notice a server that has disappeared."""
        if self._sock.family != socket.AF_UNIX:
            for name, value in _KEEPALIVE.items():
                if hasattr(socket, name):
                    self._sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def _execute_command(self, command: Any, sql: Any) -> None:
        self.asked += 1
        self.asking = True
        super()._execute_command(command, sql)

    def begin(self) -> None:
        # Not BEGIN: in sql_mode=ORACLE that begins a block of statements.
        self._execute_command(COMMAND.COM_QUERY, "START TRANSACTION")
        self._read_ok_packet()

    def query(self, sql: Any, unbuffered: bool = False) -> int:
        try:
            changed: int = super().query(sql, unbuffered)
        except pymysql.MySQLError as error:  # the server's own answer, or the connection is closed
            self.asking = False
            if error.args and error.args[0] == LOCK_TIMEOUT:
                error.statement = sql[:_TELLING]  # type: ignore[attr-defined]
            if self.largest is not None and error.args and error.args[0] == PACKET_TOO_LARGE:
                raise PacketTooLarge("a statement of Detent", len(sql), self.largest, "MySQL") from error
            raise
        self.asking = False
        return changed

    def _read_ok_packet(self) -> Any:
        try:
            answer = super()._read_ok_packet()
        except pymysql.MySQLError:
            self.asking = False
            raise
        self.asking = False
        return answer
