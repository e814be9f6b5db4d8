"""Faults of block_pool."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import faults_of
from kvlockstep.reference.block_pool import BlockPool
from kvlockstep.reference.block_pool.contract import ExtraKey, HashFunction, InUse
from kvlockstep.reference.block_pool.keys import BlockKey, RequestKeys
from kvlockstep.reference.errors import ContractError, OutOfSlots


def _own_tokens(pool: BlockPool, key: BlockKey) -> tuple[int, ...]:
    return key.prefix.tokens[-pool._block_size :]


class ChainWithoutParent(BlockPool):
    """A block is known by its own tokens and extra key."""

    def request_keys(self, extra_keys: Sequence[ExtraKey] = ()) -> RequestKeys:
        def own(parent: int, tokens: tuple[int, ...], extra_key: ExtraKey) -> int:
            return self._hash(0, tokens, extra_key)

        return RequestKeys(self._block_size, extra_keys, own)

    def _verified(self, key: BlockKey, wanted: BlockKey) -> bool:
        same_tokens = _own_tokens(self, key) == _own_tokens(self, wanted)
        return same_tokens and key.prefix.extra_keys[-1] == wanted.prefix.extra_keys[-1]


class HashTrusted(BlockPool):
    """A hit is whatever has the same hash."""

    def _verified(self, key: BlockKey, wanted: BlockKey) -> bool:
        return True


class PythonHashTrusted(HashTrusted):
    """The same with the hash of the language, for which -1 and -2 are one."""

    def __init__(self, blocks: int, block_size: int, hash_function: HashFunction | None = None) -> None:
        super().__init__(blocks, block_size, _python_hash)


class SeedKey(PythonHashTrusted):
    """The key is the hash and the block's own tokens: those of its parents are behind the hash only."""

    def _verified(self, key: BlockKey, wanted: BlockKey) -> bool:
        return _own_tokens(self, key) == _own_tokens(self, wanted)


def _python_hash(parent: int, tokens: tuple[int, ...], extra_key: ExtraKey) -> int:
    return hash((parent, *tokens, extra_key))


class NoExtraKeys(BlockPool):
    """Adapters and salts are left for later."""

    def request_keys(self, extra_keys: Sequence[ExtraKey] = ()) -> RequestKeys:
        return super().request_keys()


class ExtraKeysOutsideChain(BlockPool):
    """The extra key of a block stands beside its hash, so the blocks behind it do not inherit it."""

    def request_keys(self, extra_keys: Sequence[ExtraKey] = ()) -> RequestKeys:
        def plain(parent: int, tokens: tuple[int, ...], extra_key: ExtraKey) -> int:
            return self._hash(parent, tokens, None)

        return RequestKeys(self._block_size, extra_keys, plain)

    def _verified(self, key: BlockKey, wanted: BlockKey) -> bool:
        same_tokens = key.prefix.tokens == wanted.prefix.tokens
        return same_tokens and key.prefix.extra_keys[-1] == wanted.prefix.extra_keys[-1]


class ChainRestarts(BlockPool):
    """A request that grows starts a new chain with every piece."""

    def request_keys(self, extra_keys: Sequence[ExtraKey] = ()) -> RequestKeys:
        class Restarting(RequestKeys):
            def extend(self, tokens: Sequence[int]) -> None:
                known, self.hashes = self.hashes, [0] * len(self.hashes)
                super().extend(tokens)
                self.hashes[: len(known)] = known

        return Restarting(self._block_size, extra_keys, self._hash)


