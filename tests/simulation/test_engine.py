"""The engine under faults: real committer, worker, heartbeat and store; simulated time and threads.

SIMULATION_SEED=123 pytest tests/simulation/test_engine.py -k one_seed      one seed
python -m tests.simulation.engine --seed 123                                 the same, with its trace
"""

import contextvars
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from detent.commit.committer import Committer
from detent.commit.entries import Entry
from detent.execution import bodies, services
from detent.execution.order import Turns
from detent.execution.services import Loop
from detent.stores.store import Store
from detent.worker import heartbeat
from detent.worker.heartbeat import Heartbeat
from detent.worker.worker import Worker
from tests.simulation.engine.faults import Faults
from tests.simulation.engine.world import World, simulate

CHUNKS, CHUNK = 8, 250
SOAK_CHUNKS, SOAK_CHUNK = 100, 1000
ROOT = Path(__file__).parents[2]


def check(seed: int) -> None:
    """Play one seed; a failure shows everything that happened."""
    world = simulate(seed)
    if world.violation is not None:
        trace = "\n".join(world.trace)
        pytest.fail(f"{trace}\n\nseed {seed}: {world.violation}", pytrace=False)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_nothing_is_lost_stuck_or_done_twice_whatever_fails(chunk: int) -> None:
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        check(seed)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("chunk", range(SOAK_CHUNKS))
def test_nothing_is_lost_stuck_or_done_twice_for_hours(chunk: int) -> None:
    first = 1_000_000 + chunk * SOAK_CHUNK
    for seed in range(first, first + SOAK_CHUNK):
        check(seed)


@pytest.mark.skipif("SIMULATION_SEED" not in os.environ, reason="give the seed in SIMULATION_SEED")
def test_one_seed() -> None:
    check(int(os.environ["SIMULATION_SEED"]))


def test_without_faults_everything_goes_well() -> None:
    for seed in range(10):
        world = simulate(seed, faults=Faults())
        assert world.violation is None, "\n".join(world.trace)


@pytest.mark.parametrize("seed", [9, 58, 313])
def test_a_seed_tells_the_same_story_in_every_process(seed: int) -> None:
    """Whatever was played before it, and however this process hashes texts."""
    here = simulate(seed).trace
    command = [sys.executable, "-m", "tests.simulation.engine", "--seed", str(seed)]
    for hashing in ("1", "2"):
        told = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hashing},
            capture_output=True,
            text=True,
            check=False,
        )
        assert told.stdout.splitlines() == here, told.stderr


# -- The simulation finds what it is for ---------------------------------------------------------------


def no_audit(worker: Worker) -> int:
    return 0


def look_nothing_up(committer: Committer, entry: Entry) -> None:
    entry.doubted = False


def nothing_to_look_up(committer: Committer, group: list[Entry]) -> list[Entry]:
    return []


def loop_without_a_thread(loop: Any) -> Any:
    """As it was: the loop is kept, though its thread could not be started."""
    replaced: Any = services
    with loop._guard:
        if loop._own is None:
            loop._own = replaced.asyncio.new_event_loop()
            thread = replaced.threading.Thread(target=loop._run, args=(loop._own,), name="detent-loop")
            contextvars.Context().run(thread.start)
            loop._thread = thread
        return loop._own


def in_any_order(init: Callable[..., None]) -> Callable[..., None]:
    def reversed_init(turns: Turns, frame: Any, loop: Any, recorded: list[Any], linger: float) -> None:
        init(turns, frame, loop, recorded[::-1], linger)

    return reversed_init


def reap_anyway(reap: Callable[..., Any]) -> Callable[..., Any]:
    def without_a_second_look(store: Store, worker: str, **options: Any) -> Any:
        options.pop("unless_renewed", None)
        return reap(store, worker, **options)

    return without_a_second_look


LOST_ANSWERS = Faults(lost=0.3, preempt=0.2)
DEATHS = Faults(crash=0.01, stop=0.01, preempt=0.02)

# What is broken on purpose, the faults that bring it to light, and how the finding reads.
BROKEN: dict[str, tuple[list[Any], Faults, str]] = {
    "nobody rescues the work of the dead": (
        [mock.patch.object(Heartbeat, "_rescue", return_value=None)],
        Faults(crash=0.01),
        "did not finish|nobody runs it",
    ),
    "a worker is declared dead at once": (
        [
            mock.patch.object(heartbeat, "SUSPECTED", -1.0),
            mock.patch.object(Store, "reap", reap_anyway(Store.reap)),
        ],
        Faults(lost_lock=0.4),
        "lives, and its work was given to others",
    ),
    "leases are not renewed": (
        [mock.patch.object(Store, "renew", return_value=True)],
        Faults(slow=0.02),
        "lives, and its work was given to others",
    ),
    "leases that nobody knows of are not handed back": (
        [mock.patch.object(Worker, "audit", no_audit)],
        Faults(lost=0.3, no_thread=0.2),
        "nobody runs it|did not finish",
    ),
    "a lost commit is not looked up, and nobody looks for its leases": (
        [
            mock.patch.object(Committer, "_look_up", look_nothing_up),
            mock.patch.object(Committer, "_to_look_up", nothing_to_look_up),
            mock.patch.object(Worker, "audit", no_audit),
        ],
        LOST_ANSWERS,
        "nobody runs it|did not finish",
    ),
    "a lost transaction is not looked up": (
        [mock.patch.object(bodies._Tries, "was_recorded", return_value=False)],
        LOST_ANSWERS,
        "the ledger of|runs again",
    ),
    "a loop whose thread could not be started is kept": (
        [mock.patch.object(Loop, "get", loop_without_a_thread)],
        Faults(no_thread=0.3),
        "did not finish",
    ),
    "recorded answers come in another order": (
        [mock.patch.object(Turns, "__init__", in_any_order(Turns.__init__))],
        DEATHS,
        "did not finish|StepMismatch",
    ),
}


@contextmanager
def broken(patches: list[Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield


def first_found(patches: list[Any], faults: Faults, seeds: range) -> World | None:
    for seed in seeds:
        with broken(patches):
            world = simulate(seed, faults=faults)
        if world.violation is not None:
            return world
    return None


@pytest.mark.parametrize("what", BROKEN)
def test_the_simulation_finds_that(what: str) -> None:
    patches, faults, finding = BROKEN[what]
    world = first_found(patches, faults, range(200))
    assert world is not None, f"200 seeds did not notice that {what}"
    with pytest.raises(AssertionError, match=finding):
        raise world.violation or AssertionError
    sound = simulate(world.seed, faults=faults)
    assert sound.violation is None, "\n".join(sound.trace)
