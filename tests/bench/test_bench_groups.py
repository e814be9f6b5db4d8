"""Cost of groups: the rows that `bench groups` has, and that its managers are given the same work."""

from __future__ import annotations

from typing import Any

import pytest

from kvlockstep.bench import groups as bench
from kvlockstep.impl.kv_manager.blocks import BlockManager
from kvlockstep.impl.kv_manager.grouped.manager import GroupedBlockManager

PROMPTS = 2 * bench.RUNNING


def hits(manager: Any) -> tuple[list[int], int]:
    """What the prompts of a round have hit, and how many blocks are held at its end."""
    found: list[int] = []
    admit, room = manager.admit, manager.avail()

    def counting(*args: Any) -> int:
        cached = admit(*args)
        assert cached is not None, "the pool is too small for the load"
        found.append(cached)
        return int(cached)

    manager.admit = counting
    bench.prefill(manager, 0, PROMPTS)
    return found, room - manager.avail()


@pytest.mark.parametrize("geometry", bench.GEOMETRIES)
def test_all_managers_hit_what_the_one_of_blocks_hits(geometry: str) -> None:
    blocks, slots = hits(BlockManager(bench.BLOCKS, bench.BLOCK_SIZE))
    assert blocks == [0, *[bench.SHARED] * (PROMPTS - 1)]
    found, held = hits(GroupedBlockManager(bench.GEOMETRIES[geometry], {"kv": 4 * bench.BLOCKS}))
    assert found == blocks
    assert (held == slots // bench.BLOCK_SIZE) == (geometry == "one full group")


def test_rows_are_beside_the_floor_of_their_contract() -> None:
    rows = bench.bench_judges(rounds=1, steps=20)
    names = [f"{contract}, {name}" for contract, (_, factories) in bench.JUDGED.items() for name in factories]
    assert [row.row for row in rows] == names
    assert all(row.ours > 0 and row.floor > 0 for row in rows)
    ours = bench.bench_managers(BlockManager, GroupedBlockManager, rounds=1, prompts=3)
    assert [row.row for row in ours] == [f"our manager, {name}" for name in bench.GEOMETRIES]
