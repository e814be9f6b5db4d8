"""radix_cache: the optimised tree and its manager against the models, and what they promise beyond lockstep."""

from __future__ import annotations

import itertools
from array import array
from collections import Counter

import numpy as np
import pytest
import torch
from driving import explore, walk
from slow import slow
from watched import watched

from kvlockstep.core.failure_page import failure_page
from kvlockstep.impl.kv_manager.radix import RadixManager
from kvlockstep.impl.radix_cache import RadixCache
from kvlockstep.models.kv_manager import KVManagerModel
from kvlockstep.models.radix_cache import RadixCacheModel
from kvlockstep.reference.errors import InvalidArgument, NotHeld, UnknownSlot
from kvlockstep.reference.radix_cache.contract import NotLocked


@pytest.mark.parametrize("seed", [0, *slow(1)])
def test_agrees_with_the_reference(seed):
    outcome = walk(RadixCacheModel, RadixCache, 4_000, seed=seed)
    assert outcome.failure is None, failure_page(outcome.failure)


class Inspected(RadixCache):
    """A cache whose nodes are looked over at every step, when it is asked for its sizes."""

    def sizes(self):
        tree, size = self.tree, self._size
        idle = list(tree.idle())
        place = {node: i for i, node in enumerate(idle)}
        assert len(place) == len(idle) == len(tree._idle)
        counts = Counter()
        for node in tree.walk():
            parent, tokens = node.parent, node.end - node.parent.end
            assert tokens > 0
            assert tokens % size == 0
            assert len(node.slots) == tokens
            assert tokens * 8 <= len(node.run) <= 2 * tokens * 8
            assert parent.children[node.key] is node
            assert parent is tree.root or parent.locks >= node.locks
            assert (node in place) == (not node.locks)
            if node in place and parent in place:
                assert place[node] < place[parent]
            counts[node.locks > 0] += tokens
        assert (tree.evictable, tree.protected) == (counts[False], counts[True])
        assert sum(counts.values()) == sum(len(node.slots) for node in tree.walk())
        assert not set(idle) - set(tree.walk())
        return super().sizes()


def test_the_nodes_are_in_order_at_every_step():
    outcome = walk(RadixCacheModel, Inspected, 5_000, seed=7)
    assert outcome.failure is None, failure_page(outcome.failure)


@pytest.mark.slow
def test_agrees_in_the_states_that_many_steps_reach():
    for scope in RadixCacheModel.small_scopes:
        outcome = watched(explore, RadixCacheModel, RadixCache, scope, steps=15_000)
        assert outcome.failure is None, failure_page(outcome.failure)
        assert outcome.states > 20


def test_the_manager_keeps_the_request_level_contract():
    outcome = walk(KVManagerModel, RadixManager, 6_000, seed=4)
    assert outcome.failure is None, failure_page(outcome.failure)
    assert outcome.reach["hit"] > 100


def cached(cache, tokens):
    slots = np.asarray(cache.allocate(len(tokens)))
    cache.insert_prefix(tokens, slots)
    return slots


def test_the_callers_arrays_may_change_afterwards():
    cache = RadixCache(8, 1)
    tokens = array("q", [1, 2, 3])
    slots = cached(cache, tokens)
    kept = slots.tolist()
    tokens[0], slots[0] = 9, 7
    match = cache.match_prefix([1, 2, 3])
    assert match.length == 3
    assert list(match.slots) == kept


def test_a_handle_survives_a_split():
    cache = RadixCache(8, 1)
    cached(cache, [1, 2, 3, 4])
    handle = cache.match_prefix([1, 2, 3, 4]).handle
    cache.lock(handle)
    assert cache.match_prefix([1, 2, 9]).length == 2
    assert cache.sizes().protected == 4
    cache.unlock(handle)
    assert cache.sizes().protected == 0
    assert cache.sizes().evictable == 4


def test_an_old_handle_keeps_no_lock_of_a_published_request():
    cache = RadixCache(8, 1)
    handle = cache.match_request([1, 2]).handle
    cache.lock(handle)
    published = cache.cache_unfinished(handle, [1, 2], cache.allocate(2))
    with pytest.raises(NotLocked):
        cache.unlock(handle)
    assert cache.cache_finished(published.handle, [1, 2, 3], [*published.slots, *cache.allocate(1)]) == 2
    assert cache.sizes() == (5, 3, 0)


def test_an_answer_stays_what_it_was():
    cache = RadixCache(4, 1)
    slots = cache.allocate(4)
    before = slots.tolist()
    cache.insert_prefix([1, 2, 3, 4], slots)
    match = cache.match_prefix([1, 2, 3, 4])
    evicted = cache.evict(2)
    cache.allocate(1)
    assert slots.tolist() == match.slots.tolist() == before
    assert evicted.tolist() == before[:1:-1]


def test_refusals_leave_a_page_held_once():
    cache = RadixCache(4, 2)
    slots = cache.allocate(4)
    for wrong, error in (
        ([0, 0], InvalidArgument),
        ([*slots, 0, 1], NotHeld),
        ([0, 9], UnknownSlot),
        ([4, 5], NotHeld),
    ):
        with pytest.raises(error):
            cache.free(wrong)
    cache.free(slots)
    assert cache.sizes().free == 8


@pytest.mark.parametrize("tokens", [[1, 2, 3], (1, 2, 3), array("q", [1, 2, 3]), np.array([1, 2, 3], np.int32)])
def test_tokens_come_in_many_forms(tokens):
    cache = RadixCache(8, 1)
    cached(cache, tokens)
    assert cache.match_prefix(torch.tensor([1, 2, 3, 4])).length == 3
    assert cache.match_prefix(np.arange(1, 9)[::2]).length == 1
    assert cache.match_prefix([]).length == 0


def test_memory_of_evicted_tokens_is_given_back():
    cache = RadixCache(1_000, 1)
    cached(cache, range(1_000))
    cache.evict(900)
    (node,) = cache.tree.walk()
    assert len(node.run) <= 2 * 100 * 8
    assert node.slots.base is None or len(node.slots.base) <= 2 * 100


def test_a_request_leaves_one_token_to_compute():
    cache = RadixCache(8, 2)
    cached(cache, [1, 2, 3, 4])
    assert cache.match_prefix([1, 2, 3, 4]).length == 4
    assert cache.match_request([1, 2, 3, 4]).length == 2


def test_two_thousand_nested_prefixes_take_no_recursion():
    depth = 2_000
    cache = RadixCache(depth, 1)
    slots = np.asarray(cache.allocate(depth))
    for end in range(1, depth + 1):
        cache.insert_prefix(range(end), slots[:end])
    match = cache.match_prefix(range(depth))
    assert match.length == depth
    cache.lock(match.handle)
    assert cache.sizes().protected == depth
    cache.unlock(match.handle)
    assert len(cache.evict(depth)) == depth


def test_the_tree_can_be_printed():
    cache = RadixCache(8, 1)
    cached(cache, [1, 2, 3])
    cached(cache, [7])
    text = cache.render()
    assert all(str(token) in text for token in itertools.chain([1, 2, 3], [7]))
