"""Which variants of a test run on which database.

A variant is one combination of a test's other parameters: sync or async, one of thirty exceptions.  Most
tests above the store have variants that differ in Python only: the statements are the same, and the
conformance tests run every statement on every database.  For these tests:

    SQLite                 runs every variant
    PostgreSQL, MariaDB    share the variants: each variant runs on one of the two, and each of the two
                           runs about half of them

`make soak` runs the rest.  The tests in PER_DATABASE depend on how a database behaves.  There, and in folders
that are not in SHARED, every variant runs on every database.  So does a variant that is named in full:

    pytest "tests/graphs/test_hooks.py::test_a_signal_cannot_be_suppressed[mysql-around-skip]"
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple
from zlib import crc32

SQLITE, SERVERS = "sqlite", ("postgres", "mysql")
SHARED = ("tests/dashboard/", "tests/deciders/", "tests/functions/", "tests/graphs/", "tests/kit/")
PER_DATABASE = (
    # Transactions, and connections that are lost, shared or inherited.
    "tests/deciders/test_rules.py",
    "tests/functions/test_ended_transactions.py",
    "tests/functions/test_forked_processes.py",
    "tests/functions/test_inside_transactions.py",
    "tests/functions/test_interrupted_start.py",
    "tests/functions/test_transactional_faults.py",
    "tests/functions/test_transactions.py",
    "tests/functions/test_unconfirmed.py",
    "tests/functions/test_within.py",
    "tests/functions/test_within_verbs.py",
    "tests/graphs/test_transactional_nodes.py",
    # Texts, as a database stores and compares them.
    "tests/dashboard/test_access.py",
    "tests/deciders/test_rules_records.py",
    "tests/functions/test_bad_text.py",
    "tests/functions/test_types.py",
    "tests/graphs/test_uniqueness.py",
)


class OnDatabase(NamedTuple):
    """A variant of a test on one database."""

    nodeid: str
    database: str

    @property
    def function(self) -> str:
        return self.nodeid.partition("[")[0]

    @property
    def variant(self) -> tuple[str, ...]:
        """The other parameters, as the node id spells them."""
        spelled = self.nodeid.partition("[")[2].removesuffix("]").split("-")
        spelled.remove(self.database)
        return tuple(spelled)


def left_to_the_soak(tests: Iterable[OnDatabase]) -> set[str]:
    """The node ids of those that `make test` does not run."""
    functions: dict[str, dict[tuple[str, ...], dict[str, str]]] = defaultdict(dict)
    for test in tests:
        if test.nodeid.startswith(SHARED) and not test.nodeid.startswith(PER_DATABASE):
            functions[test.function].setdefault(test.variant, {})[test.database] = test.nodeid
    left = set()
    for function, variants in functions.items():
        everywhere = [nodeids for nodeids in variants.values() if nodeids.keys() == {SQLITE, *SERVERS}]
        if len(everywhere) > 1:
            left |= {nodeids[SERVERS[_turn(function, n)]] for n, nodeids in enumerate(everywhere)}
    return left


def _turn(function: str, number: int) -> int:
    """0 or 1.  In strict turns one of the servers would run all sync variants, the other all async ones."""
    return (number.bit_count() + crc32(function.encode())) % 2
