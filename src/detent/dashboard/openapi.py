"""The OpenAPI document of the JSON API."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .forms import Action


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter in the query of a read."""

    name: str
    text: str
    required: bool = False


@dataclass(frozen=True, slots=True)
class Read:
    """A GET of the API."""

    path: str
    text: str
    parameters: tuple[Parameter, ...]
    function: Callable[[Mapping[str, str]], Any]


_ERRORS = {
    "400": "The request makes no sense; `message` says why.",
    "401": "The caller is not known.",
    "404": "There is no such run, decider or instance.",
    "409": "It does not apply in the present state.",
    "503": "The database does not answer.",
}


_SCHEMAS: dict[str, dict[str, Any]] = {
    "json": {},
    "limit": {"type": ["string", "integer", "boolean", "null"]},
}


def document(reads: Iterable[Read], actions: Iterable[Action], server: str) -> dict[str, Any]:
    """All reads and actions."""
    paths: dict[str, Any] = {read.path: {"get": _get(read)} for read in reads}
    paths |= {f"/actions/{action.verb}": {"post": _post(action)} for action in actions}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Detent dashboard", "version": "1"},
        "servers": [{"url": server}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {
                "Error": {
                    "type": "object",
                    "required": ["error", "message"],
                    "properties": {
                        "error": {"type": "string"},
                        "message": {"type": "string"},
                        "field": {"type": "string", "description": "The field that is wrong."},
                    },
                }
            },
        },
    }


def _get(read: Read) -> dict[str, Any]:
    return {
        "operationId": "read" + read.path.title().replace("/", "").replace("-", ""),
        "summary": read.text,
        "parameters": [
            {
                "name": one.name,
                "in": "query",
                "description": one.text,
                "required": one.required,
                "schema": {"type": "string"},
            }
            for one in read.parameters
        ],
        "responses": _responses(),
    }


def _post(action: Action) -> dict[str, Any]:
    properties: dict[str, Any] = {"reason": {"type": "string", "minLength": 1, "maxLength": 1000}}
    for field in action.fields:
        properties[field.name] = {**_SCHEMAS.get(field.kind, {"type": "string"})}
        properties[field.name]["description"] = field.hint or field.label
    required = ["reason", *(field.name for field in action.fields if field.required)]
    schema = {"type": "object", "required": required, "properties": properties, "additionalProperties": False}
    return {
        "operationId": action.verb.replace("-", "_"),
        "summary": action.title,
        "description": f"{action.explains} Needs the role operator.",
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {**_responses(), "403": _error("The caller may not act, or the CSRF token is wrong.")},
    }


def _responses() -> dict[str, Any]:
    found: dict[str, Any] = {
        "200": {"description": "Done.", "content": {"application/json": {"schema": {"type": "object"}}}}
    }
    return found | {status: _error(text) for status, text in _ERRORS.items()}


def _error(text: str) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Error"}
    return {"description": text, "content": {"application/json": {"schema": schema}}}
