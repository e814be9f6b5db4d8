"""radix_cache: the optimised tree and its manager against the models, and what they promise beyond lockstep."""

from __future__ import annotations

import itertools
from array import array

import numpy as np
import pytest

from kvlockstep.drivers.explore import explore
from kvlockstep.drivers.random_walk import random_walk
from kvlockstep.impl.radix_cache import RadixCache
from kvlockstep.impl.radix_manager import RadixManager
from kvlockstep.models.kv_manager import KVManagerModel
from kvlockstep.models.radix_cache import RadixCacheModel
from kvlockstep.page import failure_page
from kvlockstep.watchdog import Watchdog


@pytest.mark.parametrize("seed", range(3))
def test_agrees_with_the_reference(seed):
    outcome = random_walk(RadixCacheModel, RadixCache, seed=seed, watchdog=Watchdog(5.0), steps=15_000)
    assert outcome.failure is None, failure_page(outcome.failure)


def test_agrees_in_the_states_that_five_seconds_reach():
    for scope in RadixCacheModel.small_scopes:
        outcome = explore(RadixCacheModel, RadixCache, scope, watchdog=Watchdog(5.0), seconds=5)
        assert outcome.failure is None, failure_page(outcome.failure)
        assert outcome.states > 20


def test_the_manager_keeps_the_request_level_contract():
    outcome = random_walk(KVManagerModel, RadixManager, seed=4, watchdog=Watchdog(5.0), steps=30_000)
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
