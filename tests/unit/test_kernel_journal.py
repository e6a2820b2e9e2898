"""The journal: the same calls get the same keys, whatever was added around them."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from detent.kernel.journal import Journal, Scope
from detent.kernel.rows import Step

names = st.sampled_from(["charge", "ship", "sleep", "now"])
# What a line of calls does: call something, or begin a task that does things of its own.
programs: st.SearchStrategy[list[Any]] = st.recursive(
    st.lists(names, max_size=6), lambda inner: st.lists(names | inner, max_size=6), max_leaves=30
)


def keys(program: list[Any], scope: Scope | None = None) -> list[str]:
    scope = scope or Scope()
    found: list[str] = []
    for call in program:
        found += keys(call, scope.child("branch")) if isinstance(call, list) else [scope.key(call)]
    return found


def step(key: str, seq: int = 1, state: str = "completed") -> Step:
    return Step(run_id="run", key=key, seq=seq, kind="step", name=key, state=state, written_by=1)


def test_the_first_call_has_the_bare_name_and_the_next_are_numbered() -> None:
    assert keys(["charge", "ship", "charge", "charge"]) == ["charge", "ship", "charge#2", "charge#3"]


def test_tasks_count_for_themselves() -> None:
    assert keys(["charge", ["charge", "charge"], ["charge", ["charge"]]]) == [
        "charge",
        "branch:charge",
        "branch:charge#2",
        "branch#2:charge",
        "branch#2:branch:charge",
    ]


def test_a_task_of_another_function_does_not_move_the_others() -> None:
    root = Scope()
    assert [root.child(name).path for name in ("a", "b", "a")] == ["a:", "b:", "a#2:"]


@given(programs)
def test_no_two_calls_share_a_key(program: list[Any]) -> None:
    found = keys(program)
    assert len(set(found)) == len(found)


@given(programs)
def test_a_replay_asks_for_the_same_keys(program: list[Any]) -> None:
    assert keys(program) == keys(program)


@given(programs, st.data())
def test_a_step_of_a_new_name_does_not_move_the_others(program: list[Any], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(program)))
    changed = [*program[:place], "added", *program[place:]]
    assert [key for key in keys(changed) if key != "added"] == keys(program)


@given(st.lists(st.lists(names, max_size=4), min_size=2, max_size=3), st.randoms())
def test_the_order_in_which_tasks_get_on_does_not_matter(tasks: list[list[str]], random: Any) -> None:
    def interleaved(order: list[int]) -> dict[int, list[str]]:
        root = Scope()
        scopes = [root.child("branch") for _ in tasks]
        left = [list(task) for task in tasks]
        found: dict[int, list[str]] = {number: [] for number in range(len(tasks))}
        for number in order:
            found[number].append(scopes[number].key(left[number].pop(0)))
        return found

    order = [number for number, task in enumerate(tasks) for _ in task]
    shuffled = list(order)
    random.shuffle(shuffled)
    assert interleaved(order) == interleaved(shuffled)


def test_what_is_recorded_is_found_by_its_key() -> None:
    journal = Journal([step("charge"), step("charge#2", seq=2)])
    found = journal.find("charge#2")
    assert found is not None
    assert found.seq == 2
    assert journal.find("ship") is None


def test_numbers_go_on_where_the_journal_ends() -> None:
    assert Journal([step("a", seq=7), step("b", seq=3)]).next_seq() == 8
    assert [Journal().next_seq()] == [1]


def test_what_the_code_no_longer_asks_for_is_told() -> None:
    journal = Journal([step("old"), step("charge", seq=2)])
    journal.find("charge")
    journal.find("new")
    assert [entry.key for entry in journal.unasked()] == ["old"]


def test_what_succeeded_is_told_in_the_order_of_recording() -> None:
    journal = Journal([step("b", seq=2), step("c", seq=3, state="failed"), step("a", seq=1)])
    journal.put(step("d", seq=4))
    assert [entry.key for entry in journal.completed()] == ["a", "b", "d"]


def test_a_later_state_of_an_entry_takes_the_place_of_the_earlier() -> None:
    journal = Journal([step("a", state="executing")])
    journal.put(step("a", state="completed"))
    found = journal.find("a")
    assert found is not None
    assert found.state == "completed"
