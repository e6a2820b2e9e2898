"""The next moment of a worker: what commits report, and what looks into the database find."""

from detent.worker.next_moment import NextMoment


def test_the_earliest_report_counts() -> None:
    moment = NextMoment()
    assert moment.report(7)
    assert not moment.report(9)
    assert moment.report(5)
    assert moment.at == 5


def test_a_look_replaces_what_was_known() -> None:
    moment = NextMoment()
    moment.report(5)
    moment.found(moment.look(), 8)
    assert moment.at == 8
    moment.found(moment.look(), None)
    assert moment.at is None


def test_what_is_reported_during_a_look_is_kept() -> None:
    moment = NextMoment()
    mark = moment.look()
    moment.report(5)
    moment.found(mark, 8)
    assert moment.at == 5
    mark = moment.look()
    moment.report(6)
    moment.found(mark, None)
    assert moment.at == 5  # too early at worst, until the next look
    mark = moment.look()
    moment.report(6)
    moment.found(mark, 3)
    assert moment.at == 3
