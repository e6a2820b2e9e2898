"""The fields of a class's run, and what follows from them before a node is executed: the keys of nodes."""

from __future__ import annotations

from typing import Any

import msgspec

from ..definitions.blueprint import Blueprint
from ..kernel.queues import check_queue_key
from ..serialization.codec import Codec


def decode_fields(codec: Codec, plan: Blueprint, text: str) -> dict[str, Any]:
    """The fields of a run, as their annotations say."""
    call = codec.decode(text, _StoredFields, f"the input of {plan.name!r}")
    types = plan.fields
    return {
        name: codec.convert(raw, types.get(name, Any), f"the field {name!r} of {plan.name!r}")
        for name, raw in call.kwargs.items()
    }


class _StoredFields(msgspec.Struct):
    kwargs: dict[str, msgspec.Raw] = {}


def node_keys(codec: Codec, plan: Blueprint, text: str) -> dict[str, str]:
    """The keys of those nodes that compute them from the workflow; it has its fields, and no hero yet."""
    functions = plan.key_functions
    if not functions:
        return {}
    cls: Any = plan.cls
    instance = cls.__new__(cls)  # without __init__: the fields were checked when the run began
    instance.__dict__.update(decode_fields(codec, plan, text))
    found = {name: function(instance) for name, function in functions.items()}
    return {
        name: check_queue_key(f"the key of {plan.name}.{name}", key)
        for name, key in found.items()
        if key is not None
    }
