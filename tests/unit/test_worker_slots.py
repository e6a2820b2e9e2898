"""The slots of a worker (worker/slots.py)."""

from detent.worker.slots import FEW, WorkerSlots


def test_a_slot_is_promised_then_occupied_then_free() -> None:
    slots = WorkerSlots(3, overlapping=True)
    slots.promise("a", "b")
    assert slots.free == 1
    slots.occupy("a")
    slots.take_back(["b"])
    assert slots.free == 2
    slots.vacate("a")
    assert slots.free == 3


def test_what_is_said_twice_counts_once() -> None:
    slots = WorkerSlots(2, overlapping=True)
    for _ in range(2):
        slots.promise("a")
        slots.occupy("a")
        assert slots.free == 1
    for _ in range(2):
        assert slots.end_early("a")
        assert slots.free == 2
    for _ in range(2):
        slots.vacate("a")
        slots.take_back(["a"])
        assert slots.free == 2


def test_as_many_ends_as_slots_may_be_uncommitted() -> None:
    slots = WorkerSlots(2, overlapping=True)
    slots.promise("a", "b", "c")
    for token in "abc":
        slots.occupy(token)
    assert [slots.end_early(token) for token in "abc"] == [True, True, False]
    slots.vacate("a")
    assert slots.end_early("c")


def test_an_end_keeps_its_slot_where_there_is_one_or_where_claims_wait_for_commits() -> None:
    for slots in (WorkerSlots(1, overlapping=True), WorkerSlots(9, overlapping=False)):
        slots.promise("a")
        slots.occupy("a")
        assert not slots.end_early("a")
        assert slots.free == slots.number - 1


def test_a_claim_asks_for_a_few_until_there_are_many() -> None:
    slots = WorkerSlots(100, overlapping=True)
    assert slots.room() == FEW
    slots.found(FEW)
    assert slots.room() == 100
    slots.found(FEW - 1)
    assert slots.room() == FEW


def test_a_claim_never_asks_for_more_than_there_are_slots() -> None:
    slots = WorkerSlots(2, overlapping=True)
    slots.found(FEW)
    slots.promise("a")
    assert slots.room() == 1
    slots.promise("b", "c")  # handed on before its end
    assert slots.room() == 0
