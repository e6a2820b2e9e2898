"""The output of the demo: live in a terminal, line by line elsewhere, or none."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.spinner import Spinner
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from .output import STYLES, span

_NOTES = {"sleep": "no thread waits, and no process has to stay alive"}


@dataclass(frozen=True)
class Act:
    """One line of the workflow."""

    key: str
    title: str
    done: bool
    seconds: float | None


@dataclass(frozen=True)
class View:
    """The state of the order in the database."""

    order: str
    state: str
    acts: list[Act]
    packed: int
    of: int
    taken_up: bool
    over: bool
    seconds: float

    @property
    def now(self) -> Act | None:
        """The step that runs, or the next one."""
        return next((act for act in self.acts if not act.done), None)


@dataclass(frozen=True)
class Proof:
    """The counts that the steps wrote to the file."""

    order: str
    state: str
    result: Any
    counts: dict[str, int]
    packed_before: int
    packed_after: int
    killed: int
    second: int
    seconds: float
    problems: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return not self.problems

    def document(self) -> dict[str, Any]:
        return {
            "ok": self.holds,
            "run": self.order,
            "state": self.state,
            "result": self.result,
            "ran": self.counts,
            "packed_before_the_kill": self.packed_before,
            "packed_after_the_kill": self.packed_after,
            "killed": self.killed,
            "second": self.second,
            "seconds": round(self.seconds, 3),
            "problems": self.problems,
        }


@dataclass(frozen=True)
class Curtain:
    """The commands to inspect the order afterwards."""

    command: str
    url: str
    notes: str


class Stage:
    """Prints nothing; the base of all outputs."""

    worker: int | None = None

    def open(self, workflow: Callable[..., Any]) -> None: ...

    @contextmanager
    def running(self) -> Iterator[None]:
        yield

    def tell(self, text: str, *, alarm: bool = False) -> None: ...

    @contextmanager
    def noticing(self, text: str) -> Iterator[None]:
        """Tell this when what is waited for inside has happened."""
        yield
        self.tell(text)

    def show(self, view: View) -> None: ...

    def finish(self, proof: Proof, curtain: Curtain) -> None: ...


class Lines(Stage):
    """Plain lines, for pipes and logs."""

    def __init__(self, out: Console) -> None:
        self._out = out
        self._told: set[str] = set()
        self._seconds = 0.0

    def tell(self, text: str, *, alarm: bool = False) -> None:
        self._line(f"{'!!' if alarm else '--'} {text}")

    def show(self, view: View) -> None:
        self._seconds = view.seconds
        for act in view.acts:
            if act.done and act.key not in self._told:
                self._told.add(act.key)
                self._line(f"ok {act.title}  ({span(act.seconds)})")
        at = f"packed {view.packed}"
        if 0 < view.packed < view.of and at not in self._told:
            self._told.add(at)
            self._line(f"   packing: {view.packed} of {view.of}")

    def finish(self, proof: Proof, curtain: Curtain) -> None:
        self._line("what the steps recorded when they ran:")
        for name, count in proof.counts.items():
            self._line(f"   {name} ran {_times(count)} {_remark(name, count, proof)}".rstrip())
        for problem in proof.problems:
            self._line(f"!! {problem}")
        if proof.holds:
            self._line(f"ok result {_result(proof)}, in {span(proof.seconds)}; {_verdict()}")
        for line in _look_yourself(proof, curtain):
            self._out.print(f"           {line}", markup=False, soft_wrap=True)

    def _line(self, text: str) -> None:
        self._out.print(f"{self._seconds:6.1f} s   {text}", markup=False, soft_wrap=True)


class Theatre(Stage):
    """A terminal: events scroll by above a picture of the order that is always up to date."""

    def __init__(self, out: Console) -> None:
        self._out = out
        self._live: Live | None = None
        self._view: View | None = None
        self._spinner = Spinner("dots", style="bold blue")

    def open(self, workflow: Callable[..., Any]) -> None:
        source = inspect.getsource(workflow).rstrip()
        code = Syntax(source, "python", theme="ansi_dark", background_color="default")
        self._out.print()
        self._out.print(Text("  The workflow", style="bold"))
        self._out.print(Padding(code, (1, 4)))

    @contextmanager
    def running(self) -> Iterator[None]:
        with Live(
            console=self._out, get_renderable=self._picture, refresh_per_second=15, transient=False
        ) as live:
            self._live = live
            yield
            live.refresh()
        self._live = None

    def tell(self, text: str, *, alarm: bool = False) -> None:
        at = f"{self._view.seconds if self._view else 0:5.1f} s  "
        body = Text.assemble((f" {text} ", "bold white on red")) if alarm else Text(text)
        self._out.print(Text.assemble("  ", (at, "dim"), body))

    def show(self, view: View) -> None:
        self._view = view

    def _picture(self) -> Any:
        if self._view is None:
            return Text()
        view = self._view
        rows = Table.grid(padding=(0, 2), expand=True)
        rows.add_column(width=1)
        rows.add_column(min_width=16, no_wrap=True)
        rows.add_column(ratio=1, no_wrap=True)
        rows.add_column(justify="right", min_width=7, no_wrap=True)
        for act in view.acts:
            rows.add_row(*self._row(act, view))
        who = Text("no worker", style="bold red")
        if self.worker is not None:
            who = Text.assemble("worker ", (str(self.worker), "bold"))
        elif view.over:
            who = Text("done", style="green")
        title = Text.assemble(" ", (view.order, "bold"), "  ", (view.state, STYLES.get(view.state, "")), " ")
        border = "green" if view.over else "blue" if self.worker is not None else "red"
        return Padding(
            Panel(
                rows,
                title=title,
                title_align="left",
                subtitle=Text.assemble(" ", who, " "),
                subtitle_align="right",
                border_style=border,
                padding=(1, 2),
                width=min(self._out.width - 4, 72),
            ),
            (1, 2, 0, 2),
        )

    def _row(self, act: Act, view: View) -> tuple[Any, Any, Any, Any]:
        current = view.now is act
        detail: Any = Text(_NOTES.get(act.key, "") if current else "", style="dim")
        if act.key == "pack" and (view.packed or current):
            bar = ProgressBar(
                total=view.of,
                completed=view.packed,
                width=20,
                complete_style="blue" if self.worker is not None else "red",
                finished_style="green",
            )
            detail = Table.grid(padding=(0, 1))
            detail.add_row(bar, Text(f"{view.packed}/{view.of}", style="dim"))
        if act.done:
            return Text("✓", style="green"), act.title, detail, Text(span(act.seconds), style="dim")
        if not current:
            return Text("·", style="dim"), Text(act.title, style="dim"), detail, ""
        if self.worker is None:
            return Text("✗", style="bold red"), Text(act.title, style="red"), detail, ""
        return self._spinner, Text(act.title, style="bold"), detail, ""

    def finish(self, proof: Proof, curtain: Curtain) -> None:
        rows = Table.grid(padding=(0, 2))
        for name, count in proof.counts.items():
            style = "green" if count == 1 else "yellow"
            remark = Text(_remark(name, count, proof), style="dim")
            rows.add_row(Text(name), Text(f"ran {_times(count)}", style=style), remark)
        verdict = (
            Text.assemble(("✓ ", "bold green"), (f"{_verdict()}  ", "bold"), (span(proof.seconds), "dim"))
            if proof.holds
            else Text("\n".join(f"✗ {problem}" for problem in proof.problems), style="bold red")
        )
        result = Text.assemble(("result  ", "dim"), _result(proof)) if proof.holds else Text()
        steps = Text("What the steps recorded when they ran", style="bold")
        self._out.print()
        self._out.print(Padding(Group(steps, Text(), rows, Text(), verdict, result), (0, 4)))
        self._out.print()
        self._out.print(Padding(Rule(style="dim"), (0, 2)))
        for line in _look_yourself(proof, curtain):
            self._out.print(Text(f"  {line}", style="dim" if line.endswith(":") else ""), soft_wrap=True)
        self._out.print()


def stage_for(out: Console | None) -> Stage:
    """The output that fits stdout."""
    if out is None:
        return Stage()
    return Theatre(out) if out.is_terminal and not out.is_dumb_terminal else Lines(out)


def _times(count: int) -> str:
    return "1 time" if count == 1 else f"{count} times"


def _remark(name: str, count: int, proof: Proof) -> str:
    if name != "pack" or count < 2:
        return ""
    return f"(killed in the middle: {proof.packed_before} things packed before, {proof.packed_after} after)"


def _verdict() -> str:
    return "nothing was lost, and nothing finished was done twice"


def _result(proof: Proof) -> str:
    return ", ".join(f"{name} {value}" for name, value in (proof.result or {}).items())


def _look_yourself(proof: Proof, curtain: Curtain) -> list[str]:
    return [
        "Inspect it yourself:",
        f"{curtain.command} show {curtain.url} {proof.order}",
        f"{curtain.command} runs {curtain.url}",
        f"{curtain.command} dashboard {curtain.url}",
        f"cat {curtain.notes}",
    ]
