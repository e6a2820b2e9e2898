"""Parses values of the command line: JSON or text, durations, moments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import click
import msgspec

from ..definitions.blueprint import Blueprint
from ..definitions.functions import Definition
from ..durations import parse_duration
from ..errors import CannotDecode
from ..kernel.rows import Attribute
from ..serialization.codec import Codec
from .command import looks_like_app

ANYTHING = "*"  # the value of --waiting where no message is named
_KEYWORD = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


def value_of(text: str) -> Any:
    """The JSON value, or the text itself if it is not JSON."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return text


def call_of(
    definition: Definition[Any, Any] | Blueprint, codec: Codec, given: Sequence[str]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call, converted to the definition's annotations; a usage error if that fails.

    `42` is a number, or a text if the annotation is `str`.
    """
    texts: list[str] = []
    named: dict[str, str] = {}
    for text in given:
        keyword = _KEYWORD.fullmatch(text)
        if keyword:
            named[keyword[1]] = keyword[2]
        else:
            texts.append(text)
    types, named_types = definition.argument_types(len(texts), tuple(named))
    args = tuple(_fitting(codec, text, type, repr(text)) for text, type in zip(texts, types, strict=True))
    kwargs = {name: _fitting(codec, text, named_types[name], name) for name, text in named.items()}
    try:
        definition.check_arguments(args, kwargs)
    except TypeError as error:
        raise click.UsageError(str(error)) from None
    return args, kwargs


def _fitting(codec: Codec, text: str, type: Any, what: str) -> Any:
    value = value_of(text)
    try:
        codec.convert(msgspec.Raw(msgspec.json.encode(value)), type, what)
    except CannotDecode as error:
        try:
            codec.convert(msgspec.Raw(msgspec.json.encode(text)), type, what)
        except CannotDecode:
            raise click.UsageError(str(error)) from None
        return text
    return value


def attribute(text: str) -> tuple[str, Attribute]:
    """`customer=acme`; whole numbers, true and false are converted."""
    name, equals, given = text.partition("=")
    if not name or not equals:
        raise click.BadParameter(f"{text!r} is not an attribute; write NAME=VALUE")
    value = value_of(given)
    return name, value if isinstance(value, str | int) else given


def hero(text: str) -> tuple[str, str]:
    """`User:7`."""
    type, colon, id = text.partition(":")
    if not type or not colon or not id:
        raise click.BadParameter(f"{text!r} is not a hero; write TYPE:ID")
    return type, id


def span(text: str) -> timedelta:
    """A duration: `90`, `90s`, `5m`, `2h`, `1d`."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def span_or_moment(text: str) -> timedelta | datetime:
    """A duration from now, or a moment in ISO 8601."""
    if "-" not in text:
        return span(text)
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not a moment; write 2h, or 2030-01-31T12:00:00+01:00"
        ) from None


def moment(text: str) -> datetime:
    """A date or a time in ISO 8601; without an offset, in the local time zone."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not a date; write 2030-01-31 or 2030-01-31T12:00:00Z"
        ) from None


def message_name(text: str) -> str:
    """The name of a message; what looks like an app is not one."""
    if looks_like_app(text) or text.startswith("-"):
        raise click.BadParameter(f"{text!r} is not the name of a message")
    return text
