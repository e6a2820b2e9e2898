"""One campaign: start everything, inject faults, let everything end, and judge."""

import json
import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import detent
from tests.acceptance.programs import effects
from tests.acceptance.support import query

from . import workload
from .crew import Crew
from .faults import Fault
from .judge import Evidence, Verdict, judge
from .places import Place

BEGINS_WITHIN = 60.0  # seconds


@dataclass(frozen=True)
class Plan:
    """What to do; with the seed, which moments and victims are chosen."""

    fault: type[Fault]
    database: str
    count: int
    seed: int
    folder: Path
    workers: int = 3
    mean: float | None = None  # seconds between two faults; None: as the fault says
    pause: float = 0.2  # seconds that a body takes at most
    in_flight: int = 60
    ends_within: float = 120.0  # seconds for all runs, after the last fault
    settings: dict[str, Any] = field(default_factory=dict)


def conduct(plan: Plan, say: Callable[[str], None] = lambda text: None) -> Verdict:
    """Carry out a campaign; the evidence stays in its folder."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    (plan.folder / "plan.json").write_text(
        json.dumps(
            {"fault": plan.fault.name, "database": plan.database, "count": plan.count, "seed": plan.seed}
        )
    )
    with ExitStack() as stack:
        here = stack.enter_context(plan.fault.open_place(plan.database, plan.folder))
        app = stack.enter_context(detent.App(here.url, include=[workload], migrate=True).open(worker=False))
        with app.engine.store.transaction() as tx:
            tx.run(workload.TABLE)
        crew = Crew(
            plan.folder,
            here.url,
            workers=plan.workers,
            pause=plan.pause,
            in_flight=plan.in_flight,
            settings=plan.settings,
            program=plan.fault.program,
            client_works=plan.fault.client_works,
        )
        stack.callback(crew.close)
        return Campaign(plan, here, app, crew, say).conduct()


class Campaign:
    def __init__(
        self, plan: Plan, here: Place, app: detent.App, crew: Crew, say: Callable[[str], None]
    ) -> None:
        self._plan = plan
        self._app = app
        self._crew = crew
        self._say = say
        self._chance = random.Random(plan.seed)
        self._fault = plan.fault(here, crew, self._chance)
        self._other: list[str] = []

    def conduct(self) -> Verdict:
        began = time.monotonic()
        self._wait_for_work()
        faults = self._inject()
        last = time.monotonic()
        self._end()
        if self._fault.lossy:
            self._start_again()
        ledger = self._wait_for_all(last + self._plan.ends_within)
        drained = time.monotonic()
        verdict = judge(
            Evidence(
                log=effects.read(self._crew.log),
                ledger=ledger,
                states=self._states(),
                faults=faults,
                killed=self._crew.killed,
                lossy=self._fault.lossy,
                other=self._other + self._close(),
            )
        )
        verdict.figures["seconds of faults"] = round(last - began, 1)
        verdict.figures["seconds from the last fault to the last end"] = round(drained - last, 1)
        self._keep(ledger, verdict)
        return verdict

    def _wait_for_work(self) -> None:
        deadline = time.monotonic() + BEGINS_WITHIN
        while not any(line.kind == "returned" for line in effects.read(self._crew.log)):
            if time.monotonic() > deadline:
                raise RuntimeError(f"nothing was executed; see the logs in {self._plan.folder}")
            time.sleep(0.05)

    def _inject(self) -> list[int]:
        """All faults; gives when each of them was over."""
        mean = self._plan.mean or self._fault.mean
        times: list[int] = []
        with (self._plan.folder / "faults.log").open("w") as file:
            for number in range(self._plan.count):
                time.sleep(min(self._chance.expovariate(1 / mean), 4 * mean))
                self._crew.replace_fallen()
                began, what = time.monotonic_ns(), self._fault.strike()
                times.append(self._fault.restored)
                print(began, times[-1], what, file=file, flush=True)
                if (number + 1) % 100 == 0:
                    self._say(f"{number + 1} faults")
        self._fault.close()
        return times

    def _end(self) -> None:
        self._crew.replace_fallen()
        code = self._crew.stop_client(self._plan.ends_within)
        if code is None:
            self._other.append("the client hangs")
            self._crew.kill(self._crew.client)
        elif code:
            self._other.append(f"the client ended with code {code}")
        self._say(f"the client has ended with code {code}")

    def _start_again(self) -> None:
        """What a user does who knows that commits may be lost: the same ids once more."""
        for number in range(self._started()):
            workload.start(self._app, number)

    def _wait_for_all(self, deadline: float) -> list[tuple[str, str]]:
        """Until every run has written all its rows, or the time is over."""
        expected = {
            (workload.owner_of(n), row) for n in range(self._started()) for row in workload.expected(n)
        }
        while True:
            ledger = [(str(o), str(p)) for o, p in query(self._app, f"SELECT * FROM {workload.LEDGER}")]
            if expected <= set(ledger) or time.monotonic() > deadline:
                # What would be written once too often needs a moment as well.
                time.sleep(1)
                return [(str(o), str(p)) for o, p in query(self._app, f"SELECT * FROM {workload.LEDGER}")]
            self._crew.replace_fallen()
            time.sleep(0.25)

    def _started(self) -> int:
        """How many starts were tried; the client tries each until it is confirmed."""
        tried = [int(line.place) for line in effects.read(self._crew.log) if line.kind == "starting"]
        return max(tried, default=-1) + 1

    def _states(self) -> dict[int, str]:
        known = dict(query(self._app, "SELECT id, state FROM detent_runs"))
        return {n: str(known.get(workload.run_id(n), "")) for n in range(self._started())}

    def _close(self) -> list[str]:
        hanging = [code for code in self._crew.drain() if code != 0]
        complaints = [f"{len(hanging)} workers did not end well after SIGTERM: {hanging}"] if hanging else []
        if self._crew.ended_alone:
            complaints.append(f"processes ended by themselves: {self._crew.ended_alone[:5]}")
        return complaints

    def _keep(self, ledger: list[tuple[str, str]], verdict: Verdict) -> None:
        folder = self._plan.folder
        (folder / "ledger.csv").write_text("".join(f"{owner},{place}\n" for owner, place in sorted(ledger)))
        (folder / "verdict.json").write_text(
            json.dumps({"figures": verdict.figures, "broken": verdict.broken}, indent=2)
        )
