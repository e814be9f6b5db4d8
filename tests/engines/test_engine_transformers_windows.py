"""Sliding layers of transformers under kv_manager: what holds, and what is planted into the engine's code."""

from __future__ import annotations

from typing import Any

import pytest
from driving import walk

from kvlockstep.drivers.episode import missed_goals, not_evaluated
from kvlockstep.models.kv_manager import KVManagerModel
from kvlockstep.reference.kv_manager.groups.contract import Group

REASON = "it is not installed: pip install 'kvlockstep[engines]'"
WINDOW = 3


def windows() -> Any:
    """The adapter, imported when a test begins: it takes seconds, and each process of a run collects this file."""
    name = "kvlockstep.impl.engines.transformers.windows"
    return pytest.importorskip(name, reason=REASON, exc_type=ImportError)


@pytest.mark.parametrize("make", ["make_window", "make_window_wide", "make_window_alone", "make_window_packed"])
def test_what_holds_meets_every_goal(make: str) -> None:
    outcome = walk(KVManagerModel, getattr(windows(), make), 4_000, seed=0)
    assert outcome.failure is None, outcome.failure
    assert not missed_goals(KVManagerModel, outcome.reach, outcome.unreachable)
    assert not not_evaluated(KVManagerModel, outcome.evaluated, outcome.not_checked)
    rolled = [outcome.reach[goal] for goal in ("rolls", "rolls_over_read", "rolls_past")]
    assert all(rolled)


def test_the_groups_are_the_layers_that_read_alike() -> None:
    made = windows().make_window_packed(6, 4)
    assert made.groups == (Group("rolling", 8, reach=5), Group("full", 12))
    assert made.total == made.avail() * 8 == 5 * 8, "6 blocks of 5 layers are 5 sectors of 6"


def test_a_buffer_takes_no_more_blocks_when_it_has_gone_round() -> None:
    made = windows().make_window_alone(4, 1)
    assert made.admit("a", list(range(9)), None, 9) == 0, "as long as there are blocks for the window"
    slots = made.slots("a", 0)
    made.launch()
    made.commit("a", 9)
    assert slots[:5] == [None] * 5, "of a longer chunk only the end is written"
    assert made.slots("a", 0) == [None] * 6 + slots[6:]
    assert made.avail() == 0
    assert made.reserve("a", 1)
    assert made.slots("a", 0)[9] == slots[5], "the slot of the position that is pushed out"


def test_one_call_of_the_engine_reads_a_buffer_before_it_writes_it() -> None:
    """What a rolling group is: the judge makes two calls of it."""
    torch = pytest.importorskip("torch")
    made = windows().make_window(8, 2)
    sliding = made._cache.cache_allocators[windows().SLIDING_ATTENTION]
    memory = made.memory["kv"]._memories[sliding.index]
    made.admit("a", list(range(5)), None, 3)
    made.launch()
    memory.write(made.slots("a", sliding.index), [100, 101, 102])
    made.commit("a", 3)
    made.reserve("a", 2)
    read, write = (torch.tensor(of("a", 3, 2)) for of in (sliding.get_read_indices, sliding.get_write_indices))
    assert set(read[:2].tolist()) & set(write.tolist()), "it writes where it reads"
    new, seen = memory._planes(torch.tensor([103, 104])), memory._planes(torch.tensor([101, 102, 103, 104]))
    for i, layer in enumerate(sliding.layer_indices):
        keys, values = sliding.update(new[i, 0], new[i, 1], layer, read, write)
        assert torch.equal(keys, seen[i, 0])
        assert torch.equal(values, seen[i, 1])


def planted(make: str, method: str, breaks: Any) -> Any:
    """A factory of targets in whose sliding allocator one method is broken: it calls `breaks` with the right one."""

    def make_broken(blocks: int, block_size: int) -> Any:
        made = getattr(windows(), make)(blocks, block_size)
        sliding = made._cache.cache_allocators[windows().SLIDING_ATTENTION]
        right = getattr(sliding, method)
        setattr(sliding, method, lambda *args: breaks(sliding, right, *args))
        return made

    return make_broken


