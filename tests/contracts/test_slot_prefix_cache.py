"""The radix-tree slot_prefix_cache: in lockstep with the reference, at the cost it claims; and its laws bite."""

from __future__ import annotations

import dataclasses
import inspect
import random
import sys
import tracemalloc
from array import array

import pytest
import torch
from driving import explore, walk
from hypothesis import given
from hypothesis import strategies as st
from watched import watched

from kvlockstep.impl.slot_prefix_cache import cache as slot_prefix_cache
from kvlockstep.impl.slot_prefix_cache import packed_tokens
from kvlockstep.impl.slot_prefix_cache.cache import SlotPrefixCache
from kvlockstep.impl.slot_prefix_cache.packed_tokens import common, packed
from kvlockstep.impl.slot_prefix_cache.planes import TORN
from kvlockstep.models.slot_prefix_cache import SlotPrefixCacheModel
from kvlockstep.reference.errors import ContractError, InvalidArgument, NotPinned, Pinned
from kvlockstep.reference.slot_prefix_cache import SlotPrefixCache as Reference
from kvlockstep.reference.slot_prefix_cache.contract import MISS, Match


def test_agrees_with_the_reference(device):
    steps = 15_000 if device == "cpu" else 2_000
    outcome = walk(SlotPrefixCacheModel, lambda *sizes: SlotPrefixCache(*sizes, device=device), steps, seed=3)
    assert outcome.failure is None
    if device == "cpu":
        assert not [goal.id for goal in SlotPrefixCacheModel.goals if not outcome.reach[goal.id]]


@pytest.mark.parametrize("sizes", [(1, 2, 2), (2, 2, 2), (3, 1, 3)], ids=str)
def test_agrees_with_the_reference_in_every_state(sizes):
    capacity, slots, positions = sizes
    scope = dataclasses.replace(
        SlotPrefixCacheModel.small_scopes[0], capacity=capacity, slots=slots, positions=positions, gone=False
    )
    outcome = watched(explore, SlotPrefixCacheModel, SlotPrefixCache, scope)
    assert outcome.failure is None
    assert outcome.exhausted
    assert outcome.states > 20


def check_tree(cache: SlotPrefixCache) -> None:
    """Recomputes everything that the tree keeps from its runs and the ends of its rows."""
    rows: dict[object, set[int]] = {}
    for slot, row in cache._rows.items():
        assert slot in row.end.ends
        node = row.end
        while node.parent is not None:
            rows.setdefault(node, set()).add(slot)
            node = node.parent
        assert node is cache._root
    pending, size, queued = list(cache._root.children.items()), 0, {id(record[2]) for record in cache._queue}
    while pending:
        key, node = pending.pop()
        assert node.size > 0
        assert key == node.key == node.run[:8]
        assert 2 * node.size >= len(node.data)
        assert rows[node]
        assert node.rows == len(rows[node])
        assert node.ends == {slot for slot in rows[node] if cache._rows[slot].end is node}
        assert node.latest == max(rows[node], key=lambda slot: cache._rows[slot].inserted)
        assert node.parent is cache._root or node.parent.used >= node.used
        assert node.queued == (id(node) in queued)
        assert node.children or node.pins or node.queued
        assert all(child.parent is node for child in node.children.values())
        size += node.size
        pending += node.children.items()
    assert cache._size == size
    assert len(cache._queue) <= 2 * cache._slots + slot_prefix_cache._SPARE_RECORDS


def perform(cache, name, *args):
    try:
        return getattr(cache, name)(*args)
    except ContractError as error:
        return type(error)


