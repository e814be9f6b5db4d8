"""KV events as an engine sends them: packed by its own types, and unpacked again as a router does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def over_the_wire(batch_type: Any, events: Sequence[Any]) -> Sequence[Any]:
    """The events of an engine after a way through its `batch_type`, a msgspec structure, as msgpack.

    vLLM and SGLang pack a batch in the same way: a time, the events, and the rank of the sender.
    """
    import msgspec  # noqa: PLC0415  comes with the engine

    if not events:
        return events
    packed = msgspec.msgpack.encode(batch_type(0.0, list(events)))
    unpacked: Sequence[Any] = msgspec.msgpack.decode(packed, type=batch_type).events
    return unpacked
