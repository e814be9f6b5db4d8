"""How the answer of an operation reads at the end of a trace line; of one that fails, as far as it came."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from kvlockstep.models.core.model import Divergence
from kvlockstep.reference.kv_scheduler.contract import Item

# Of a longer list the rest is counted.
MOST_SHOWN = 4


class Judge(Protocol):
    """A judge under operations. `so_far` is what the last one has answered, `avail` what is available after it."""

    avail: int | None

    @property
    def so_far(self) -> str: ...
    def begin(self) -> None: ...


def operate(judge: Judge, avails: list[int | None], method: Callable[..., str], *args: Any, **kwargs: Any) -> str:
    """Calls an operation of the judge, and notes in `avails` what is available after it.

    A Divergence takes along what the operation had answered, and `avails`.
    """
    judge.begin()
    try:
        answer = method(*args, **kwargs)
    except Divergence as divergence:
        divergence.answer, divergence.avails = judge.so_far, (*avails, judge.avail)
        raise
    avails.append(judge.avail)
    return answer


def batch_text(items: Sequence[Item], copies: Sequence[tuple[int, int]], preempted: Iterable[str]) -> str:
    """A batch: the positions that it computes of each request, its copies, who was preempted for it."""
    parts = [f"{item.rid}[{item.start}:{item.start + item.n}]" for item in items]
    copied = [copies_text(copies)] if copies else []
    return " ".join([*parts, *copied, *(f"preempted {name}" for name in preempted)]) or "nothing"


def copies_text(pairs: Sequence[tuple[int, int]]) -> str:
    """The copies of a step, neighbours together: "copied slots 0-3 to 8-11"; nothing if there are none."""
    runs: list[list[int]] = []
    for source, target in pairs:
        if runs and source == runs[-1][0] + runs[-1][2] and target == runs[-1][1] + runs[-1][2]:
            runs[-1][2] += 1
        else:
            runs.append([source, target, 1])
    texts = [
        f"slot {source} to {target}" if n == 1 else f"slots {source}-{source + n - 1} to {target}-{target + n - 1}"
        for source, target, n in runs
    ]
    return f"copied {_few(texts)}" if texts else ""


def freed_text(blocks: Iterable[int]) -> str:
    """The blocks that nobody holds any more: "freed blocks 1, 2"; nothing if there are none."""
    numbers = [str(block) for block in sorted(blocks)]
    return f"freed block{'' if len(numbers) == 1 else 's'} {_few(numbers)}" if numbers else ""


def _few(texts: Sequence[str]) -> str:
    more = len(texts) - MOST_SHOWN
    return ", ".join(texts) if more <= 0 else f"{', '.join(texts[:MOST_SHOWN])} and {more} more"