def related(rng: random.Random, known: list[tuple[int, ...]], longest: int) -> tuple[int, ...]:
    """A sequence that shares a long prefix with a known one."""
    base = rng.choice(known)[: rng.randrange(longest)] if rng.random() < 0.8 else ()
    more = tuple(rng.randrange(2) for _ in range(rng.randrange(longest - len(base)) // rng.choice((1, 8)) + 1))
    return base + more


@pytest.mark.parametrize("seed", range(8))
def test_agrees_on_long_runs(seed, monkeypatch):
    monkeypatch.setattr(packed_tokens, "_FIRST_COMPARED", 16)
    monkeypatch.setattr(packed_tokens, "_MOST_COMPARED", 64)
    monkeypatch.setattr(slot_prefix_cache, "_SPARE_RECORDS", 2)
    rng = random.Random(seed)
    longest, slots = 48, 6
    capacity = rng.choice((40, 90, 200))
    cache, reference = SlotPrefixCache(capacity, slots, longest), Reference(capacity, slots, longest)
    known = [(0,)]
    pinned: list[tuple[int, ...]] = []
    for _ in range(400):
        tokens, slot = related(rng, known, longest), rng.randrange(slots)
        name = rng.choice(("insert", "insert", "insert", "find", "find", "pin", "release", "reuse", "copy_kv"))
        if name == "insert":
            args = (tokens, slot, rng.randrange(3), len(pinned) < 3 and rng.random() < 0.2)
        elif name == "reuse":
            args = (slot, rng.randrange(longest))
        elif name in ("pin", "copy_kv"):
            cached = sorted(reference.entries())
            tokens = rng.choice(cached) if cached and len(pinned) < 4 else tokens
            args = (tokens, slot) if name == "copy_kv" else (tokens,)
        else:
            args = (pinned.pop(rng.randrange(len(pinned))) if name == "release" and pinned else tokens,)
        wanted = perform(reference, name, *args)
        assert perform(cache, name, *args) == wanted
        if wanted is None and (name == "pin" or (name == "insert" and args[3])):
            pinned.append(args[0])
        known = [*known[-8:], tokens] if name == "insert" else known
        assert cache.entries() == reference.entries()
        check_tree(cache)


TOKENS = st.lists(st.sampled_from((0, 1, 2**63 - 1, -(2**63))), max_size=200)


@given(st.data(), TOKENS, TOKENS, TOKENS)
def test_common_is_the_longest_common_prefix(data, shared, a, b):
    a, b = shared + a, shared + b
    i, j = data.draw(st.integers(0, len(shared))), 0
    most = min(len(a) - i, len(b) - j)
    wanted = next((n for n in range(most) if a[i + n] != b[j + n]), most)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed_tokens, "_FIRST_COMPARED", data.draw(st.sampled_from((8, 16, 256))))
        patch.setattr(packed_tokens, "_MOST_COMPARED", data.draw(st.sampled_from((256, 1024))))
        assert common(packed(a), 8 * i, packed(b), 8 * j, 8 * most) == 8 * wanted


@pytest.mark.parametrize("make", [list, tuple, lambda tokens: array("q", tokens)], ids=["list", "tuple", "array"])
def test_takes_every_kind_of_sequence(make):
    cache = SlotPrefixCache(10, 2, 4)
    tokens = [-1, 2**63 - 1, 0]
    cache.insert(make(tokens), 1, 7)
    assert cache.find(make([*tokens, 5])) == Match(3, 1, 7)
    assert cache.find(make([-1, 0])) == Match(1, 1, 7)


@pytest.mark.parametrize("token", [2**63, "a", 1.5])
def test_refuses_what_is_no_token(token):
    cache = SlotPrefixCache(10, 2, 4)
    with pytest.raises(InvalidArgument, match="64-bit"):
        cache.insert([1, token], 0, 1)
    assert cache.entries() == {}


def test_a_plane_that_was_missed_shows(device):
    cache = SlotPrefixCache(10, 3, 4, layers=3, device=device)
    cache.write_kv(0, 0, [5, 6, 7])
    cache.insert([1, 2, 3], 0, 1)
    cache.copy_kv([1, 2], 2)
    assert cache.read_kv(2, 4) == [5, 6, 0, 0]
    assert torch.equal(cache.kv[2, :2], cache.kv[0, :2])
    for k_or_v in range(2):
        for layer in range(3):
            right = cache.kv[2, 1, k_or_v, layer].clone()
            cache.kv[2, 1, k_or_v, layer] = cache.kv[0, 0, k_or_v, layer]
            assert cache.read_kv(2, 4) == [5, TORN, 0, 0]
            cache.kv[2, 1, k_or_v, layer] = right
    assert cache.read_kv(2, 4) == [5, 6, 0, 0]


def test_k_taken_for_v_shows():
    cache = SlotPrefixCache(10, 2, 2)
    cache.write_kv(0, 0, [5, 6])
    cache.kv[1] = cache.kv[0].flip(1)
    assert cache.read_kv(1, 2) == [TORN, TORN]


def test_may_be_made_in_inference_mode_and_used_outside():
    with torch.inference_mode():
        cache = SlotPrefixCache(10, 2, 2, layers=5)
    cache.write_kv(0, 0, [5, 6])
    assert cache.read_kv(0, 2) == [5, 6]


class CountingBytes(bytes):
    """Bytes that count how many of them are compared, in how many comparisons."""

    compared = comparisons = 0

    def startswith(self, part, start=0):
        CountingBytes.compared += len(part)
        CountingBytes.comparisons += 1
        return super().startswith(part, start)


@pytest.fixture
def cost(monkeypatch):
    """Answers, for an operation, how many bytes and runs it compares, and how many eviction records it looks at."""
    runs = records = 0
    pop = slot_prefix_cache.heapq.heappop

    def counting_common(*args):
        nonlocal runs
        runs += 1
        return common(*args)

    def counting_pop(heap):
        nonlocal records
        records += 1
        return pop(heap)

    monkeypatch.setattr(slot_prefix_cache, "common", counting_common)
    monkeypatch.setattr(slot_prefix_cache.heapq, "heappop", counting_pop)
    monkeypatch.setattr(slot_prefix_cache, "packed", lambda tokens: CountingBytes(packed(tokens)))

    def measure(operation, *args):
        nonlocal runs, records
        CountingBytes.compared = runs = records = 0
        operation(*args)
        return CountingBytes.compared, runs, records

    return measure


def test_find_does_not_walk_what_it_does_not_touch(cost):
    costs = []
    for others in (10, 1_000):
        cache = SlotPrefixCache(100_000, others + 1, 64, layers=1)
        for i in range(others):
            cache.insert([i, *range(40)], i, 1)
        costs.append(cost(cache.find, [5, *range(30)]))
    assert costs[0] == costs[1]
    assert costs[0] == (31 * 8, 1, 0)


def test_a_difference_ends_the_comparison():
    long = packed(range(100_000))
    for same in (1, 40, 1_000, 50_000):
        other = CountingBytes(packed([*range(same), *[-1] * (100_000 - same)]))
        CountingBytes.compared = CountingBytes.comparisons = 0
        assert common(other, 0, long, 0, len(long)) == 8 * same
        assert CountingBytes.compared <= 8 * (4 * same + 2 * 32)
        assert CountingBytes.comparisons <= 32


def peak_memory(operation, *args) -> int:
    tracemalloc.start()
    try:
        operation(*args)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_find_makes_no_object_for_a_token():
    length = 100_000
    query = array("q", range(length))
    cache = SlotPrefixCache(length, 1, length, layers=1)
    cache.insert(query, 0, 1)
    # The packed query takes 8 bytes a token; an int object would take 32 more.
    assert peak_memory(cache.find, query) < 12 * length


@pytest.mark.parametrize("length", [10, 99_990])
def test_a_split_copies_the_smaller_part(length):
    cache = SlotPrefixCache(100_000, 1, 100_000, layers=1)
    cache.insert(range(100_000), 0, 1)
    (node,) = cache._root.children.values()
    assert peak_memory(node.split, 8 * length) < 2_000
    assert [part.size for part in (node.parent, node)] == [8 * length, 8 * (100_000 - length)]


def test_eviction_looks_at_as_many_records_as_it_evicts(cost):
    for size in (20, 2_000):
        cache = SlotPrefixCache(size * 10, size + 1, 16, layers=1)
        for i in range(size):
            cache.insert([i, *range(9)], i, 1)
        seen = [cost(cache.insert, [size + i, *range(9)], i % size, 1) for i in range(50)]
        assert {records for _, _, records in seen} <= {0, 1, 2}
        assert {runs for _, runs, _ in seen} == {1}


def test_uses_since_do_not_make_eviction_look_at_everything(cost):
    size = 500
    cache = SlotPrefixCache(size, size + 100, 4, layers=1)
    for i in range(size):
        cache.insert([i], i, 1)
    for _ in range(20):
        for i in range(size):
            cache.find([i])
    records = [cost(cache.insert, [size + i], size + i, 1)[2] for i in range(100)]
    assert sum(records) <= size + 2 * len(records)


def test_finds_that_end_in_a_run_do_not_leave_it_in_pieces(cost):
    tokens = list(range(500))
    cache = SlotPrefixCache(1_000, 2, 500, layers=1)
    cache.insert(tokens, 0, 1)
    for length in range(499, 0, -7):
        assert cache.find(tokens[:length]).length == length
    assert cost(cache.find, tokens)[1] > 50
    assert cost(cache.find, tokens)[1] == 1


def test_what_was_evicted_is_not_kept_alive():
    """check_tree: at most half of the bytes that a run keeps alive are of no use, and the queue is bounded."""
    cache = SlotPrefixCache(2_000, 3, 1_000, layers=1)
    for i in range(200):
        cache.insert([i % 2, *range(i, i + 900)], i % 3, 1)
        cache.find([i % 2, *range(i, i + i % 7)])
        check_tree(cache)


def test_five_hundred_nested_prefixes_take_no_recursion():
    n = 500
    tokens = list(range(n))
    cache = SlotPrefixCache(10 * n, n, n, layers=1)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 40)
    try:
        for i in range(n):
            cache.insert(tokens[: i + 1], i, 1)
        assert cache.find(tokens) == Match(n, n - 1, 1)
        cache.pin(tokens)
        with pytest.raises(Pinned):
            cache.reuse(n - 1, n - 1)
        cache.release(tokens)
        assert len(cache.entries()) == n
        for i in reversed(range(n)):
            cache.reuse(i, i // 2)
        assert cache.find(tokens) == Match(n // 2 - 1, n - 1, 1)
        for i in range(n):
            cache.insert([i - n], i, 1)
        assert cache.find(tokens) == MISS
        del cache
    finally:
        sys.setrecursionlimit(limit)


class Refuses(Reference):
    """A refused insert has cut the slot's row."""

    def insert(self, tokens, slot, version, pinned=False):
        try:
            super().insert(tokens, slot, version, pinned)
        except Pinned:
            self._kv[slot][-1] = 99
            raise


class EvictsInterior(Reference):
    """Eviction takes an entry with others below it, which stay."""

    def _evict(self):
        while len(self._used) > self._capacity:
            free = [p for p in self._used if p not in self._pins]
            if not free:
                return
            del self._used[min(free, key=lambda p: (self._used[p], len(p)))]

    def entries(self):
        return {p: entry for p, entry in super().entries().items() if p in self._used}


class CutsDescendants(Reference):
    """A pin does not protect the path to it."""

    def _evict(self):
        while len(self._used) > self._capacity:
            victim = min(self._used, key=lambda p: (self._used[p], -len(p)))
            shorter = {s: row._replace(tokens=victim[:-1]) for s, row in self._rows.items() if row.tokens == victim}
            self._rows = {s: row for s, row in {**self._rows, **shorter}.items() if row.tokens}
            del self._used[victim]


class CopiesOneMore(Reference):
    def copy_kv(self, tokens, target):
        source = super().copy_kv(tokens, target)
        end = len(tokens)
        self._kv[target][end : end + 1] = self._kv[source][end : end + 1]
        return source


class ReuseKeepsLonger(Reference):
    def reuse(self, slot, length):
        self._check_slot(slot)


class CountsOneMore(Reference):
    def find(self, tokens):
        match = super().find(tokens)
        return match._replace(length=match.length + 1) if 0 < match.length < len(tokens) else match


class SkipsTheEnd(Reference):
    def find(self, tokens):
        return super().find(tokens[:-1]) if len(tokens) > 1 else super().find(tokens)


class ReleasesUnpinned(Reference):
    def release(self, tokens):
        try:
            super().release(tokens)
        except NotPinned:
            if tuple(tokens) not in self._used:
                raise


class KeepsVersion(Reference):
    def insert(self, tokens, slot, version, pinned=False):
        row = self._rows.get(slot)
        same = row is not None and tuple(tokens[: len(row.tokens)]) == row.tokens
        super().insert(tokens, slot, row.version if row is not None and same else version, pinned)


class NeverEvicts(Reference):
    def _evict(self):
        pass


class CopyKeepsLonger(Reference):
    """What lies in the target beyond the copy stays cached, with KV that is right."""

    def copy_kv(self, tokens, target):
        rows, used = self._rows, self._used
        source = super().copy_kv(tokens, target)
        if target in rows and rows[target].tokens[: len(tokens)] == tuple(tokens):
            self._rows, self._used = rows, used
        return source


class FirstInFirstOut(Reference):
    """A use does not make an entry younger."""

    def _touch(self, prefix):
        used = dict(self._used)
        super()._touch(prefix)
        self._used.update(used)


class RefusesAnyPin(Reference):
    """A pinned entry in the slot is enough to refuse, though another slot holds it too."""

    def _set_row(self, slot, row):
        old = self._rows.get(slot)
        kept = row.tokens if row is not None else ()
        if old is not None and any(old.tokens[: len(p)] == p and kept[: len(p)] != p for p in self._pins):
            raise Pinned
        super()._set_row(slot, row)


class WrongError(Reference):
    def pin(self, tokens):
        if not tokens:
            raise InvalidArgument
        super().pin(tokens)


FAULTS = {
    "atomicity": Refuses,
    "structure": EvictsInterior,
    "eviction_safety": CutsDescendants,
    "write_isolation": CopiesOneMore,
    "content_equality": ReuseKeepsLonger,
    "prefix_soundness": CountsOneMore,
    "prefix_completeness": SkipsTheEnd,
    "no_double_free": ReleasesUnpinned,
    "version_current": KeepsVersion,
    "accounting": NeverEvicts,
    "conservation": CopyKeepsLonger,
    "eviction_order": FirstInFirstOut,
    "admission_honesty": RefusesAnyPin,
    "agreement": WrongError,
}


@pytest.mark.parametrize("law", FAULTS)
def test_each_law_catches_a_fault(law):
    outcome = walk(SlotPrefixCacheModel, FAULTS[law], 30_000)
    assert outcome.failure is not None
    assert outcome.failure.law == law


def test_every_law_has_a_fault():
    assert {law.id for law in SlotPrefixCacheModel.own_laws} <= FAULTS.keys()
