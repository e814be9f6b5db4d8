"""Notes of the current episode in shared memory: the trace of a process that a target has ended.

The process that runs the target notes each operation before it tries it. The process that waits for it makes a trace of
the notes when the first one is lost. `kvlockstep bench drivers` measures what the notes cost.
"""

from __future__ import annotations

import io
import json
import marshal
import mmap
from functools import lru_cache
from typing import Any, TypeVar

from kvlockstep.core.capture import forget_output
from kvlockstep.core.isolation import ChildLost
from kvlockstep.core.trace import Trace
from kvlockstep.models.core.model import Factory, Model, Scope
from kvlockstep.models.core.op import Op
from kvlockstep.properties.law import ERROR_CONTRACT, TERMINATION

M = TypeVar("M", bound=type[Model[Any]])

# The newest version of marshal that does not look for shared objects: a note has none, and the look takes a third.
PLAIN = 2


class EpisodeNotes:
    """The scope and the operations of the current episode, in memory that is shared with children forked later.

    What does not fit into `size` bytes is left out: then the trace ends before the operation that ended the process.
    Pages are taken from the system as they are written.
    """

    def __init__(self, size: int = 16 << 20) -> None:
        self.size = size
        self.notes = mmap.mmap(-1, size)
        # The number of bytes that are noted, in memory of its own so that a note is complete before it counts.
        self.end = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")

    def begin(self, scope: Scope) -> None:
        """A new episode."""
        self.clear()
        self.add(_text_of(scope))

    def clear(self) -> None:
        """Forgets all notes."""
        self.end[0] = 0

    def add(self, value: Any) -> None:
        """Notes a value behind those before it."""
        self.put(self.end[0], value)

    def put(self, start: int, value: Any) -> int:
        """Notes a value at byte `start` and forgets what was behind it. Returns the place of the next note.

        marshal is the fastest writer of plain values; it delimits itself.
        """
        data = marshal.dumps(value, PLAIN)
        stop = start + len(data)
        if stop > self.size:
            return self.size
        self.notes[start:stop] = data
        self.end[0] = stop
        return stop

    def began(self) -> bool:
        """Tells whether anything is noted."""
        return bool(self.end[0])

    def values(self) -> list[Any]:
        """Everything that was noted."""
        end = self.end[0]
        noted = io.BytesIO(self.notes[:end])
        values = []
        while noted.tell() < end:
            values.append(marshal.load(noted))
        return values

    def read(self, model_type: type[Model[Any]]) -> tuple[Scope, tuple[Op, ...]] | None:
        """The episode as far as it got; None if none began."""
        if not (values := self.values()):
            return None
        scope = model_type.scope_type.from_json(json.loads(values[0]))
        return scope, tuple(Op(name, **args) for name, args in values[1:])


# Exploring begins an episode for every few operations, and all drivers play each scope again and again.
@lru_cache
def _text_of(scope: Scope) -> str:
    return json.dumps(scope.to_json())


def noting(model_type: M, notes: EpisodeNotes) -> M:
    """The model, noting each operation before it is tried."""
    put = notes.put

    class Noting(model_type):  # type: ignore[misc,valid-type]
        def __init__(self, scope: Scope, factory: Factory) -> None:
            notes.begin(scope)
            self.noted = notes.end[0]
            forget_output()
            super().__init__(scope, factory)

        def step(self, op: Op) -> Any:
            stop = put(self.noted, (op.name, op.args))
            answer = step(self, op)
            # Behind a step that was not enabled this is not reached: the next note takes its place.
            self.noted = stop
            return answer

        def redo(self, op: Op) -> None:
            self.noted = put(self.noted, (op.name, op.args))
            redo(self, op)

    step, redo = model_type.step, model_type.redo
    return Noting  # type: ignore[return-value]


def lost_trace(model_type: type[Model[Any]], scope: Scope, ops: tuple[Op, ...], lost: ChildLost) -> Trace:
    """The trace of an episode that ended or hung its process at the last operation; it has no answers."""
    law = TERMINATION.id if lost.hung else ERROR_CONTRACT.id
    return Trace(
        model_type.contract,
        scope,
        ops,
        law=law,
        message=lost.reason,
        details=lost.details,
        printed=lost.printed,
        original=len(ops),
    )
