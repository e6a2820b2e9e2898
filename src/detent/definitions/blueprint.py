"""What a workflow class declares, gathered and compiled when its body ends.

The chain is resolved late (`PREVIOUS`), every name is looked up, and the graph is made.
Whatever is wrong is said here, with the node, its source line and what to write instead.
A subclass begins with what its parents declared and never changes them.
"""

from __future__ import annotations

import ast
import copy
import inspect
import textwrap
import typing
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from types import FunctionType
from typing import Any, ClassVar

from ..arguments import check_flag
from ..digests import sha256
from ..errors import DefinitionError, InvalidOption
from ..kernel.graph import Graph, Node, class_graph, find_cycle, name_problem
from ..kernel.policies import ExceptionPolicy
from ..serialization.annotations import NoForm, name_of
from ..serialization.forms import form_of
from ..serialization.signatures import ADVICE
from .decorators import StepMaker
from .functions import Definition, Step
from .node_options import PREVIOUS, KeyOption, check_condition
from .transactional import NO_ISOLATION

LONGEST_CLASS_NAME = 100
ANONYMOUS = "_"
ANNOTATED = frozenset({"hero", "may_proceed_without_hero"})  # a subclass may narrow their types


class Body(dict[str, Any]):
    """The body of a workflow class while it is written down."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes: dict[str, Step[Any, Any] | StepMaker] = {}
        self.anonymous: list[Step[Any, Any]] = []
        self.conditions: list[Any] = []
        self.policies: list[ExceptionPolicy] = []
        self.job_options: dict[str, Any] = {}

    def __setitem__(self, name: str, value: Any) -> None:
        if name in self.nodes:
            raise DefinitionError(
                f"{self.get('__qualname__')}.{name} is defined twice{_place(self.nodes[name])}: "
                f"nodes need different names; rename one of them"
            )
        if isinstance(value, Step) and value.is_method:
            if name == ANONYMOUS:
                self.anonymous.append(value)
                self.nodes[f"{ANONYMOUS}{len(self.anonymous)}"] = value
            else:
                self.nodes[name] = value
        elif isinstance(value, Step) and value.__qualname__ == f"{self.get('__qualname__')}.{name}":
            raise DefinitionError(
                f"{value.__qualname__}{_place(value)} is a method of a workflow: "
                f"its first parameter must be self"
            )
        elif isinstance(value, StepMaker):
            if value.node.job is None:
                raise DefinitionError(
                    f"{self.get('__qualname__')}.{name} = step(...) has neither a method nor a job; "
                    f"write it as a decorator, or add job=a_step"
                )
            self.nodes[name] = value
        super().__setitem__(name, value)


class Declared:
    """A node of a class: its name, its function or job, its options."""

    def __init__(self, name: str, given: Step[Any, Any] | StepMaker, owner: str) -> None:
        self.name = name
        self.owner = owner
        self.given = given
        self.options = given.node
        self.anonymous = False
        self.step = _called(name, given if isinstance(given, Step) else _without_method(name, given, owner))

    def overridden(self, function: FunctionType) -> Declared:
        """The same node with another method: a subclass has overridden it."""
        again = copy.copy(self)
        again.given = again.step = Step(
            function,
            retry=self.step.retry,
            timeout=self.step.timeout,
            transactional=self.step.transactional,
            queue=self.step.queue,
            key=self.step.key,
            priority=self.step.priority,
            node=self.options,
        )
        again.step = _called(self.name, again.step)
        return again

    @property
    def queue(self) -> str | None:
        """The node's own, or that of the step in its place."""
        job = self.options.job
        return self.step.queue or (job.queue if isinstance(job, Step) else None)

    @property
    def key(self) -> KeyOption:
        """The node's own, or that of the step in its place; a function takes the workflow."""
        job = self.options.job
        if self.step.key is not None or not isinstance(job, Step):
            return self.step.key
        if callable(job.key):
            raise self.error("its job has a key that is a function; write key=lambda self: ... here")
        return job.key

    @property
    def priority(self) -> int | None:
        job = self.options.job
        own = self.step.priority
        return job.priority if own is None and isinstance(job, Step) else own

    def error(self, problem: str) -> DefinitionError:
        return DefinitionError(f"{self.owner}.{self.name}{_place(self.given)}: {problem}")


