"""Common behaviour of commands: APP is the first argument, errors are one line, help ends with an example."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from ..errors import DetentError

F = TypeVar("F", bound=Callable[..., Any])
APP_VARIABLE = "DETENT_APP"


class Failure(click.ClickException):
    """An error, shown as one red line; exit code 1."""

    def show(self, file: Any = None) -> None:
        click.secho(f"error: {one_line(self.message)}", fg="red", err=True)


def one_line(text: str) -> str:
    return " ".join(text.split())


class Front(click.Group):
    """Lists its commands in the order of definition, and turns Detent's errors into failures."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except DetentError as error:
            raise Failure(str(error)) from error


class Command(click.Command):
    """A command with an example in its help."""

    def __init__(self, *args: Any, example: str = "", **options: Any) -> None:
        super().__init__(*args, **options)
        self.example = example

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.example:
            with formatter.section("Example"):
                for line in self.example.splitlines():
                    formatter.write_text(line)


class Loose(click.Option):
    """An option with an optional value; the next argument is its value only if it has the right form."""

    def __init__(self, *args: Any, otherwise: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self.otherwise = otherwise

    def fits(self, text: str) -> bool:
        try:
            self.type.convert(text, self, None)
        except click.BadParameter:
            return False
        return True


class AppCommand(Command):
    """A command whose first argument is an app; the default is DETENT_APP."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        args = self._filled_in(args)
        default = os.environ.get(APP_VARIABLE, "")
        places = self._places(args)
        arguments = [param for param in self.params if isinstance(param, click.Argument)]
        needed = sum(param.required for param in arguments)
        if len(places) < needed:
            missing = True
        else:
            # There may be more arguments than needed, so look at the first one.
            missing = len(arguments) > needed and bool(default) and not looks_like_app(args[places[0]])
        if missing and default:
            at = places[0] if places else len(args)
            args = [*args[:at], default, *args[at:]]
        elif missing and not {"-h", "--help"} & {*args}:
            names = " ".join(param.make_metavar(ctx) for param in arguments)
            raise click.UsageError(
                f"missing arguments: {names}; APP is MODULE:APP or a database URL, and is optional "
                f"if {APP_VARIABLE} is set",
                ctx,
            )
        return super().parse_args(ctx, args)

    def _filled_in(self, args: list[str]) -> list[str]:
        """Adds default values of options: `--overdue shop:app` becomes `--overdue=1m shop:app`."""
        loose = {name: param for param in self.params if isinstance(param, Loose) for name in param.opts}
        filled: list[str] = []
        rest = list(args)
        while rest and rest[0] != "--":
            arg = rest.pop(0)
            if arg in loose:
                given = rest.pop(0) if rest and loose[arg].fits(rest[0]) else loose[arg].otherwise
                arg = f"{arg}={given}"
            filled.append(arg)
        return filled + rest

    def _places(self, args: list[str]) -> list[int]:
        """The indexes of the arguments among the options."""
        takes_value = {
            name
            for param in self.params
            if isinstance(param, click.Option) and not param.is_flag and not param.count
            for name in param.opts
        }
        places: list[int] = []
        at = 0
        while at < len(args):
            if args[at] == "--":
                return places + list(range(at + 1, len(args)))
            if len(args[at]) > 1 and args[at].startswith("-"):
                at += 1 if args[at] in takes_value else 0
            else:
                places.append(at)
            at += 1
        return places


def looks_like_app(text: str) -> bool:
    """Whether the text can be MODULE:APP or a URL."""
    module, colon, rest = text.partition(":")
    return bool(colon) and (
        rest.startswith("//") or (_dotted(module) and _dotted(rest)) or module == "sqlite"
    )


def _dotted(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def command(*, example: str, cls: type[Command] = AppCommand, **options: Any) -> Callable[[F], Command]:
    """Declare a command with an example; its name is that of the function."""
    settings = {"max_content_width": 100, "help_option_names": ["-h", "--help"]}
    return click.command(cls=cls, example=example, context_settings=settings, **options)


def app_argument(function: F) -> F:
    return click.argument("app", metavar="APP")(function)


def id_argument(function: F) -> F:
    return click.argument("id", metavar="ID")(function)


def json_option(function: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")(function)
