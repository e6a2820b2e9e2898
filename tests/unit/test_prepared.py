"""Our own way through libpq: what it makes of a session that the server has ended."""

from typing import Any

import psycopg
import pytest

from detent.stores.postgres.prepared import Flight, Session


class Ended:
    """A connection after a FATAL: libpq has no more results, and says so by None."""

    error = "FATAL: terminating connection due to administrator command"

    closed = False

    def is_busy(self) -> bool:
        return False

    def get_result(self) -> None:
        return None

    def get_error_message(self) -> str:
        return self.error

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("said", [Ended.error, ""])
def test_an_answer_that_never_comes_is_a_lost_connection(said: str) -> None:
    session: Any = Session.__new__(Session)
    session.pgconn = Ended()
    session.pgconn.error = said
    session._connection = Ended()
    with pytest.raises(psycopg.OperationalError, match=said or "lost"):
        Flight(session, [], flushed=True).wait()
    assert session._connection.closed