def reads_from_one_too_early(sliding: Any, right: Any, rid: str, past: int, n: int) -> list[int]:
    """The window is read from where the token that it pushes out still stands."""
    if past < WINDOW:
        return right(rid, past, n)  # type: ignore[no-any-return]
    first = past % sliding.sliding_window
    return [*sliding._token_indices_to_physical_indices(rid, first, WINDOW - 1), *[sliding.sentinel_index] * n]


def keeps_the_head(sliding: Any, right: Any, rid: str, past: int, n: int) -> list[int]:
    """Of a chunk that is longer than the window the head is written, and the end is not."""
    rows = right(rid, past, n)
    trash = rows.count(sliding.write_trash_index)
    return [*rows[trash:], *rows[:trash]]


def writes_on(sliding: Any, right: Any, rid: str, past: int, n: int) -> list[int]:
    """The end of a chunk that is longer than the window is written from the first slot of the buffer on."""
    rows = right(rid, past, n)
    kept = sorted(row for row in rows if row != sliding.write_trash_index)
    return [*rows[: n - len(kept)], *kept] if n > len(kept) else rows


def forgets_blocks(sliding: Any, right: Any, rid: str, no_cache: bool = False) -> None:
    """The last block of a buffer does not come back to the pool."""
    sliding.block_table.get(rid, [])[-1:] = []
    right(rid, no_cache)


def copies_nothing(_sliding: Any, right: Any, *args: Any) -> Any:
    """The buffer of a child is not copied from that of its parent."""
    right(*args)
    return [], []


def shares_the_buffer(sliding: Any, _right: Any, source: str, child: str, past: int) -> Any:
    """A child has the blocks of its parent's buffer."""
    sliding.block_table[child] = sliding.block_table[source][:]
    for block in sliding.block_table[child]:
        sliding.ledger.acquire(block)
    return [], []


def needs_no_more(sliding: Any, right: Any, allocated: int, past: int, n: int) -> int:
    """A window that ends within a block has no room for that block."""
    return max(0, min(right(allocated, past, n), sliding.sliding_window // sliding.tokens_per_page - allocated))


def hands_out_twice(blocks: int, block_size: int) -> Any:
    """A sector that one allocator has taken is still free for the other."""
    made = windows().make_window(blocks, block_size)
    pool = made._pool

    def allocate_sector(index: int) -> None:
        pool._free_blocks[index].add_tree(pool.free_sectors[-1])
        if index:
            pool.free_sectors.pop()

    pool.allocate_sector = allocate_sector
    return made


def shares_prefixes(blocks: int, block_size: int) -> Any:
    """Blocks of a buffer are published like those of full attention."""
    made = windows().make_window(blocks, block_size)
    made._cache.use_prefix_sharing = True
    return made


def reaches_further(blocks: int, block_size: int) -> Any:
    """Declares one position more than the engine keeps."""
    made = windows().make_window(blocks, block_size)
    made.groups = tuple(g._replace(reach=g.reach + 1) if g.kind == "rolling" else g for g in made.groups)
    return made


@pytest.mark.parametrize(
    ("make", "law"),
    [
        (reaches_further, "coverage"),
        (planted("make_window", "get_read_indices", reads_from_one_too_early), "content_equality"),
        (planted("make_window", "get_write_indices", keeps_the_head), "coverage"),
        (planted("make_window", "get_write_indices", writes_on), "content_equality"),
        (planted("make_window_alone", "free_blocks", forgets_blocks), "accounting"),
        (planted("make_window_packed", "free_blocks", forgets_blocks), "accounting"),
        (planted("make_window", "fork_blocks", copies_nothing), "content_equality"),
        (planted("make_window", "fork_blocks", shares_the_buffer), "no_aliasing"),
        (planted("make_window_wide", "_compute_blocks_needed", needs_no_more), "error_contract"),
        (hands_out_twice, "no_aliasing"),
        (shares_prefixes, "prefix_soundness"),
    ],
)
def test_a_planted_fault_is_found(make: Any, law: str) -> None:
    outcome = walk(KVManagerModel, make, 4_000, seed=0)
    assert outcome.failure is not None
    assert outcome.failure.law == law
