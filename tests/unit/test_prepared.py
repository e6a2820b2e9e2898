"""Our own way through libpq: what it makes of a session that the server has ended."""

from typing import Any

import psycopg
import pytest

from detent.stores.postgres.prepared import Session


class Ended:
    """A connection after a FATAL: libpq has no more results, and says so by None."""

    error = "FATAL: terminating connection due to administrator command"

    def is_busy(self) -> bool:
        return False

    def get_result(self) -> None:
        return None

    def get_error_message(self) -> str:
        return self.error


@pytest.mark.parametrize("said", [Ended.error, ""])
def test_an_answer_that_never_comes_is_a_lost_connection(said: str) -> None:
    session: Any = Session.__new__(Session)
    session._pgconn = Ended()
    session._pgconn.error = said
    with pytest.raises(psycopg.OperationalError, match=said or "lost"):
        session._next()
