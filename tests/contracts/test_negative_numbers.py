"""A slot is an index into a pool: a number below 0 is refused in whatever a target names."""

from __future__ import annotations

from typing import Any

import pytest
from driving import walk

from kvlockstep.models.kv_manager import KVManagerModel
from kvlockstep.models.kv_scheduler import KVSchedulerModel
from kvlockstep.models.paged_alloc import PagedAllocModel
from kvlockstep.reference.kv_manager import KVManager
from kvlockstep.reference.kv_manager.groups.contract import Step
from kvlockstep.reference.kv_manager.groups.geometries import FullAndState, FullAndWindow
from kvlockstep.reference.kv_scheduler import KVScheduler
from kvlockstep.reference.kv_scheduler.contract import Batch
from kvlockstep.reference.paged_alloc.allocator import PagedAlloc

BELOW_0 = "has been named, and the slots of a pool are numbered from 0 on"


def below(numbers: Any) -> Any:
    """The same numbers mirrored at 0: a target that uses them throughout is right but for their sign."""
    return [None if number is None else -number - 1 for number in numbers]


class MirrorsTables(KVManager):
    def slots(self, rid: str) -> list[int]:
        return below(super().slots(rid))

    def free_slots(self) -> None:
        return None


class MirrorsFree(KVManager):
    def free_slots(self) -> list[int]:
        return below(super().free_slots())


class MirrorsWindow(FullAndWindow):
    def slots(self, rid: str, group: int) -> list[int | None]:
        table = super().slots(rid, group)
        return below(table) if group else table


class MirrorsHeld(FullAndWindow):
    def held(self, rid: str, group: int) -> Any:
        return below(super().held(rid, group))


class MirrorsFreeBlocks(FullAndWindow):
    def free_slots(self, *pool: str) -> list[int]:
        return below(super().free_slots(*pool))


class MirrorsStates(FullAndState):
    def state(self, rid: str, group: int) -> Step:
        step = super().state(rid, group)
        return step._replace(saves=[(position, -block - 1) for position, block in step.saves])


class MirrorsSlots(KVScheduler):
    def schedule(self) -> Batch:
        batch = super().schedule()
        return batch._replace(items=[item._replace(slots=below(item.slots)) for item in batch.items])

    def slots(self, rid: str) -> list[int]:
        return below(super().slots(rid))

    def free_slots(self) -> None:
        return None


class MirrorsPages(PagedAlloc):
    def free_pages(self) -> list[int]:
        return below(super().free_pages())


@pytest.mark.parametrize(
    ("model", "target", "law", "said"),
    [
        (KVManagerModel, MirrorsTables, "conservation", BELOW_0),
        (KVManagerModel, MirrorsFree, "conservation", BELOW_0),
        (KVManagerModel, MirrorsWindow, "conservation", BELOW_0),
        (KVManagerModel, MirrorsHeld, "conservation", BELOW_0),
        (KVManagerModel, MirrorsFreeBlocks, "conservation", BELOW_0),
        (KVManagerModel, MirrorsStates, "error_contract", "not (source, [(position, block)]) with blocks from 0 on"),
        (KVSchedulerModel, MirrorsSlots, "conservation", BELOW_0),
        (PagedAllocModel, MirrorsPages, "conservation", "is free, and does not exist"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_number_below_0_is_refused(model: Any, target: Any, law: str, said: str) -> None:
    trace = walk(model, target, 4_000).failure
    assert trace is not None
    assert trace.law == law, trace.message
    assert trace.message.endswith(said)
