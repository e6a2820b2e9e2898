"""Connections of Detent to MySQL and MariaDB: PyMySQL's, with what the driver has to know about them."""

from __future__ import annotations

import socket
import ssl
from typing import TYPE_CHECKING, Any

from ...errors import PacketTooLarge
from ..addresses import unchecked
from .results import Result
from .session import Session

if TYPE_CHECKING:
    import pymysql
    from pymysql import connections
    from pymysql.constants import COMMAND, SERVER_STATUS

    class Connection(connections.Connection[Any]):
        """With the private parts that we use, and that have no type information."""

        _sock: socket.socket
        ctx: ssl.SSLContext

        def _create_ssl_ctx(self, sslp: Any) -> ssl.SSLContext: ...
        def _execute_command(self, command: Any, sql: Any) -> None: ...
        def _read_ok_packet(self) -> Any: ...
        def _read_packet(self, packet_type: Any = ...) -> Any: ...
        def _read_query_result(self, unbuffered: bool = False) -> int: ...

        _result: Any
        server_status: int
else:
    try:
        import pymysql
        from pymysql.connections import Connection
        from pymysql.constants import COMMAND, SERVER_STATUS
    except ImportError:  # the driver reports it when this database is opened
        pymysql = None
        Connection = object

LOCK_TIMEOUT, PACKET_TOO_LARGE, INTERRUPTED = 1205, 1153, 1317  # errors of the server
DUPLICATE, OUT_OF_RANGE = 1062, 1690
LOST = 2013  # an error of the client: the server has not answered
_MULTI_STATEMENTS_ON = b"\x00\x00"  # the argument of COM_SET_OPTION
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
    session: Session | None = None  # sends several statements at once, where all of them are ours
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
            self._explain(error, sql, len(sql))
            raise
        self.asking = False
        return changed

    def execute_all(self, statements: list[str]) -> list[Any]:
        """Execute statements in one round trip, up to the first error, which is raised."""
        if not self.is_literal():
            raise pymysql.InterfaceError(0, "the settings of the session are not those of Detent any more")
        packet = ";\n".join(statements).encode(self.encoding)
        results: list[Any] = []
        try:
            self._execute_command(COMMAND.COM_QUERY, packet)
            self._read_query_result()
            results.append(self._result)
            while self._result.has_next:
                self._read_query_result()
                results.append(self._result)
        except pymysql.MySQLError as error:
            self.asking = False
            self._explain(error, statements[min(len(results), len(statements) - 1)], len(packet))
            if not self.open and code_of(error) is None:  # PyMySQL could not read the answer
                raise pymysql.err.OperationalError(LOST, f"the connection was lost: {error}") from error
            raise
        self.asking = False
        if len(results) > len(statements):  # a statement of ours is several: a mistake in its text
            raise pymysql.InternalError("the server has executed more statements than were sent")
        if len(results) < len(statements):  # interrupted between two; the COMMIT is always the last
            raise pymysql.err.OperationalError(INTERRUPTED, "the server has not executed all statements")
        return results

    def _read_query_result(self, unbuffered: bool = False) -> int:
        if self.session is None:  # users may rely on how PyMySQL reads
            return super()._read_query_result(unbuffered)
        self._result = None
        result = Result(self)
        result.read()
        self._result = result
        if result.server_status is not None:
            self.server_status = result.server_status
        return result.affected_rows or 0

    def is_literal(self) -> bool:
        """Whether a backslash is only a backslash in this session, so that a text ends at a quote."""
        return bool(self.server_status & SERVER_STATUS.SERVER_STATUS_NO_BACKSLASH_ESCAPES)

    def allow_several(self) -> bool:
        """Let a command have several statements; False if the server, or a proxy before it, refuses that."""
        try:
            self._execute_command(COMMAND.COM_SET_OPTION, _MULTI_STATEMENTS_ON)
            self._read_packet()
            self.execute_all(["DO 0", "DO 0"])  # a proxy may accept the option alone
        except pymysql.MySQLError:
            self.asking = False
            if self.open:
                return False
            raise
        self.asking = False
        return True

    def _explain(self, error: pymysql.MySQLError, statement: Any, size: int) -> None:
        """Add what the server does not say: which statement it was, and how large it may be."""
        code = code_of(error)
        if code == LOCK_TIMEOUT:
            error.statement = statement[:_TELLING]  # type: ignore[attr-defined]
        if self.largest is not None and code == PACKET_TOO_LARGE:
            raise PacketTooLarge("a statement of Detent", size, self.largest, "MySQL") from error

    def _read_ok_packet(self) -> Any:
        try:
            answer = super()._read_ok_packet()
        except pymysql.MySQLError:
            self.asking = False
            raise
        self.asking = False
        return answer


def code_of(error: BaseException) -> int | None:
    """The number of an error; None if it has only a text."""
    return error.args[0] if error.args and isinstance(error.args[0], int) else None
