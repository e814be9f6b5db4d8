"""The block_pool: in lockstep with the reference; its keys and its free queue by themselves; its cost."""

from __future__ import annotations

import hashlib
import itertools
import random
from array import array

import numpy as np
import pytest
from driving import explore, walk
from hypothesis import given, settings
from hypothesis import strategies as st
from watched import watched

from kvlockstep.drivers.episode import missed_goals
from kvlockstep.drivers.hypothesis_machine import machine_for
from kvlockstep.impl.block_pool import BlockPool, free_queue, prefixes
from kvlockstep.impl.block_pool import keys as block_keys
from kvlockstep.impl.block_pool import pool as block_pool
from kvlockstep.impl.block_pool.free_queue import FreeQueue
from kvlockstep.impl.block_pool.keys import RequestKeys
from kvlockstep.impl.kv_manager.pool import PoolManager
from kvlockstep.models.block_pool.model import BlockPoolModel
from kvlockstep.models.block_pool.scope import HASHES, one_bit
from kvlockstep.models.kv_manager import KVManagerModel
from kvlockstep.reference.block_pool import BlockPool as Reference
from kvlockstep.reference.block_pool.contract import BlockPoolTarget, Prefix
from kvlockstep.reference.errors import InvalidArgument, NotCached, OutOfSlots

SIZES = [1, 2, 4, 16]
POOLS = [Reference, BlockPool]
tokens_of = st.lists(st.sampled_from([-1, -2, 0, 1, 2**31 - 1, -(2**31)]), max_size=70)


def keys_of(pool, tokens, extra_keys=()):
    keys = pool.request_keys(extra_keys)
    keys.extend(tokens)
    return keys


def filled(pool, tokens, extra_keys=()):
    """Blocks that hold and cache a new request."""
    keys = keys_of(pool, tokens, extra_keys)
    table = pool.allocate(len(keys))
    pool.cache_full_blocks(keys, table, 0, len(keys))
    return table


class TestLockstep:
    def test_random(self):
        outcome = walk(BlockPoolModel, BlockPool, 20_000, seed=3)
        assert outcome.failure is None
        assert not [goal.id for goal in BlockPoolModel.goals if not outcome.reach[goal.id]]

    @pytest.mark.parametrize("scope", BlockPoolModel.small_scopes[:2], ids=["no block", "two blocks"])
    def test_every_state(self, scope):
        outcome = watched(explore, BlockPoolModel, BlockPool, scope)
        assert outcome.failure is None
        assert outcome.exhausted

    @pytest.mark.slow
    def test_every_state_of_three_blocks(self):
        outcome = watched(explore, BlockPoolModel, BlockPool, BlockPoolModel.small_scopes[2])
        assert outcome.failure is None
        assert outcome.exhausted
        assert outcome.states > 1_000

    @pytest.mark.parametrize("few", [0, 1_000])
    def test_keys_by_either_way_of_hashing(self, few, monkeypatch):
        monkeypatch.setattr(block_keys, "FEW_BLOCKS", few)
        outcome = walk(BlockPoolModel, BlockPool, 4_000, seed=4)
        assert outcome.failure is None

    def test_pieces_of_two_blocks(self, monkeypatch):
        monkeypatch.setattr(free_queue, "PIECE", 2)
        outcome = walk(BlockPoolModel, BlockPool, 4_000, seed=5)
        assert outcome.failure is None

    @pytest.mark.parametrize("make", POOLS)
    def test_is_a_target(self, make):
        assert isinstance(make(2, 2), BlockPoolTarget)


TestMachine = machine_for(BlockPoolModel, BlockPool).TestCase
TestMachine.settings = settings(max_examples=20, stateful_step_count=30, deadline=None)