class PartialBlockKeyed(BlockPool):
    """A block that is not full has a key, too."""

    def request_keys(self, extra_keys: Sequence[ExtraKey] = ()) -> RequestKeys:
        class Rounded(RequestKeys):
            def extend(self, tokens: Sequence[int]) -> None:
                del self.hashes[len(self._tokens) // self._block_size :]
                super().extend(tokens)
                rest = len(self._tokens) % self._block_size
                if rest:
                    self.hashes.append(self._hash(0, tuple(self._tokens[-rest:]), None))

        return Rounded(self._block_size, extra_keys, self._hash)


class CallersListKept(BlockPool):
    """The tokens of a request are those of the list that the caller gave first."""

    def request_keys(self, extra_keys: Sequence[ExtraKey] = ()) -> RequestKeys:
        class Keeping(RequestKeys):
            def extend(self, tokens: Sequence[int]) -> None:
                first = not self._tokens
                super().extend(tokens)
                if first and isinstance(tokens, list):
                    self._tokens = tokens

        return Keeping(self._block_size, extra_keys, self._hash)


class WrongTwinForgotten(BlockPool):
    """Handing a block out takes the key's first block out of the index."""

    def _forget(self, block: int) -> None:
        super()._forget(_first_twin(self, block))


class WrongTwinTouched(BlockPool):
    """A hit is touched by its key, so the key's first block is pinned."""

    def touch(self, blocks: Sequence[int]) -> None:
        self._check("touch", blocks, self._check_worth_holding)
        super().touch([_first_twin(self, block) for block in blocks])


class WrongTwinUnpinned(BlockPool):
    """A block is freed by its key, so the key's first block loses a holder."""

    def free(self, blocks: Sequence[int]) -> None:
        self._check("free", blocks, self._check_held)
        twins = [_first_twin(self, block) for block in blocks]
        held = [twin if self._refs[twin] else block for twin, block in zip(twins, blocks, strict=True)]
        super().free(held if len(set(held)) == len(held) else blocks)


class RemovesItsEqual(BlockPool):
    """The queue is searched for a block that looks the same, as dataclasses compare."""

    def touch(self, blocks: Sequence[int]) -> None:
        queue = self._queue.copy()
        super().touch(blocks)
        for block in [block for block in blocks if block in queue]:
            cached = self._cached[block].prefix
            queue.remove(next(b for b in queue if b in self._cached and self._cached[b].prefix == cached))
        self._queue = queue


def _first_twin(pool: BlockPool, block: int) -> int:
    entry = pool._cached.get(block)
    return block if entry is None else next(b for b, other in pool._cached.items() if other.prefix == entry.prefix)


class AnswersLastTwin(BlockPool):
    """Of two blocks with one key the one cached last answers."""

    def _find(self, wanted: BlockKey) -> int | None:
        found = super()._find(wanted)
        return None if found is None else [b for b in self._cached if _first_twin(self, b) == found][-1]


class FreedTwiceAtOnce(BlockPool):
    """free([b, b]) by one of two holders takes the other's block as well."""

    def free(self, blocks: Sequence[int]) -> None:
        known = all(0 <= block < self._blocks for block in blocks)
        if (
            known
            and len(set(blocks)) < len(blocks)
            and all(blocks.count(block) <= self._refs[block] for block in blocks)
        ):
            for block in blocks:
                super().free([block])
        else:
            super().free(blocks)


class RotatesTwins(BlockPool):
    """A lookup that a twin has answered asks another one next time."""

    def find_longest_prefix(self, keys: RequestKeys, limit: int | None = None) -> list[int]:
        hits = super().find_longest_prefix(keys, limit)
        for block in hits:
            self._cached[block] = self._cached.pop(block)
        return hits


class DecrementsThenFilters(BlockPool):
    """Counts go down for all blocks first, then each that has none is queued: twice if it was named twice."""

    def free(self, blocks: Sequence[int]) -> None:
        for i, block in enumerate(blocks):
            self._check("free", [block], self._check_held)
            if block in blocks[:i]:
                continue
        for block in blocks:
            self._refs[block] = max(0, self._refs[block] - 1)
        idle = [block for block in reversed(blocks) if not self._refs[block]]
        blank = [block for block in idle if block not in self._cached]
        self._queue = blank + self._queue + [block for block in idle if block in self._cached]


class QueuedTwiceCutsQueue(BlockPool):
    """A free block may be freed: appended to the linked queue again, it cuts off what stood behind it."""

    def free(self, blocks: Sequence[int]) -> None:
        again = [block for block in blocks if block in self._queue]
        super().free([block for block in blocks if block not in again])
        for block in again:
            self._queue = self._queue[: self._queue.index(block) + 1]


class HeadFreedFirst(BlockPool):
    """The first block of a request is the first to be evicted."""

    def free(self, blocks: Sequence[int]) -> None:
        self._check("free", blocks, self._check_held)
        super().free(blocks[::-1])


class BlankToTail(BlockPool):
    """Blocks that cache nothing wait behind those that do."""

    def free(self, blocks: Sequence[int]) -> None:
        queue = self._queue
        super().free(blocks)
        self._queue = queue + [block for block in reversed(blocks) if not self._refs[block]]


class FreeForgets(BlockPool):
    """A block that loses its last holder is wiped."""

    def free(self, blocks: Sequence[int]) -> None:
        super().free(blocks)
        for block in blocks:
            if not self._refs[block]:
                self._forget(block)


class RefusedFreeFrees(BlockPool):
    """The blocks before a bad one are freed, then the call is refused."""

    def free(self, blocks: Sequence[int]) -> None:
        for n in range(len(blocks)):
            try:
                self._check("free", blocks[: n + 1], self._check_held)
            except ContractError:
                super().free(blocks[:n])
                raise
        super().free(blocks)


class CachedNeverFree(BlockPool):
    """A block that caches something is not queued when its last holder goes, if others are queued already."""

    def free(self, blocks: Sequence[int]) -> None:
        super().free(blocks)
        cached = [block for block in self._queue if block in self._cached]
        if len(cached) > 1 and cached[-1] in blocks:
            self._queue.remove(cached[-1])


class GhostKey(BlockPool):
    """A block that is handed out again is still found under its old key."""

    def _forget(self, block: int) -> None:
        pass


class TouchLeavesQueued(BlockPool):
    """A hit gets a holder and stays in the free queue."""

    def touch(self, blocks: Sequence[int]) -> None:
        queue = self._queue.copy()
        super().touch(blocks)
        self._queue = queue


class TouchCountsFirstHolder(BlockPool):
    """Only a free block gets a reference."""

    def touch(self, blocks: Sequence[int]) -> None:
        super().touch(blocks)
        for block in blocks:
            self._refs[block] = max(1, self._refs[block] - 1)


class TouchesStaleHit(BlockPool):
    """A hit that was evicted before it was touched is held all the same."""

    def _check_worth_holding(self, block: int) -> None:
        pass


class CountFollowsCalls(BlockPool):
    """The number of free blocks goes down with every removal from the queue, also of a block that is not in it."""

    def __init__(self, blocks: int, block_size: int, hash_function: HashFunction | None = None) -> None:
        self._removed_in_vain = 0
        super().__init__(blocks, block_size, hash_function)

    @property
    def num_free(self) -> int:
        return len(self._queue) - self._removed_in_vain

    def touch(self, blocks: Sequence[int]) -> None:
        held = sum(0 <= block < self._blocks and self._refs[block] > 0 for block in blocks)
        super().touch(blocks)
        self._removed_in_vain += held


class CountsHeldAsEvictable(BlockPool):
    """What is cached counts as evictable, held or not."""

    @property
    def num_evictable(self) -> int:
        return len(self._cached)


class EmptyPoolCrashes(BlockPool):
    """The queue is made from the first and the last block."""

    def __init__(self, blocks: int, block_size: int, hash_function: HashFunction | None = None) -> None:
        super().__init__(blocks, block_size, hash_function)
        self._head, self._tail = self._queue[0], self._queue[-1]


class TakesFromTail(BlockPool):
    """What was freed last is handed out first."""

    def allocate(self, n: int) -> list[int]:
        self._queue.reverse()
        try:
            return super().allocate(n)
        finally:
            self._queue.reverse()


class RefusedAllocationKeeps(BlockPool):
    """Blocks are taken one by one, and those taken before the refusal are lost."""

    def allocate(self, n: int) -> list[int]:
        if n > len(self._queue):
            super().allocate(len(self._queue))
        return super().allocate(n)


class KeepsOneBack(BlockPool):
    """The last block is never handed out."""

    def allocate(self, n: int) -> list[int]:
        if n == len(self._queue) > 1:
            raise OutOfSlots("one block is kept back")
        return super().allocate(n)


class HandsOutHeldTwin(BlockPool):
    """The last of several blocks is the first once more."""

    def allocate(self, n: int) -> list[int]:
        taken = super().allocate(n)
        if n > 2:
            self._queue.insert(0, taken[-1])
            self._refs[taken[-1]] = 0
            taken[-1] = taken[0]
        return taken


class CachedTwice(BlockPool):
    """A block may be cached again under another key."""

    def _check_cacheable(self, block: int) -> None:
        self._check_held(block)


class FreeBlockCached(BlockPool):
    """What a request computed is cached after it gave the block back."""

    def _check_held(self, block: int) -> None:
        pass

    def free(self, blocks: Sequence[int]) -> None:
        self._check("free", blocks, super()._check_held)
        super().free(blocks)


class CachedBehindHole(BlockPool):
    """A block is cached behind one that caches something else."""

    def _check_caches(self, block: int, key: BlockKey) -> None:
        pass


class SkipsHole(BlockPool):
    """A lookup goes on behind a block that is not cached."""

    def find_longest_prefix(self, keys: RequestKeys, limit: int | None = None) -> list[int]:
        super().find_longest_prefix(keys, limit)
        return [block for i in range(len(keys))[:limit] if (block := self._find(keys.key(i))) is not None]


class LimitIgnored(BlockPool):
    """A lookup may answer the whole request."""

    def find_longest_prefix(self, keys: RequestKeys, limit: int | None = None) -> list[int]:
        super().find_longest_prefix(keys, limit)
        return super().find_longest_prefix(keys)


class LastBlockNeverHit(BlockPool):
    """A lookup leaves the last block to compute by itself, and once more by its limit."""

    def find_longest_prefix(self, keys: RequestKeys, limit: int | None = None) -> list[int]:
        return super().find_longest_prefix(keys, limit)[: max(0, len(keys) - 1)]


class LookupRefreshes(BlockPool):
    """A lookup moves its hits to the tail of the queue."""

    def find_longest_prefix(self, keys: RequestKeys, limit: int | None = None) -> list[int]:
        hits = super().find_longest_prefix(keys, limit)
        idle = [block for block in hits if block in self._queue]
        self._queue = [block for block in self._queue if block not in idle] + idle
        return hits


class ResetWithLive(BlockPool):
    """Everything is forgotten, held or not."""

    def reset(self) -> None:
        self._clear()


class ResetUnderLive(BlockPool):
    """Everything is forgotten while requests go on."""

    def reset(self) -> None:
        self._queue.sort()
        self._cached = {}


class ResetForgetsFreeOnly(BlockPool):
    """The queue is made anew, the index stays."""

    def reset(self) -> None:
        cached = self._cached
        super().reset()
        self._cached = cached


class ResetRefusedByCached(BlockPool):
    """A block that caches something counts as held."""

    def reset(self) -> None:
        if self._cached:
            raise InUse("blocks are cached")
        super().reset()


class NullIsOrdinary(BlockPool):
    """The placeholder -1 is freed as any block is, and what it points to loses a reference."""

    def free(self, blocks: Sequence[int]) -> None:
        if -1 in blocks and self._refs:
            self._refs[-1] -= 1
            return
        super().free(blocks)


class FirstExtraKeyOnly(BlockPool):
    """Of what stands beside the tokens of a block only the first part enters its key."""

    def request_keys(self, extra_keys: Sequence[ExtraKey] = ()) -> RequestKeys:
        return super().request_keys([key[0] if isinstance(key, tuple) else key for key in extra_keys])


class ExtraKeyNeverHit(BlockPool):
    """A request with extra keys is cached with them and looked up without."""

    def find_longest_prefix(self, keys: RequestKeys, limit: int | None = None) -> list[int]:
        hits = super().find_longest_prefix(keys, limit)
        return [] if any(key is not None for key in keys._extra_keys) else hits


class AllOrNothing(BlockPool):
    """A request that leaves the cached path in its last block hits nothing."""

    def find_longest_prefix(self, keys: RequestKeys, limit: int | None = None) -> list[int]:
        hits = super().find_longest_prefix(keys, limit)
        return hits if len(hits) >= min(len(keys), len(keys) if limit is None else limit) else []


class PublishesLate(BlockPool):
    """What is cached can be hit after the next lookup."""

    def _clear(self) -> None:
        super()._clear()
        self._late: set[int] = set()

    def cache_full_blocks(self, keys: RequestKeys, table: Sequence[int], cached: int, full: int) -> None:
        super().cache_full_blocks(keys, table, cached, full)
        self._late.update(table[cached:full])

    def find_longest_prefix(self, keys: RequestKeys, limit: int | None = None) -> list[int]:
        hits = super().find_longest_prefix(keys, limit)
        late, self._late = self._late, set()
        return next((hits[:i] for i, block in enumerate(hits) if block in late), hits)


class MasksMiss(BlockPool):
    """Writers keep the ends at odd blocks, readers accept the ends at even ones."""

    def find_longest_prefix(self, keys: RequestKeys, limit: int | None = None) -> list[int]:
        hits = super().find_longest_prefix(keys, limit)
        kept = [n for n in range(1, len(hits) + 1) if n % 2]
        return hits[: max((n for n in kept if n % 2 == 0), default=0)]


class EmptyIsAnotherError(BlockPool):
    """Taking from an empty queue is an error of the queue."""

    def allocate(self, n: int) -> list[int]:
        if n > 0 and not self._queue:
            raise ValueError("no free blocks")
        return super().allocate(n)


class FreedTwiceOfMany(BlockPool):
    """free([b, b]) is noticed only where it frees b: of three holders one takes the reference of another."""

    def free(self, blocks: Sequence[int]) -> None:
        for block in [b for i, b in enumerate(blocks) if b in blocks[:i]]:
            if 0 <= block < self._blocks and self._refs[block] > blocks.count(block):
                super().free([block])
                blocks = list(dict.fromkeys(blocks))
        super().free(blocks)


class TouchUncaches(BlockPool):
    """Only free blocks can be hit: one that gets a holder is out of the index until it is free again."""

    def _clear(self) -> None:
        super()._clear()
        self._aside: dict[int, BlockKey] = {}

    def touch(self, blocks: Sequence[int]) -> None:
        super().touch(blocks)
        self._aside.update({block: self._cached.pop(block) for block in blocks if block in self._cached})

    def free(self, blocks: Sequence[int]) -> None:
        self._cached.update({block: self._aside.pop(block) for block in blocks if block in self._aside})
        super().free(blocks)


FAULTS = faults_of(
    "block_pool",
    ("bp-chain-no-parent", ChainWithoutParent, "key without the parent", ("vllm#12603",), "prefix_soundness"),
    (
        "bp-hash-trusted",
        HashTrusted,
        "a hit is not verified",
        ("vllm#12621", "openvino.genai#3722"),
        "prefix_soundness",
    ),
    ("bp-python-hash", PythonHashTrusted, "hash(-1) == hash(-2)", ("seed 002", "vllm#12621"), "prefix_soundness"),
    ("bp-seed-key", SeedKey, "verified by own tokens, not by parent", ("seed 002", "vllm#54727"), "prefix_soundness"),
    ("bp-no-extra-keys", NoExtraKeys, "extra keys left out", ("seed 002", "LMCache#4783"), "content_equality"),
    ("bp-extra-outside", ExtraKeysOutsideChain, "extra keys not inherited", ("vllm#12603",), "prefix_soundness"),
    ("bp-chain-restarts", ChainRestarts, "growing starts a new chain", ("tokenspeed#87",), "prefix_completeness"),
    ("bp-partial-keyed", PartialBlockKeyed, "a partial block has a key", ("vllm#11186",), "agreement"),
    ("bp-callers-list", CallersListKept, "the caller's list is kept", ("mutant",), "content_equality"),
    (
        "bp-twin-forgotten",
        WrongTwinForgotten,
        "wrong twin removed",
        ("kvcached#401", "Megatron-LM#6218"),
        "content_equality",
    ),
    ("bp-twin-touched", WrongTwinTouched, "wrong twin pinned", ("TensorRT-LLM#12648",), "refcount_exact"),
    ("bp-twin-unpinned", WrongTwinUnpinned, "wrong twin unpinned", ("TensorRT-LLM#12648",), "refcount_exact"),
    ("bp-removes-equal", RemovesItsEqual, "removal by value", ("seed 002",), "conservation"),
    ("bp-last-twin", AnswersLastTwin, "another policy than the contract's", ("mutant",), "agreement"),
    ("bp-rotates-twins", RotatesTwins, "a lookup is not pure", ("mutant",), "atomicity"),
    ("bp-free-twice", FreedTwiceAtOnce, "free([b, b])", ("unified-cache-management#1053",), "no_double_free"),
    ("bp-decrement-filter", DecrementsThenFilters, "queued twice", ("dynamo#13398",), "no_double_free"),
    ("bp-queue-cut", QueuedTwiceCutsQueue, "append looks at nothing", ("seed 002",), "no_double_free"),
    ("bp-head-first", HeadFreedFirst, "head evicted first", ("sglang#38000", "Megatron-LM#5822"), "eviction_order"),
    ("bp-blank-last", BlankToTail, "blank blocks wait, cached ones go", ("seed 002",), "eviction_order"),
    ("bp-free-forgets", FreeForgets, "freed is forgotten", ("mutant",), "eviction_safety"),
    ("bp-refused-free", RefusedFreeFrees, "a refused free frees", ("Megatron-LM#6091",), "atomicity"),
    ("bp-cached-leaks", CachedNeverFree, "a cached block leaks", ("xllm#829",), "conservation"),
    ("bp-ghost-key", GhostKey, "ghost key", ("seed 002", "nano-vllm#163"), "content_equality"),
    ("bp-touch-queued", TouchLeavesQueued, "a hit stays evictable", ("vllm#10507",), "conservation"),
    ("bp-touch-uncounted", TouchCountsFirstHolder, "second holder not counted", ("mutant",), "refcount_exact"),
    ("bp-stale-touch", TouchesStaleHit, "an evicted hit is used", ("vllm#10507",), "agreement"),
    ("bp-count-drifts", CountFollowsCalls, "counter without a look", ("seed 002",), "accounting"),
    ("bp-evictable-held", CountsHeldAsEvictable, "held counts as evictable", ("vllm#11565",), "accounting"),
    ("bp-empty-crash", EmptyPoolCrashes, "no block, no queue", ("seed 002",), "error_contract"),
    ("bp-from-tail", TakesFromTail, "most recent first", ("mutant",), "eviction_order"),
    ("bp-refused-takes", RefusedAllocationKeeps, "a refused allocation keeps", ("Megatron-LM#6091",), "atomicity"),
    ("bp-keeps-one", KeepsOneBack, "refuses with a block free", ("llama.cpp#10873",), "admission_honesty"),
    ("bp-stutters", HandsOutHeldTwin, "one block for two", ("vllm#42571",), "no_aliasing"),
    ("bp-cached-twice", CachedTwice, "a block under two keys in turn", ("vllm#49125",), "agreement"),
    ("bp-free-cached", FreeBlockCached, "cached after it was freed", ("mutant",), "agreement"),
    ("bp-behind-hole", CachedBehindHole, "a prefix with a hole is cached", ("mutant",), "agreement"),
    ("bp-skips-hole", SkipsHole, "a lookup skips a hole", ("mutant",), "prefix_soundness"),
    ("bp-limit-ignored", LimitIgnored, "more than was asked for", ("vllm#11186",), "prefix_soundness"),
    ("bp-one-less", LastBlockNeverHit, "last block never hit", ("vllm#11186",), "prefix_completeness"),
    ("bp-lookup-refreshes", LookupRefreshes, "a lookup is not pure", ("sglang#31643",), "atomicity"),
    ("bp-reset-live", ResetWithLive, "reset under a live request", ("mutant",), "conservation"),
    ("bp-reset-under-live", ResetUnderLive, "reset does not look who is there", ("mutant",), "reset_complete"),
    ("bp-reset-keeps", ResetForgetsFreeOnly, "reset forgets the queue only", ("mutant",), "content_equality"),
    ("bp-reset-refused", ResetRefusedByCached, "cached counts as held", ("imp#1115",), "admission_honesty"),
    ("bp-null-freed", NullIsOrdinary, "a placeholder is freed", ("vllm#22209",), "no_double_free"),
    ("bp-first-extra-key", FirstExtraKeyOnly, "a part of the key is left out", ("vllm#56655",), "content_equality"),
    ("bp-extra-never-hit", ExtraKeyNeverHit, "extra keys never hit", ("llm-d-kv-cache#411",), "prefix_completeness"),
    ("bp-all-or-nothing", AllOrNothing, "diverging late hits nothing", ("vllm#57610",), "prefix_completeness"),
    ("bp-publishes-late", PublishesLate, "hit only later", ("TensorRT-LLM#15655",), "prefix_completeness"),
    ("bp-masks-miss", MasksMiss, "write and read masks do not meet", ("vllm#42258",), "prefix_completeness"),
    ("bp-empty-error", EmptyIsAnotherError, "an error of another kind", ("seed 002",), "error_contract"),
    ("bp-free-twice-of-many", FreedTwiceOfMany, "free([b, b])", ("dynamo#13398",), "no_double_free"),
    ("bp-touch-uncaches", TouchUncaches, "held is not hit", ("mutant",), "eviction_safety"),
)
