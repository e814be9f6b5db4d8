"""Proofs about the small pure functions that everything else rests on, for all inputs within stated bounds.

Each proof is a function: the asserts at its top are its assumptions, the ones below them its claims. CrossHair runs it
on symbolic values (`kvlockstep prove`); it is proved when every path was taken, and not exhausted otherwise.
"""

from __future__ import annotations

import itertools

from kvlockstep.reference.block_stack import BlockStack
from kvlockstep.reference.errors import ContractError
from kvlockstep.reference.kv.memory import Provenance
from kvlockstep.reference.kv.shape import blocks_for
from kvlockstep.reference.kv_manager import KVManager
from kvlockstep.reference.slot_pool import SlotPool
from kvlockstep.reference.slot_prefix_cache import SlotPrefixCache
from kvlockstep.reference.slot_prefix_cache.cache import common_length


def concrete(value: int, domain: range) -> int:
    """The element of the domain that the value equals, by cases: what follows is computed on plain numbers."""
    return next(element for element in domain if element == value)


def word(size: int, bits: int) -> tuple[int, ...]:
    """The lowest `size` bits of a number below 8, by cases."""
    bits = concrete(bits, range(8))
    return tuple(bits >> i & 1 for i in range(concrete(size, range(4))))


def lowest_bit_search(word: int) -> None:
    """`word & -word` is the lowest bit of a word that is not 0."""
    assert 0 < word < 64
    bit = word & -word
    assert word % (2 * bit) == bit
    assert bit.bit_length() - 1 == next(i for i in range(6) if word >> i & 1)


def common_prefix_length(size_a: int, bits_a: int, size_b: int, bits_b: int) -> None:
    """common_length is the length of the longest common prefix."""
    assert 0 <= size_a <= 2
    assert 0 <= size_b <= 3
    assert 0 <= bits_a < 4
    assert 0 <= bits_b < 8
    a, b = word(size_a, bits_a), word(size_b, bits_b)
    length = common_length(a, b)
    assert a[:length] == b[:length]
    assert length == min(len(a), len(b)) or a[length] != b[length]


def ceil_division(tokens: int, block_size: int) -> None:
    """blocks_for returns enough blocks for a length, and one block less is too few."""
    assert 0 <= tokens < 1000
    assert 1 <= block_size <= 16
    blocks = blocks_for(tokens, block_size)
    assert blocks * block_size >= tokens
    assert (blocks - 1) * block_size < max(tokens, 1)


def slot_mapping(block: int, offset: int, block_size: int) -> None:
    """slot // block_size is the block and slot % block_size the offset of block * block_size + offset."""
    assert 1 <= block_size <= 16
    assert 0 <= offset < block_size
    assert 0 <= block < 1000
    slot = block * block_size + offset
    assert slot // block_size == block
    assert slot % block_size == offset


def range_splitting(start: int, stop: int, block_size: int) -> None:
    """Splitting positions [start, stop) at block boundaries gives one range a block, and all of them cover it."""
    assert 1 <= block_size <= 4
    assert 0 <= start < stop <= 8
    cuts = [start, *range((start // block_size + 1) * block_size, stop, block_size), stop]
    assert all(a < b and a // block_size == (b - 1) // block_size for a, b in itertools.pairwise(cuts))


def provenance_injective(bits_a: int, bits_b: int, keys: int) -> None:
    """Two histories have one stamp only if they are the same tokens under the same extra key."""
    assert 0 <= bits_a < 4
    assert 0 <= bits_b < 4
    assert 0 <= keys < 4
    a, b = word(2, bits_a), word(2, bits_b)
    key_a, key_b = word(2, keys)
    provenance = Provenance()
    first, second = provenance.extend(0, key_a, a)[-1], provenance.extend(0, key_b, b)[-1]
    assert (first == second) == (a == b and key_a == key_b)


def lru_victim(first: int, second: int, again: int) -> None:
    """The least recently used of two cached sequences is evicted."""
    assert 0 <= first <= 1
    assert 2 <= second <= 3
    assert 0 <= again <= 1
    cache = SlotPrefixCache(2, 3, 1)
    cache.insert([first], 0, 1)
    cache.insert([second], 1, 1)
    cache.find([first if again else second])
    cache.insert([4], 2, 1)
    assert set(cache.entries()) == {(first if again else second,), (4,)}


def slot_pool_transitions(steps: tuple[int, ...]) -> None:
    """After any three operations free and held slots make up the pool, and refused operations changed nothing."""
    assert len(steps) == 3
    assert all(0 <= step <= 4 for step in steps)
    pool, held = SlotPool(2), set()
    for step in steps:
        before = pool.free_count
        try:
            if step == 4:
                held.add(pool.alloc())
            elif step >= 2:
                pool.occupy(step - 2)
                held.add(step - 2)
            else:
                pool.free(step)
                held.discard(step)
        except ContractError:
            assert pool.free_count == before
    assert {slot for slot in range(2) if not pool.is_free(slot)} == held


def block_stack_transitions(first: int, second: int) -> None:
    """acquire hands out as many different blocks as it is asked for, or none; release returns them."""
    assert -1 <= first <= 4
    assert -1 <= second <= 4
    stack = BlockStack(3)
    taken: list[int] = []
    for n in (concrete(first, range(-1, 5)), concrete(second, range(-1, 5))):
        free = stack.num_free
        try:
            blocks = stack.acquire(n)
        except ContractError:
            assert stack.num_free == free
        else:
            assert len(blocks) == n
            taken += blocks
    assert len(set(taken)) == len(taken)
    stack.release(taken)
    assert sorted(stack.free_blocks()) == [0, 1, 2]


def reference_counts(forks: int, drops: int) -> None:
    """A block is free again if and only if its last holder is gone."""
    assert 0 <= forks <= 2
    assert 0 <= drops <= forks + 1
    manager = KVManager(2, 2)
    manager.admit("r0", [1], None, 1)
    manager.launch()
    manager.commit("r0", 1)
    for i in range(forks):
        manager.fork("r0", f"r{i + 1}")
    for i in range(drops):
        manager.abort(f"r{i}")
    assert manager.avail() == (4 if drops == forks + 1 else 2)


PROOFS = (
    lowest_bit_search,
    common_prefix_length,
    ceil_division,
    slot_mapping,
    range_splitting,
    provenance_injective,
    lru_victim,
    slot_pool_transitions,
    block_stack_transitions,
    reference_counts,
)
