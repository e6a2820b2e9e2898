"""What tests of outcomes share."""

from typing import Any

from tests.functions.world import (
    CardDeclined,
)


def decline(self: Any) -> None:
    raise CardDeclined(51, card="4111")