class TestKeys:
    @pytest.mark.parametrize("hash_function", [None, one_bit, *block_keys.DIGESTS])
    @given(tokens=tokens_of, size=st.sampled_from(SIZES), cuts=st.lists(st.integers(0, 70), max_size=4))
    def test_growing_makes_no_difference(self, hash_function, tokens, size, cuts):
        whole = RequestKeys(size, (None, "image"), hash_function)
        whole.extend(tokens)
        grown = RequestKeys(size, (None, "image"), hash_function)
        for start, end in itertools.pairwise([0, *sorted(min(cut, len(tokens)) for cut in cuts), len(tokens)]):
            grown.extend(tokens[start:end])
            assert len(grown) == len(grown.hashes) == end // size
        assert grown.hashes == whole.hashes

    @given(tokens=tokens_of, size=st.sampled_from(SIZES))
    def test_few_and_many_agree(self, tokens, size):
        found = []
        for few in (0, 1_000):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(block_keys, "FEW_BLOCKS", few)
                found.append(hashes(tokens, size, ("salt", None, 7)))
        assert found[0] == found[1]

    @pytest.mark.parametrize("size", [1, 2])
    def test_no_two_prefixes_share_a_hash(self, size):
        words = [w for n in range(1, 6) for w in itertools.product((-1, -2, 0, 1), repeat=n) if n % size == 0]
        extra_keys = [(), (-1,), (-2,), (None, -1), ("a", "b"), (("a", "b"),)]
        found = {hashes(word, size, keys)[-1] for word in words for keys in extra_keys[: 1 + len(word) // size]}
        assert len(found) == sum(len(extra_keys[: 1 + len(word) // size]) for word in words)

    def test_extra_keys_are_inherited(self):
        plain, salted = hashes(range(64), 4, ()), hashes(range(64), 4, ("salt",))
        assert not set(plain) & set(salted)
        late = hashes(range(64), 4, (None, None, "image"))
        assert late[:2] == plain[:2]
        assert not set(late[2:]) & set(plain)

    def test_bits_are_even(self):
        many = hashes(np.arange(200_000, dtype=np.int32) * 64, 1, ())
        for bit in range(60):
            assert abs(sum(key >> bit & 1 for key in many) / len(many) - 0.5) < 0.01

    @pytest.mark.parametrize("name", ["one_bit", "python"])
    def test_a_given_function_is_called_along_the_chain(self, name):
        for function, size in itertools.product((HASHES[name], lambda *key: hash(str(key))), SIZES):
            pools = [make(0, size, function) for make in POOLS]
            wanted, found = (keys_of(pool, range(-40, 40), (7, None, "image")).hashes for pool in pools)
            assert found == wanted

    def test_a_named_digest_covers_parent_tokens_and_extra_key(self):
        keys = RequestKeys(2, (None, "image"), "sha256")
        keys.extend([1, 2, -3, 4, 5])
        first = hashlib.sha256(bytes(32) + array("i", [1, 2]).tobytes()).digest()
        second = hashlib.sha256(first + array("i", [-3, 4]).tobytes() + b"'image'").digest()
        assert keys.hashes == [int.from_bytes(digest, "little") for digest in (first, second)]
        twin = keys.copy()
        twin.extend([6])
        keys.extend([6])
        assert twin.hashes == keys.hashes

    @pytest.mark.parametrize("name", block_keys.DIGESTS)
    def test_a_pool_on_a_named_digest(self, name):
        outcome = walk(BlockPoolModel, lambda b, s, _: BlockPool(b, s, name), 4_000, seed=8)
        assert outcome.failure is None

    def test_an_unknown_digest_is_refused_with_the_known_ones(self):
        with pytest.raises(InvalidArgument, match="sha256, blake2b"):
            BlockPool(1, 1, "md5")

    def test_every_form_of_tokens(self):
        tokens = [5, -6, 2**31 - 1, 0, 9]
        wanted = hashes(tokens, 2, ())
        for form in (
            tuple(tokens),
            array("i", tokens),
            array("q", tokens),
            np.array(tokens, np.int32),
            np.array(tokens),
        ):
            assert hashes(form, 2, ()) == wanted
        one_by_one = RequestKeys(2, (), None)
        for token in tokens:
            one_by_one.append(token)
        assert one_by_one.hashes == wanted
        assert hashes(np.array(tokens * 2, np.int32)[::2], 1, ()) == hashes((tokens * 2)[::2], 1, ())

    @pytest.mark.parametrize("bad", [2**31, -(2**31) - 1, 1.5, "1", None])
    def test_a_refused_token_changes_nothing(self, bad):
        keys = RequestKeys(1, (), None)
        keys.extend([1])
        for call in (lambda: keys.extend([2, bad]), lambda: keys.append(bad)):
            with pytest.raises(InvalidArgument):
                call()
        assert keys.hashes == hashes([1], 1, ())

    def test_a_copy_goes_its_own_way(self):
        keys = RequestKeys(1, (), None)
        keys.extend([1, 2])
        twin = keys.copy()
        twin.extend([3])
        keys.extend([4])
        assert (keys.hashes, twin.hashes) == (hashes([1, 2, 4], 1, ()), hashes([1, 2, 3], 1, ()))


def hashes(tokens, size, extra_keys):
    keys = RequestKeys(size, extra_keys, None)
    keys.extend(tokens)
    return keys.hashes


class TestFreeQueue:
    @pytest.mark.parametrize("piece", [1, 3, free_queue.PIECE])
    @given(calls=st.lists(st.tuples(st.sampled_from(["pop", "append", "remove"]), st.integers(0, 99)), max_size=80))
    def test_is_a_list_with_holes_closed(self, piece, calls):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(free_queue, "PIECE", piece)
            self.check_calls(calls)

    def check_calls(self, calls):
        queue, model, out = FreeQueue(12, range(8)), list(range(8)), list(range(8, 12))
        for name, number in calls:
            rng = random.Random(number)
            if name == "append":
                some, out = shuffled_cut(out, rng)
                queue.append(some)
                model += some
            elif name == "pop":
                n = rng.randrange(len(model) + 1)
                assert queue.pop(n) == model[:n]
                out += model[:n]
                del model[:n]
            else:
                some, _ = shuffled_cut(model, rng)
                queue.remove(some)
                model = [block for block in model if block not in some]
                out += some
            assert list(queue) == model
            assert len(queue) == len(model)
            assert queue._gone <= queue._linked
            assert queue._arrivals() <= 12

    def test_too_many_are_refused(self):
        queue = FreeQueue(4, range(4))
        queue.remove([1])
        with pytest.raises(OutOfSlots):
            queue.pop(4)
        assert list(queue) == [0, 2, 3]

    @pytest.mark.parametrize("blocks", [100, 10_000])
    def test_a_removal_touches_few_blocks_wherever_it_is(self, blocks):
        for block in (0, blocks // 2, blocks - 1):
            queue = FreeQueue(blocks, range(blocks))
            queue.append(queue.pop(blocks))
            queue.remove([block])
            assert queue._linked <= 2

    def test_a_pop_meets_no_run_of_blocks_that_are_gone(self, monkeypatch):
        looked_at = []
        arrived = FreeQueue._arrived
        monkeypatch.setattr(FreeQueue, "_arrived", lambda queue, n: looked_at.append(n) or arrived(queue, n))
        queue = FreeQueue(10_000, range(10_000))
        for block in range(5_000, 6_500):
            queue.remove([block])
        looked_at.clear()
        assert [queue.pop(1)[0] for _ in range(8_500)] == [*range(5_000), *range(6_500, 10_000)]
        assert max(looked_at) <= 2

    def test_a_block_that_leaves_by_the_head_is_never_linked(self):
        queue = FreeQueue(100, range(100))
        for _ in range(20):
            queue.append(queue.pop(30))
        assert not queue._linked

    def test_after_a_removal_arrivals_are_linked_until_none_is_left(self):
        queue = FreeQueue(100, range(100))
        for i in range(60):
            queue.remove([i % 100])
            queue.append([i % 100])
        assert (queue._linked, queue._arrivals()) == (100, 0)
        queue.append(queue.pop(60))
        assert (queue._linked, queue._arrivals()) == (100, 0)


def shuffled_cut(blocks, rng):
    """Some of the blocks in any order, and the rest."""
    some = rng.sample(blocks, rng.randrange(len(blocks) + 1))
    return some, [block for block in blocks if block not in some]


@pytest.mark.parametrize("make", POOLS)
class TestPool:
    def test_the_tail_of_a_request_goes_first(self, make):
        pool = make(6, 1)
        a, b = filled(pool, [1, 2]), filled(pool, [3, 4])
        pool.free(a)
        pool.free(b)
        assert pool.allocate(6)[2:] == [a[1], a[0], b[1], b[0]]

    def test_blank_blocks_go_before_all(self, make):
        pool = make(4, 1)
        cached, blank = filled(pool, [1, 2]), pool.allocate(2)
        pool.free(cached)
        pool.free(blank)
        assert pool.free_queue() == [*blank[::-1], *cached[::-1]]
        assert (pool.num_free, pool.num_evictable, pool.usage) == (4, 2, 0.0)

    @pytest.mark.parametrize("size", SIZES)
    def test_lengths_around_a_block(self, make, size):
        pool = make(8, size)
        tokens = list(range(3 * size + 1))
        table = filled(pool, tokens[: 3 * size])
        for length in (0, size - 1, size, size + 1, 2 * size - 1, 3 * size, 3 * size + 1):
            keys = keys_of(pool, tokens[:length])
            assert pool.find_longest_prefix(keys) == table[: length // size]
            assert pool.find_longest_prefix(keys, max(0, length - 1) // size) == table[: max(0, length - 1) // size]

    def test_a_returning_parent_finds_its_child(self, make):
        pool = make(3, 1)
        parent, child = filled(pool, [1, 2])
        pool.free([parent])
        pool.free(pool.allocate(2))
        keys = keys_of(pool, [1, 2])
        assert pool.find_longest_prefix(keys) == []
        (again,) = filled(pool, [1])
        assert pool.find_longest_prefix(keys) == [again, child]

    def test_the_seed_collides_here(self, make):
        pool = make(4, 1, HASHES["python"])
        assert hash((0, (-1,), None)) == hash((0, (-2,), None))
        first = filled(pool, [-1])
        filled(pool, [-2, 5])
        assert pool.find_longest_prefix(keys_of(pool, [-1, 5])) == first

    def test_one_key_for_everything(self, make):
        pool = make(64, 2, lambda parent, tokens, extra_key: 0)
        tables = {word: filled(pool, word) for word in itertools.product((1, 2), repeat=4)}
        for word, table in tables.items():
            assert pool.find_longest_prefix(keys_of(pool, word))[1] == table[1]
        for table in tables.values():
            pool.free(table)
        pool.free(pool.allocate(64))
        assert pool.entries() == {}

    def test_keys_of_another_prefix_are_refused(self, make):
        pool = make(4, 1, one_bit)
        table = filled(pool, [1, 2]) + pool.allocate(1)
        with pytest.raises(NotCached):
            pool.cache_full_blocks(keys_of(pool, [3, 2, 1]), table, 2, 3)
        pool.cache_full_blocks(keys_of(pool, [1, 2, 1]), table, 2, 3)
        assert Prefix((None,) * 3, (1, 2, 1)) in pool.entries()


class TestDepth:
    BLOCKS = 20_000

    def test_a_long_chain_neither_recurses_nor_lingers(self):
        pool = BlockPool(self.BLOCKS + 1, 1)
        keys, table = pool.request_keys(), pool.allocate(self.BLOCKS)
        for i in range(self.BLOCKS):
            keys.append(i)
            pool.cache_full_blocks(keys, table, i, i + 1)
        assert pool.find_longest_prefix(keys) == table
        pool.free(table[:-1])
        pool.free(pool.allocate(pool.num_free))
        assert len(pool.entries()) == 1
        assert len(list(pool._prefixes.interned())) == self.BLOCKS
        pool.free(table[-1:])
        pool.free(pool.allocate(pool.num_free))
        left = len(list(pool._prefixes.interned()))
        assert left == self.BLOCKS - prefixes.STEPS
        for i in range(left // prefixes.STEPS + 2):
            pool.free(filled(pool, [-1 - i]))
            pool.free(pool.allocate(pool.num_free))
        assert not list(pool._prefixes.interned())

    def test_what_waits_to_be_dropped_may_return(self):
        pool = BlockPool(3 * prefixes.STEPS, 1)
        tokens = list(range(2 * prefixes.STEPS))
        table = filled(pool, tokens)
        pool.free(table[:-1])
        pool.free(pool.allocate(pool.num_free))
        pool.free(table[-1:])
        pool.free(pool.allocate(pool.num_free))
        waiting = len(list(pool._prefixes.interned()))
        assert waiting
        again = filled(pool, tokens[:waiting])
        assert pool.find_longest_prefix(keys_of(pool, tokens)) == again
        for i in range(3):
            pool.free(again)
            pool.free(pool.allocate(pool.num_free))
            again = filled(pool, [-1 - i])
        assert len(list(pool._prefixes.interned())) == 1

    def test_twins_leave_from_anywhere(self):
        pool = BlockPool(5, 1)
        first, second, third, fourth = (filled(pool, [7])[0] for _ in range(4))
        keys = keys_of(pool, [7])
        for gone, left in ((second, [first, third, fourth]), (fourth, [first, third]), (first, [third]), (third, [])):
            pool.free([gone])
            pool.free(pool.allocate(2))
            pool.allocate(1)
            assert pool.find_longest_prefix(keys) == left[:1]
            assert list(pool.entries().values()) == ([left] if left else [])

    def test_growing_costs_the_same_at_any_depth(self, monkeypatch):
        compared = []
        monkeypatch.setattr(block_pool, "_is_block", lambda *args: compared.append(args) or is_block(*args))
        is_block = block_pool.__dict__["_is_block"]
        pool = BlockPool(600, 2)
        keys, table = keys_of(pool, range(1_000)), pool.allocate(500)
        pool.cache_full_blocks(keys, table, 0, 400)
        for i in range(400, 500):
            pool.cache_full_blocks(keys, table, i, i + 1)
        assert not compared

    def test_a_parent_that_was_evicted_meanwhile_is_compared_anew(self):
        pool = BlockPool(4, 1)
        keys, table = keys_of(pool, [1, 2]), pool.allocate(1)
        pool.cache_full_blocks(keys, table, 0, 1)
        pool.free(table)
        pool.free(pool.allocate(4))
        again = filled(pool, [1]) + pool.allocate(1)
        pool.cache_full_blocks(keys, again, 1, 2)
        assert pool.find_longest_prefix(keys) == again

    def test_what_lies_behind_a_hole_is_no_parent(self):
        pool = BlockPool(4, 1)
        first, middle, last = filled(pool, [1, 1, 1])
        pool.free([middle])
        pool.free(pool.allocate(2))
        keys = keys_of(pool, [1, 1, 1])
        assert pool.find_longest_prefix(keys) == [first]
        with pytest.raises(NotCached):
            pool.cache_full_blocks(keys, [last, *pool.allocate(1)], 1, 2)


class TestPoolManager:
    @pytest.mark.parametrize("hash_function", HASHES.values(), ids=HASHES)
    def test_holds_and_reaches_everything(self, hash_function):
        def make(blocks, block_size):
            return PoolManager(blocks, block_size, hash_function=hash_function)

        outcome = walk(KVManagerModel, make, 6_000, seed=6)
        assert outcome.failure is None
        assert not missed_goals(KVManagerModel, outcome.reach, outcome.unreachable)

    def test_holds_on_tensors(self):
        def make(blocks, block_size):
            return PoolManager(blocks, block_size, tensors=True)

        outcome = walk(KVManagerModel, make, 4_000, seed=7)
        assert outcome.failure is None
        assert outcome.reach["copies"]

    def test_a_refused_request_holds_nothing(self):
        manager = PoolManager(4, 1)
        manager.admit("a", [1, 2, 3], None, 3)
        manager.commit("a", 3)
        manager.finish("a")
        assert manager.admit("b", [1, 2, 3, 4, 5, 6], None, 6) is None
        assert manager.avail() == 4
