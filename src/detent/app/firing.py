"""From a stored schedule to the start of a run; what a worker's scheduler needs from its app."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any

import msgspec

from ..definitions.blueprint import Blueprint
from ..definitions.functions import FunctionWorkflow
from ..definitions.templates import Template
from ..errors import UnknownDefinition
from ..execution.calls import decode_call
from ..execution.fields import decode_fields
from ..execution.services import Services
from ..kernel import schedules as rules
from ..kernel.operations import Start
from ..kernel.rows import Attribute
from ..kernel.schedules import ScheduleRow, Timing
from ..serialization.decoders import decode
from .attributes import with_attributes
from .settings import Options
from .starting import plan_runs


class RunTerms(msgspec.Struct, omit_defaults=True):
    """How the runs of a schedule are started."""

    queue: str | None = None
    priority: int | None = None
    deadline: int | None = None  # microseconds after the start
    attributes: dict[str, Attribute] | None = None


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """A schedule as it was asked for, checked."""

    name: str
    job: str
    input: str
    plain_input: str  # the same without encryption, which never writes the same text twice
    timing: Timing
    terms: RunTerms

    @cached_property
    def fingerprint(self) -> str:
        """The same for declarations that say the same."""
        said = msgspec.json.encode([self.job, self.plain_input, self.timing, self.terms])
        return hashlib.sha256(said).hexdigest()

    def row(self, source: str, now: int) -> ScheduleRow:
        """The row of a new schedule."""
        next_for, due_at = rules.first_times(self.name, self.timing, now)
        return ScheduleRow(
            name=self.name,
            source=source,
            state=rules.ACTIVE,
            job=self.job,
            input=self.input,
            timing=msgspec.json.encode(self.timing).decode(),
            terms=msgspec.json.encode(self.terms).decode(),
            fingerprint=self.fingerprint,
            former="[]",
            served_by=rules.served_by(source, self.name, self.job),
            next_for=next_for,
            due_at=due_at,
            queued_for=None,
            last_for=None,
            last_run=None,
            fired=0,
            skipped=0,
            error=None,
            reason=None,
            seen_at=now,
            created_at=now,
            updated_at=now,
        )


def start_of(services: Services, row: ScheduleRow, nominal: int) -> Start:
    """The start of the run of a firing; nothing is leased yet."""
    terms = decode(row.terms, RunTerms)
    options = Options(
        id=rules.run_id(row.name, nominal),
        queue=terms.queue,
        priority=terms.priority,
        deadline=None if terms.deadline is None else timedelta(microseconds=terms.deadline),
    )
    start = plan_runs(services, row.job, [_call_of(services, row)], options, None)
    return with_attributes(start, terms.attributes)


def _call_of(services: Services, row: ScheduleRow) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a schedule's runs, as today's code annotates them."""
    found = services.registry.find(row.job)
    if isinstance(found, Blueprint):
        return (), decode_fields(services.codec, found, row.input)
    if isinstance(found, FunctionWorkflow | Template):
        return decode_call(services.codec, found, row.input)
    raise UnknownDefinition(row.job)


class Firing:
    """What a worker's scheduler needs from its app."""

    def __init__(
        self,
        services: Services,
        declarations: Mapping[str, Declaration],
        canceled: Callable[[Sequence[str]], None],
    ) -> None:
        self._services = services
        self._declarations = declarations
        self.canceled = canceled

    def declared(self) -> dict[str, str]:
        return {name: one.fingerprint for name, one in list(self._declarations.items())}

    def rows(self, names: Collection[str], now: int) -> Sequence[ScheduleRow]:
        return [self._declarations[name].row(rules.CODE, now) for name in sorted(names)]

    def jobs(self) -> Collection[str]:
        return self._services.registry.workflows

    def start(self, row: ScheduleRow, nominal: int) -> Start:
        return start_of(self._services, row, nominal)