def _called(name: str, step: Step[Any, Any]) -> Step[Any, Any]:
    """The step under the name of its node, which its function need not have."""
    if step.name != name:
        step = copy.copy(step)
        step.name = name
    return step


def _without_method(name: str, maker: StepMaker, owner: str) -> Step[Any, Any]:
    def nothing(self: Any) -> None:
        """Its job is called instead."""

    nothing.__name__ = name
    nothing.__qualname__ = f"{owner}.{name}"
    return maker(nothing)


def _place(step: Any) -> str:
    """Where a node is declared; of one without a method, where its options are."""
    if isinstance(step, StepMaker):
        return f" ({step.place})"
    code = getattr(getattr(step, "function", None), "__code__", None)
    return f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""


class Blueprint:
    """A workflow class, as the engine sees it: `blueprint(OrderWorkflow)`."""

    kind = "workflow class"

    def __init__(self, cls: type, name: str, body: Body, *, pin: bool = False) -> None:
        self.cls = cls
        self.name = name
        self.pin = check_flag(name, "pin", pin, error=InvalidOption)
        self._parents = [
            base.__dict__["__blueprint__"] for base in cls.__mro__[1:] if "__blueprint__" in base.__dict__
        ]
        self.own_conditions = body.conditions
        self.own_policies = body.policies
        self.own_job_options = body.job_options
        self.own_nodes = self._own(body)
        self.nodes = self._gathered()
        self._check_fields(body.get("__annotations__", {}))
        self._graph = self._compiled() if self.nodes else None

    def __repr__(self) -> str:
        return f"<workflow class {self.name}>"

    @property
    def graph(self) -> Graph:
        if self._graph is None:
            raise DefinitionError(f"{self.name} has no nodes; decorate its methods with @step or @task")
        return self._graph

    @property
    def abstract(self) -> bool:
        """Whether it only serves as a parent."""
        return self._graph is None

    @cached_property
    def cancel_conditions(self) -> list[Any]:
        """All of them, the parents' first."""
        return [c for each in reversed([self, *self._parents]) for c in each.own_conditions]

    @cached_property
    def policies(self) -> list[ExceptionPolicy]:
        """In the order of precedence: the latest first, a subclass before its parent."""
        return [p for each in [self, *self._parents] for p in reversed(each.own_policies)]

    @property
    def queue(self) -> str | None:
        found: str | None = self._job_option("queue")
        return found

    @property
    def priority(self) -> int | None:
        found: int | None = self._job_option("priority")
        return found

    @cached_property
    def key_functions(self) -> dict[str, typing.Callable[[Any], Any]]:
        """By node, the functions that compute its key from the workflow."""
        return {name: node.key for name, node in self.nodes.items() if callable(node.key)}

    def _job_option(self, name: str) -> Any:
        return next(
            (
                each.own_job_options[name]
                for each in [self, *self._parents]
                if each.own_job_options.get(name) is not None
            ),
            None,
        )

    @cached_property
    def fields(self) -> dict[str, Any]:
        """The fields and their types; resolved when first asked for, as they may name what comes later."""
        found: dict[str, Any] = {}
        for base in reversed(self.cls.__mro__):
            own = inspect.get_annotations(base) if base is not object and not _is_root(base) else {}
            hints = self._hints(base) if own else {}
            for name in own:
                hint = hints.get(name, Any)
                shared = hint is ClassVar or typing.get_origin(hint) is ClassVar
                if not shared and not name.startswith("_") and name not in ANNOTATED:
                    found[name] = hint
        return found

    def check_types(self) -> None:
        """Raise DefinitionError if a field could not be read back as annotated."""
        for name, type in self.fields.items():
            try:
                form_of(type)
            except NoForm as error:
                raise DefinitionError(
                    f"field {self.cls.__qualname__}.{name} has the type {name_of(type)}: {error}; {ADVICE}"
                ) from None

    def _hints(self, base: type) -> dict[str, Any]:
        try:
            return typing.get_type_hints(base, include_extras=True)
        except NameError as error:
            raise DefinitionError(
                f"a field of workflow {base.__qualname__} has a type that cannot be found: {error}; "
                f"define it at the top level of the module, where every worker finds it"
            ) from None

    def _check_fields(self, annotated: Iterable[str]) -> None:
        """The fields of this class's own body; their types may come later, their names are known."""
        for name in annotated:
            if name in RESERVED - ANNOTATED:
                raise DefinitionError(
                    f"field {self.cls.__qualname__}.{name}: Workflow uses this name itself; choose another"
                )
            if name in self.nodes:
                raise DefinitionError(
                    f"field {self.cls.__qualname__}.{name}: a node has the same name"
                    f"{_place(self.nodes[name].step)}; choose another name for one of them"
                )

    def bound_fields(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The fields of a call; those without a name are taken in the order of the fields."""
        names = list(self.fields)
        if len(args) > len(names):
            raise TypeError(f"{self.name}() has {len(names)} fields, {len(args)} values were given")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        if len(given) < len(args) + len(kwargs):
            raise TypeError(f"{self.name}() got a field more than once")
        return self.checked_fields(given)

    def check_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise TypeError where a run could not be started with these."""
        self.bound_fields(args, kwargs)

    def argument_types(self, count: int, names: tuple[str, ...]) -> tuple[list[Any], dict[str, Any]]:
        """The types of the fields that are given in their order, and by name."""
        types = [*self.fields.values()][:count]
        return types + [Any] * (count - len(types)), {name: self.fields.get(name, Any) for name in names}

    def checked_fields(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The fields that a run is started with, defaults filled in."""
        unknown = [name for name in given if name not in self.fields]
        if unknown:
            known = ", ".join(self.fields) or "none"
            raise TypeError(f"{self.name}() has no field {unknown[0]!r}; its fields are: {known}")
        values = {}
        for name in self.fields:
            if name in given:
                values[name] = given[name]
            elif hasattr(self.cls, name):
                values[name] = getattr(self.cls, name)
            else:
                raise TypeError(f"{self.name}() needs the field {name!r}")
        return values

    def _own(self, body: Body) -> list[tuple[str, Declared]]:
        """The nodes of this class's own body, anonymous ones numbered after those of the parents."""
        inherited = sum(
            name.startswith("step_") and declared.step.function.__name__ in (ANONYMOUS, "<lambda>")
            for each in self._parents
            for name, declared in each.own_nodes
        )
        own: list[tuple[str, Declared]] = []
        number = inherited
        for name, given in body.nodes.items():
            if given in body.anonymous:
                number += 1
                name = f"step_{number}"
            declared = Declared(name, given, self.cls.__qualname__)
            declared.anonymous = given in body.anonymous
            if name in body.nodes and given in body.anonymous:
                raise declared.error(
                    "another node has the name that this one would get; rename the other one"
                )
            own.append((name, declared))
        return own

    def _gathered(self) -> dict[str, Declared]:
        """All nodes, those of parents first; one that is declared again keeps its place."""
        found: dict[str, Declared] = {}
        for base in reversed(self.cls.__mro__):
            for name, declared in self._nodes_of(base):
                found[name] = declared
            for name, value in vars(base).items():
                if name in found and isinstance(value, FunctionType):
                    found[name] = found[name].overridden(value)
        return found

    def _nodes_of(self, base: type) -> Iterator[tuple[str, Declared]]:
        if base is self.cls:
            yield from self.own_nodes
        elif "__blueprint__" in vars(base):
            yield from vars(base)["__blueprint__"].own_nodes
        else:  # a mixin that is not a Workflow
            for name, value in vars(base).items():
                if isinstance(value, Step) and value.is_method:
                    yield name, Declared(name, value, base.__qualname__)

    def _check_conditions(self) -> None:
        for condition in self.cancel_conditions:
            if isinstance(condition, str) and not callable(getattr(self.cls, condition, None)):
                raise DefinitionError(
                    f"workflow {self.cls.__qualname__} has cancel_if={condition!r}, but has no such method"
                )

    def _check_hooks(self) -> None:
        """A hook that is a generator would never run, and the body would run without it."""
        for name in ("before_step_starts", "before_step", "after_step", "around_step"):
            hook = getattr(self.cls, name)
            around = name == "around_step"
            if inspect.isgeneratorfunction(hook) or inspect.isasyncgenfunction(hook):
                kind = "asynccontextmanager" if inspect.isasyncgenfunction(hook) else "contextmanager"
                what = f"decorate it with @contextlib.{kind}" if around else "it must not contain `yield`"
                raise DefinitionError(f"{self.cls.__qualname__}.{name} is a generator function; {what}")
            if around and inspect.iscoroutinefunction(hook):
                raise DefinitionError(
                    f"{self.cls.__qualname__}.around_step is a coroutine function; it returns a context "
                    f"manager: decorate an async generator with @contextlib.asynccontextmanager"
                )

    def _compiled(self) -> Graph:
        declared = self.nodes
        problem = name_problem(self.name)
        if problem is not None or len(self.name) > LONGEST_CLASS_NAME or "." in self.name:
            what = problem or f"has dots, or more than {LONGEST_CLASS_NAME} characters"
            raise DefinitionError(
                f"the name of workflow {self.cls.__qualname__} {what}; write class ...(Workflow, name=...)"
            )
        self._check_conditions()
        self._check_hooks()
        for node in declared.values():
            _check(self.cls, node)
        chain = _chain(self.cls, declared)
        before = dict(zip(chain[1:], chain, strict=False))
        nodes = {}
        for name, node in declared.items():
            needs: dict[str, None] = {}
            for needed in node.options.needs:
                if needed is PREVIOUS:
                    if not node.options.chained:
                        raise node.error("PREVIOUS is for steps: a task is not in the chain")
                    if name in before:
                        needs[before[name]] = None
                else:
                    needs[_resolved(self.cls, node, needed, declared, "depends_on")] = None
            if name in needs:
                raise node.error("depends on itself; remove it from depends_on")
            nodes[name] = Node(
                name=name,
                depends_on=tuple(needs),
                wait=node.options.seconds,
                queue=node.queue,
                key=None if callable(node.key) else node.key,
                priority=node.priority,
                body=_fingerprint(node.step.function) if node.anonymous else None,
            )
        circle = find_cycle({name: node.depends_on for name, node in nodes.items()})
        if circle:
            raise declared[circle[0]].error(
                f"these nodes depend on each other: {' -> '.join(circle)}; remove one of these dependencies"
            )
        return class_graph(self.name, nodes)


def _fingerprint(function: Any) -> str:
    """What a function does, as a short text: the same after formatting, or with other decorators."""
    try:
        [tree] = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except (OSError, TypeError, SyntaxError, ValueError):
        tree = None
    if isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef):
        content = "\n".join(ast.unparse(statement) for statement in tree.body).encode()
    else:  # a lambda, or code without source
        code = function.__code__
        content = code.co_code + repr((code.co_names, code.co_consts)).encode()
    return sha256(content).hexdigest()[:16]


def _check(cls: Any, node: Declared) -> None:
    options = node.options
    problem = name_problem(node.name)
    if problem is not None:
        raise node.error(f"its name {problem}")
    if node.name in RESERVED:
        raise node.error("Workflow uses this name itself; choose another")
    for name in ("skip_if", "only_if"):
        value = getattr(options, name)
        problem = check_condition(name, value)
        if problem is None and isinstance(value, str) and not callable(getattr(cls, value, None)):
            problem = f"{name}={value!r}, but the class has no method with that name"
        if problem is not None:
            raise node.error(problem)
    if options.skip_if is not None and options.only_if is not None:
        raise node.error("has both skip_if and only_if; remove one of them")
    if options.before_step is not None and options.after_step is not None:
        raise node.error("has both before_step and after_step; remove one of them")
    if not options.chained and (options.before_step is not None or options.after_step is not None):
        raise node.error("is a task, which is not in the chain; make it a step, or use depends_on")
    if options.job is None:
        _check_method(node)
    else:
        _check_job(node, options.job)
    try:
        _ = options.seconds, options.policies
    except DefinitionError as error:
        raise node.error(str(error)) from None


def _check_method(node: Declared) -> None:
    if node.options.args is not None:
        raise node.error("has args without a job; a method reads the fields of self")
    if node.step.needed:
        raise node.error(
            f"takes {', '.join(node.step.needed)}, but a method of a node gets no arguments: "
            f"it reads the fields of self, and self.ctx"
        )


def _check_job(node: Declared, job: Any) -> None:
    if not _is_job(job):
        raise node.error(f"has job={job!r}; a job is a step or a workflow")
    if isinstance(job, Step) and job.isolation is not None:
        raise node.error(f"has job={job.name!r}: {NO_ISOLATION}")
    if node.step.timeout is None:
        return
    if not isinstance(job, Step):
        raise node.error("has a timeout, and its job is a workflow, which has none; give its steps timeouts")
    if job.transactional and not job.is_async:
        raise node.error("has a timeout, which its job cannot have: it is transactional and a `def`")


def _is_job(job: Any) -> bool:
    if isinstance(job, Step):
        return not job.is_method
    return isinstance(job, Definition) or hasattr(job, "__blueprint__")


def _chain(cls: type, declared: Mapping[str, Declared]) -> list[str]:
    """The steps in their order: as declared, and then those that name their place."""
    chain = [
        name
        for name, node in declared.items()
        if node.options.chained and node.options.before_step is None and node.options.after_step is None
    ]
    placed = {name: node for name, node in declared.items() if node.options.chained and name not in chain}
    while placed:
        ready = next(((n, d) for n, d in placed.items() if _anchor(cls, d, declared) in chain), None)
        if ready is None:
            name, node = next(iter(placed.items()))
            anchor = _anchor(cls, node, declared)
            raise node.error(
                f"is placed next to {anchor!r}, which "
                + ("is a task and is not in the chain" if anchor not in placed else "is placed next to it")
            )
        name, node = ready
        place = chain.index(_anchor(cls, node, declared)) + int(node.options.after_step is not None)
        chain.insert(place, name)
        del placed[name]
    return chain


def _anchor(cls: type, node: Declared, declared: Mapping[str, Declared]) -> str:
    option = "before_step" if node.options.before_step is not None else "after_step"
    return _resolved(cls, node, getattr(node.options, option), declared, option)


def _resolved(cls: type, node: Declared, given: Any, declared: Mapping[str, Declared], option: str) -> str:
    """The name of a node that another one names: by its name, or by the function itself."""
    if isinstance(given, str):
        if given not in declared:
            raise node.error(f"{option}={given!r}: there is no such node; there are {', '.join(declared)}")
        return given
    wanted = getattr(given, "function", given)
    for name, other in declared.items():
        # Also the one that a parent has, where this class overrides it.
        overridden = [vars(base)[name] for base in cls.__mro__ if name in vars(base)]
        if any(getattr(one, "function", one) is wanted for one in [other.step, *overridden]):
            return name
    raise node.error(f"{option}={given!r}: give the name of a node, or its function")


def _is_root(cls: type) -> bool:
    """Whether it is `Workflow` itself, whose annotations are not fields."""
    return "__blueprint__" in vars(cls) and not any("__blueprint__" in vars(base) for base in cls.__mro__[1:])


def blueprint(cls: Any) -> Blueprint:
    """What a workflow class declares."""
    found: Blueprint = cls.__blueprint__
    return found


# Names that a node cannot have: a workflow's own.
RESERVED = frozenset(
    "ctx run hero cancel pause skip reattempt finished before_step_starts before_step after_step around_step"
    " may_proceed_without_hero".split()
)
