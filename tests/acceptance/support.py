"""Real processes, what they leave behind, and what must hold of it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from detent import App, Run
from detent.stores.driver import Trouble
from tests.acceptance.programs import chains, effects
from tests.acceptance.programs.effects import Effect

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = "tests.acceptance.programs"
PATIENCE = 90.0  # seconds for what is certain to happen, on a machine that is busy with something else


def eventually(condition: Callable[[], Any], what: str, within: float = PATIENCE) -> Any:
    """Wait until the condition gives something true, and return that."""
    deadline = time.monotonic() + within
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {within:.0f} s in vain: {what}"
        time.sleep(0.02)
    return found


class Process:
    """A program of ours, in a process of its own."""

    def __init__(self, argv: Sequence[str], log: Path, environment: dict[str, str]) -> None:
        self.log = log
        with log.open("wb") as output:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", *argv],
                cwd=ROOT,
                env=os.environ | environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def alive(self) -> bool:
        return self._popen.poll() is None

    def is_stopped(self) -> bool:
        """Whether a SIGSTOP has reached all of it."""
        tasks = Path(f"/proc/{self.pid}/task").glob("*/stat")
        return all(task.read_text().rpartition(")")[2].split()[0] == "T" for task in tasks)

    def send(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        self._popen.kill()
        self._popen.wait()

    def end(self) -> int:
        """SIGTERM; returns the exit code."""
        self._popen.terminate()
        return self.wait()

    def wait(self) -> int:
        """Wait for its end; one that hangs writes into its log what its threads are doing."""
        try:
            return self._popen.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._popen.send_signal(signal.SIGABRT)
            self._popen.wait()
            raise AssertionError(f"a process hangs:\n{self.log.read_text(errors='replace')}") from None


class World:
    """One database, the processes that work on it, and the effects of their bodies."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self.effects_file = folder / "effects"
        self.processes: list[Process] = []
        self._apps: list[App] = []
        os.environ[effects.VARIABLE] = str(self.effects_file)

    def app(self, *include: Any, **settings: Any) -> App:
        """An app in this process, without a worker."""
        app = App(self.url, include=include, migrate=True, **settings).open()
        self._apps.append(app)
        return app

    def chains(self, **settings: Any) -> App:
        """The same for the chains, with the table that they write to."""
        app = self.app(chains, **settings)
        with app.engine.store.transaction() as tx:
            tx.run(chains.TABLE)
        return app

    def release(self) -> None:
        """Let go what hangs."""
        self.effects_file.with_suffix(".release").touch()

    def start(self, program: str, *argv: str, **environment: str) -> Process:
        """Start any program of the folder."""
        log = self.folder / f"process-{len(self.processes)}.log"
        process = Process([f"{PROGRAMS}.{program}", *argv], log, environment)
        self.processes.append(process)
        return process

    def worker(
        self, module: str = "chains", program: str = "worker", *, pause: float = 0.02, **settings: Any
    ) -> Process:
        """Start a worker for what a module defines; a body takes at most `pause` seconds."""
        given = json.dumps({"url": self.url, **settings})
        return self.start(program, f"{PROGRAMS}.{module}", given, DETENT_ACCEPTANCE_PAUSE=str(pause))

    def effects(self) -> list[Effect]:
        return effects.read(self.effects_file)

    def logs(self) -> str:
        return "\n".join(process.log.read_text(errors="replace") for process in self.processes)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        for app in self._apps:
            app.close()


def alive(app: App, *workers: Process) -> bool:
    """Whether these processes have begun to work."""
    pids = {worker.pid for worker in app.engine.store.workers()}
    return all(worker.pid in pids for worker in workers)


def begin(world: World, app: App, count: int, **settings: Any) -> list[Process]:
    """Start workers, and wait until all of them work."""
    workers = [world.worker(**settings) for _ in range(count)]
    eventually(lambda: alive(app, *workers), "all workers have begun")
    return workers


def query(app: App, statement: str) -> list[tuple[Any, ...]]:
    """Ask the database; a connection that was cut meanwhile is replaced."""
    while True:
        try:
            with app.engine.store.transaction() as tx:
                return tx.query(statement)
        except Exception as error:
            if app.engine.store.driver.trouble(error) is not Trouble.GONE:
                raise


