"""Every command and option of the command line is documented, and nothing else is."""

import re
from pathlib import Path

import click
import pytest

from detent.cli.command import Command
from detent.cli.main import detent as cli

DOCUMENTATION = Path(__file__).resolve().parents[2] / "docs" / "cli.md"


def _commands() -> dict[str, click.Command]:
    """All of them, those of groups by both words."""
    found: dict[str, click.Command] = {}
    ctx = click.Context(cli)
    for name in cli.list_commands(ctx):
        command = cli.get_command(ctx, name)
        assert command is not None
        parts = command.commands if isinstance(command, click.Group) else {}
        found |= {f"{name} {part}": one for part, one in parts.items()} or {name: command}
    return found


@pytest.mark.parametrize("name", list(_commands()))
def test_every_command_and_option_is_documented(name: str) -> None:
    """A chapter in docs/cli.md that names every option, and an example that the help shows, too."""
    chapter = _chapters()[name]
    command = _commands()[name]
    assert isinstance(command, Command)
    assert command.help
    assert command.example
    assert command.example.splitlines()[0] in chapter
    common = {"--json", "--help"}
    options = [param for param in command.params if isinstance(param, click.Option) and not param.hidden]
    missing = [
        param.opts[0] for param in options if param.opts[0] not in chapter and param.opts[0] not in common
    ]
    assert missing == []


def test_nothing_is_documented_that_does_not_exist() -> None:
    assert {*_chapters()} - {"Common to all commands"} == {*_commands()}


def _chapters() -> dict[str, str]:
    parts = re.split(r"^## (.+)$", DOCUMENTATION.read_text(), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))
