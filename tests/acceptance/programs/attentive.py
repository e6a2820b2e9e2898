"""A worker that never looks by itself: whatever it does, a notification has told it to."""

from unittest import mock

from detent.clock import SystemClock
from detent.stores.mysql.driver import MySqlListener
from detent.stores.sqlite.siblings import Ear
from detent.worker import heartbeat

from . import worker

HOUR = 3600.0
sleep_in_server = MySqlListener._sleep


def sleep_long(listener: MySqlListener, seconds: float) -> bool:
    """Sleep until somebody ends it."""
    return sleep_in_server(listener, HOUR)


if __name__ == "__main__":
    with (
        mock.patch.object(heartbeat, "BEAT", HOUR),
        mock.patch.object(SystemClock, "longest_wait", HOUR),
        mock.patch.object(Ear, "_data_version", return_value=0),
        mock.patch.object(MySqlListener, "_sleep", sleep_long),
    ):
        worker.main()