def start_chains(app: App, count: int) -> list[Run[Any]]:
    """As many workflows, half of them `def`, half `async def`."""
    half = count // 2
    return [
        *app.start_many(chains.chain, [()] * half),
        *app.start_many(chains.achain, [()] * (count - half)),
    ]


def states(app: App) -> Counter[str]:
    """How many runs are in which state."""
    found = query(app, "SELECT state, COUNT(*) FROM detent_runs GROUP BY state")
    return Counter({str(state): int(count) for state, count in found})


def all_finish(world: World, app: App, count: int, within: float = PATIENCE) -> None:
    """Wait until all runs are finished; one that ends otherwise fails at once."""

    def finished() -> bool:
        now = states(app)
        assert not now.keys() - {"ready", "finished"}, f"{now}: {_errors(app)}\n{world.logs()[-20_000:]}"
        return now == {"finished": count}

    try:
        eventually(finished, f"{count} runs finish", within)
    except AssertionError as error:
        left = query(
            app,
            "SELECT e.run_id, e.attempt, e.state, e.worker, e.deliveries FROM detent_executions e"
            " JOIN detent_runs r ON r.id = e.run_id WHERE r.state <> 'finished'",
        )
        raise AssertionError(f"{error}\n{states(app)} {left[:20]}\n{world.logs()[-20_000:]}") from None


def _errors(app: App) -> list[Any]:
    return query(app, "SELECT id, state, error FROM detent_runs WHERE state NOT IN ('ready', 'finished')")[:3]


def finish_exactly_once(world: World, app: App, runs: Sequence[Run[Any]], within: float = PATIENCE) -> None:
    """Wait until all chains have finished; then check everything that must hold of them."""
    all_finish(world, app, len(runs), within)
    settled_once(app, len(runs))
    written_once(app, len(runs))
    journals_agree(world, app, runs)
    recorded_bodies_stay(world)


def settled_once(app: App, count: int) -> None:
    """Every run ended by one execution, and left nothing behind."""
    ends = query(
        app, "SELECT run_id, COUNT(*) FROM detent_executions WHERE outcome = 'success' GROUP BY run_id"
    )
    assert len(ends) == count
    assert {number for _, number in ends} == {1}
    left = query(
        app,
        "SELECT run_id, node, attempt, state FROM detent_executions"
        " WHERE state IN ('ready', 'timer', 'parked', 'held', 'executing')",
    )
    assert left == []


def written_once(app: App, count: int) -> None:
    """Every transactional step has written its row, and none has written two."""
    rows = query(app, "SELECT run_id, place, COUNT(*) FROM chain_writes GROUP BY run_id, place")
    assert len(rows) == count * len(chains.WRITING)
    assert {number for *_, number in rows} == {1}


def journals_agree(world: World, app: App, runs: Sequence[Run[Any]]) -> None:
    """What a workflow saw, every time that it came by, is what was recorded and what it returned."""
    seen: dict[tuple[str, int], set[str]] = defaultdict(set)
    for effect in world.effects():
        if effect.kind == "returned":
            seen[effect.run, int(effect.place)].add(effect.value)
    for run in runs:
        result = run.result(timeout=timedelta(seconds=PATIENCE))
        assert [seen[run.id, place] for place in range(chains.PLACES)] == [{value} for value in result]
    recorded = query(app, "SELECT COUNT(*) FROM detent_steps WHERE state = 'completed' AND kind = 'step'")
    assert recorded[0][0] == len(runs) * chains.PLACES


def recorded_bodies_stay(world: World) -> None:
    """No body began after its record.

    The record is durable before the step returns to the workflow, and a workflow whose step has returned
    writes a line: whatever begins after that line has begun after the record.
    """
    recorded: dict[tuple[str, str], int] = {}
    for effect in world.effects():
        if effect.kind == "returned":
            step = (effect.run, effect.place)
            recorded[step] = min(effect.at, recorded.get(step, effect.at))
    late = [
        effect
        for effect in world.effects()
        if effect.kind == "begin" and effect.at > recorded.get((effect.run, effect.place), effect.at)
    ]
    assert late == []
