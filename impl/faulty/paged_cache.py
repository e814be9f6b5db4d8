"""Faults of paged_cache: what seed 004 does, and what other managers of shared blocks were seen to do."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import faults_of
from kvlockstep.reference.errors import InvalidArgument, OutOfSlots
from kvlockstep.reference.kv.shape import KVShape
from kvlockstep.reference.paged_cache import PagedCache
from kvlockstep.reference.paged_cache.contract import Allocation, Growth, PagedStatistics, UnknownSequence
from kvlockstep.reference.paged_cache.pool import PagedPool


class Spoiled(PagedCache):
    """A paged_cache over a spoiled pool."""

    pool_type = PagedPool

    def reset(self) -> None:
        super().reset()
        self._pool = self.pool_type(self._blocks, self._policy)


class EvictsLive(PagedCache):
    """A block that one sequence holds may be evicted: it goes out of that sequence's table."""

    def allocate(self, sequence: int, tokens: int, keys: Sequence[int] = ()) -> Allocation:
        missing = self._blocks_for(tokens) - len(self.lookup(keys)) - len(self._pool.free) - len(self._pool.idle())
        for table in self._tables.values():
            for block in [b for b in table if self._pool.blocks[b].holders == 1][: max(0, missing)]:
                table.remove(block)
                self._pool.release([block])
                missing -= 1
        return super().allocate(sequence, tokens, keys)


class RollbackDropsOthers(PagedCache):
    """What a failed append took is given back by number of blocks, also those that were there before."""

    def append(self, sequence: int, tokens: int = 1) -> Growth:
        try:
            return super().append(sequence, tokens)
        except OutOfSlots:
            length, table = self._find("append", sequence)
            kept = max(0, 2 * len(table) - self._blocks_for(length + tokens))
            self._pool.release(table[kept:])
            del table[kept:]
            raise


class RollbackFreesTwice(PagedCache):
    """What a failed allocation took is put back into the free queue, where it still is."""

    def allocate(self, sequence: int, tokens: int, keys: Sequence[int] = ()) -> Allocation:
        try:
            return super().allocate(sequence, tokens, keys)
        except OutOfSlots:
            self._pool.free += self._pool.free[:1]
            raise


class FailureCounts(PagedCache):
    """A refused allocation has counted its hits."""

    def allocate(self, sequence: int, tokens: int, keys: Sequence[int] = ()) -> Allocation:
        try:
            return super().allocate(sequence, tokens, keys)
        except OutOfSlots:
            self._pool.counts["hits"] += len(self.lookup(keys))
            raise


class CopiesTablesOnly(PagedCache):
    """Copy-on-write changes the table and tells nobody to copy."""

    def append(self, sequence: int, tokens: int = 1) -> Growth:
        growth = super().append(sequence, tokens)
        return growth._replace(blocks=[t for _, t in growth.copies] + growth.blocks, copies=[])


class CopiesBackwards(PagedCache):
    """The pairs of a copy-on-write are (target, source)."""

    def append(self, sequence: int, tokens: int = 1) -> Growth:
        growth = super().append(sequence, tokens)
        return growth._replace(copies=[(target, source) for source, target in growth.copies])


class CopiesFullBlock(PagedCache):
    """Growing behind a full shared block copies that block, too."""

    def append(self, sequence: int, tokens: int = 1) -> Growth:
        length, table = self._find("append", sequence)
        full = length > 0 and length % self._size == 0 and self._pool.blocks[table[-1]].holders > 1
        if not full or tokens < 1 or len(self._pool.free) < 1 + self._blocks_for(tokens):
            return super().append(sequence, tokens)
        source, target = table[-1], self._pool.take(len(table) - 1, 1)[0]
        self._pool.release([source])
        self._pool.counts["copies"] += 1
        self._tables[sequence] = [*table[:-1], target]
        return super().append(sequence, tokens)._replace(copies=[(source, target)])


class AppendHalfDone(PagedCache):
    """The copy-on-write of an append is done before the append is refused."""

    def append(self, sequence: int, tokens: int = 1) -> Growth:
        try:
            return super().append(sequence, tokens)
        except OutOfSlots:
            length, table = self._find("append", sequence)
            if self._pool.free and length % self._size and self._pool.frozen(table[-1]):
                last = table.pop()
                table += self._pool.take(len(table), 1)
                self._pool.release([last])
            raise


class WritesShared(Spoiled):
    """The block that other sequences hold is written in place."""

    class pool_type(PagedPool):
        def frozen(self, block: int) -> bool:
            return block in self.registered.values()


class WritesRegistered(Spoiled):
    """A registered block that was cut is written in place."""

    class pool_type(PagedPool):
        def frozen(self, block: int) -> bool:
            idle = not self.blocks[block].holders
            return super().frozen(block) if idle else self.blocks[block].holders > 1


class AnswersAroundHole(Spoiled):
    """A prefix lacks its evicted block and goes on behind it."""

    class pool_type(PagedPool):
        def lookup(self, keys: Sequence[int]) -> list[int]:
            return [self.registered[key] for key in keys if key in self.registered]


class AnyIndex(Spoiled):
    """A key is a hit wherever in a prefix it is asked for."""

    class pool_type(PagedPool):
        def lookup(self, keys: Sequence[int]) -> list[int]:
            hit: list[int] = []
            for key in keys:
                if key not in self.registered:
                    break
                hit.append(self.registered[key])
            return hit


class MissesLast(Spoiled):
    """The last key asked for is never hit."""

    class pool_type(PagedPool):
        def lookup(self, keys: Sequence[int]) -> list[int]:
            return super().lookup(keys[:-1])


class EvictsOwnHit(PagedCache):
    """The hit is not held while further blocks are taken, and may be among them."""

    def allocate(self, sequence: int, tokens: int, keys: Sequence[int] = ()) -> Allocation:
        hit, idle = self.lookup(keys), self._pool.idle()
        need = self._blocks_for(tokens) - len(hit)
        others = len(self._pool.free) + sum(block not in hit for block in idle)
        if tokens < len(keys) * self._size or need <= others:
            return super().allocate(sequence, tokens, keys)
        self._check_new("allocate", sequence)
        self._pool.require("allocate", need)
        table = hit + self._pool.take(len(hit), need)
        self._pool.hold(hit)
        self._tables[sequence], self._lengths[sequence] = table, tokens
        self._pool.counts["hits"] += len(hit)
        self._pool.counts["misses"] += len(keys) - len(hit)
        return Allocation(len(hit) * self._size, list(table))


class GhostKey(Spoiled):
    """An evicted block keeps its key."""

    class pool_type(PagedPool):
        def evict(self, block: int) -> None:
            registered = self.registered
            super().evict(block)
            self.registered = registered

        def idle(self) -> list[int]:
            return [block for block in super().idle() if block not in self.free]


class RegistrationHolds(PagedCache):
    """A registration counts as a holder."""

    def register(self, sequence: int, keys: Sequence[int], first: int = 0) -> int:
        before = set(self._pool.registered.values())
        count = super().register(sequence, keys, first)
        for block in set(self._pool.registered.values()) - before:
            self._pool.blocks[block].holders += 1
        return count


class RegisterReplaces(PagedCache):
    """The last block registered under a key has it; the one before is cached for nobody."""

    def register(self, sequence: int, keys: Sequence[int], first: int = 0) -> int:
        count = super().register(sequence, keys, first)
        for i, key in enumerate(keys):
            self._pool.registered[key] = self._tables[sequence][first + i]
        return count


class RegistersUnfilled(PagedCache):
    """A block that is not full can be registered."""

    def register(self, sequence: int, keys: Sequence[int], first: int = 0) -> int:
        _, table = self._find("register", sequence)
        named = keys[0] if len(keys) == 1 and 0 <= first < len(table) else None
        if named is not None and table[first] not in self._pool.registered.values():
            new = named not in self._pool.registered
            self._pool.registered.update({named: table[first]} if new else {})
            return int(new)
        return super().register(sequence, keys, first)


class FifoAsLru(Spoiled):
    """fifo evicts what was released first."""

    class pool_type(PagedPool):
        def __init__(self, blocks: int, policy: str) -> None:
            super().__init__(blocks, "lru" if policy == "fifo" else policy)


class LruAsFifo(Spoiled):
    """lru evicts what was allocated first: no later use counts."""

    class pool_type(PagedPool):
        def __init__(self, blocks: int, policy: str) -> None:
            super().__init__(blocks, "fifo" if policy == "lru" else policy)


class FrequencyTies(Spoiled):
    """Blocks used equally often are evicted by number."""

    class pool_type(PagedPool):
        def _rank(self, number: int) -> tuple[int, ...]:
            rank = super()._rank(number)
            return (rank[0], number) if self._policy == "frequency" else rank


class FrequencyCountsTokens(PagedCache):
    """Every token appended to a block is a use of it."""

    def append(self, sequence: int, tokens: int = 1) -> Growth:
        growth = super().append(sequence, tokens)
        self._pool.blocks[self._tables[sequence][-1]].uses += tokens
        return growth


class HitIsNoUse(Spoiled):
    """A hit does not count as a use."""

    class pool_type(PagedPool):
        def hold(self, blocks: Sequence[int]) -> None:
            super().hold(blocks)
            for block in blocks:
                self.blocks[block].uses -= 1


class HeadFirst(Spoiled):
    """Of what is released at once the head of the prefix is evicted first."""

    class pool_type(PagedPool):
        def _rank(self, number: int) -> tuple[int, ...]:
            *rank, deepest_first = super()._rank(number)
            return (*rank, -deepest_first)


class EvictsOneMore(Spoiled):
    """An allocation that evicts evicts one block more than it needs."""

    class pool_type(PagedPool):
        def take(self, depth: int, n: int) -> list[int]:
            evicted = self.counts["evictions"]
            taken = super().take(depth, n)
            if self.counts["evictions"] > evicted and self.idle():
                self.evict(self.idle()[0])
            return taken


class LastFreedFirst(Spoiled):
    """Free blocks are a stack."""

    class pool_type(PagedPool):
        def _put_back(self, block: int) -> None:
            super()._put_back(block)
            self.free.insert(0, self.free.pop())


class TakesHeld(Spoiled):
    """With nothing free or idle the head of another sequence is handed out."""

    class pool_type(PagedPool):
        def require(self, operation: str, n: int, hit: Sequence[int] = ()) -> None:
            if operation == "append" or n != 1 or hit or self.free or self.idle() or not self.blocks:
                super().require(operation, n, hit)

        def take(self, depth: int, n: int) -> list[int]:
            if depth or n != 1 or self.free or self.idle():
                return super().take(depth, n)
            block = next(i for i, b in enumerate(self.blocks) if b.holders and b.depth == depth)
            self.hold([block])
            return [block]


class OneBlockMore(PagedCache):
    """A sequence that fills its last block has another one behind it."""

    def _blocks_for(self, tokens: int) -> int:
        return tokens // self._size + 1 if tokens else 0


class AllocateExtends(PagedCache):
    """Allocating for a live sequence puts blocks behind its last one, full or not."""

    def allocate(self, sequence: int, tokens: int, keys: Sequence[int] = ()) -> Allocation:
        if sequence not in self._tables:
            return super().allocate(sequence, tokens, keys)
        need = self._blocks_for(tokens)
        self._pool.require("allocate", need)
        new = self._pool.take(len(self._tables[sequence]), need)
        self._tables[sequence] += new
        self._lengths[sequence] += tokens
        return Allocation(0, new)


class AppendCreates(PagedCache):
    """Appending to an unknown sequence begins it."""

    def append(self, sequence: int, tokens: int = 1) -> Growth:
        if sequence in self._tables:
            return super().append(sequence, tokens)
        return Growth(self.allocate(sequence, tokens).blocks, [])


class ForkIntoLive(PagedCache):
    """Forking into a live sequence puts the shared blocks behind its own."""

    def fork(self, source: int, child: int, tokens: int | None = None) -> list[int]:
        if child not in self._tables or source not in self._tables:
            return super().fork(source, child, tokens)
        shared = list(self._tables[source])
        self._pool.hold(shared)
        self._tables[child] += shared
        return self.table(child)


class ForkTakesWholeBlock(PagedCache):
    """The child of a fork in mid-block goes on behind its parent's tokens of that block."""

    def fork(self, source: int, child: int, tokens: int | None = None) -> list[int]:
        table = super().fork(source, child, tokens)
        self._lengths[child] = min(self._lengths[source], len(table) * self._size)
        return table


class ForkWithoutHolding(PagedCache):
    """A fork copies the table and holds nothing."""

    def fork(self, source: int, child: int, tokens: int | None = None) -> list[int]:
        table = super().fork(source, child, tokens)
        for block in table:
            self._pool.blocks[block].holders -= self._pool.blocks[block].holders > 1
        return table

    def free(self, sequence: int) -> None:
        _, table = self._find("free", sequence)
        for block in table:
            self._pool.blocks[block].holders = max(1, self._pool.blocks[block].holders)
        super().free(sequence)


class FreeUnknown(PagedCache):
    """Freeing a sequence that is not live is accepted."""

    def free(self, sequence: int) -> None:
        try:
            super().free(sequence)
        except UnknownSequence:
            return


class TruncateKeepsBlocks(PagedCache):
    """Tokens taken back leave their blocks in the table."""

    def truncate(self, sequence: int, tokens: int) -> None:
        length, _ = self._find("truncate", sequence)
        if not 0 <= tokens <= length:
            raise InvalidArgument("tokens")
        self._lengths[sequence] = tokens


class RefusesHits(PagedCache):
    """Admission asks for room for the hit too."""

    def allocate(self, sequence: int, tokens: int, keys: Sequence[int] = ()) -> Allocation:
        if sequence not in self._tables and tokens >= len(keys) * self._size:
            self._pool.require("allocate", self._blocks_for(tokens))
        return super().allocate(sequence, tokens, keys)


class KeepsOneFree(Spoiled):
    """The last free block is kept back."""

    class pool_type(PagedPool):
        def require(self, operation: str, n: int, hit: Sequence[int] = ()) -> None:
            super().require(operation, n + (0 < n == len(self.free) and len(self.blocks) > 1), hit)


class ResetKeepsKeys(PagedCache):
    """A reset leaves what is registered."""

    def reset(self) -> None:
        old = getattr(self, "_pool", None)
        super().reset()
        if old is not None and old.idle():
            self._pool.registered = {key: b for key, b in old.registered.items() if b in old.idle()}


class ResetKeepsCounts(PagedCache):
    """A reset leaves hits and misses."""

    def reset(self) -> None:
        old = getattr(self, "_pool", None)
        super().reset()
        if old is not None:
            self._pool.counts.update({name: old.counts[name] for name in ("hits", "misses")})


class DeallocationsPerEntry(PagedCache):
    """Every table entry that is freed counts as a freed block, whoever else holds it."""

    def free(self, sequence: int) -> None:
        _, table = self._find("free", sequence)
        shared = sum(self._pool.blocks[block].holders > 1 for block in table)
        super().free(sequence)
        self._pool.counts["deallocations"] += shared


class ForkCountsHit(PagedCache):
    """A fork counts as a hit."""

    def fork(self, source: int, child: int, tokens: int | None = None) -> list[int]:
        table = super().fork(source, child, tokens)
        self._pool.counts["hits"] += 1
        return table


class CopyIsNoAllocation(PagedCache):
    """The block of a copy-on-write is not counted as allocated."""

    def append(self, sequence: int, tokens: int = 1) -> Growth:
        growth = super().append(sequence, tokens)
        self._pool.counts["allocations"] -= len(growth.copies)
        return growth


class CachedIsUsed(PagedCache):
    """Idle blocks count as used in the utilisation."""

    def statistics(self) -> PagedStatistics:
        s = super().statistics()
        return s._replace(utilisation=(s.held + s.cached) / s.blocks if s.blocks else 0.0)


class FragmentationPerEntry(PagedCache):
    """A shared block that is not full counts in every table."""

    def statistics(self) -> PagedStatistics:
        room = sum(len(table) for table in self._tables.values()) * self._size
        unfilled = room - sum(self._lengths.values())
        return super().statistics()._replace(fragmentation=unfilled / room if room else 0.0)


class TwoBytes(PagedCache):
    """Memory is counted as if every dtype had two bytes."""

    def __init__(self, blocks: int, block_size: int, policy: str, shape: KVShape) -> None:
        super().__init__(blocks, block_size, policy, shape._replace(dtype="bfloat16"))


class StaleHeap(Spoiled):
    """A block that is hit stays in the heap of idle ones: when it is idle again its first entry counts."""

    class pool_type(PagedPool):
        def release(self, blocks: Sequence[int]) -> None:
            before = {block: self.blocks[block].released for block in blocks}
            super().release(blocks)
            for block in blocks:
                self.blocks[block].released = before[block] or self.blocks[block].released


class KeysOnlyGrow(Spoiled):
    """Entries of a heap are repaired when their priority has grown; one that starts anew keeps its old one."""

    class pool_type(PagedPool):
        def take(self, depth: int, n: int) -> list[int]:
            uses = [block.uses for block in self.blocks]
            taken = super().take(depth, n)
            for block in taken:
                self.blocks[block].uses = max(1, uses[block])
            return taken


class EvictsCopySource(PagedCache):
    """The source of a copy is let go before its target is taken, and may be it."""

    def append(self, sequence: int, tokens: int = 1) -> Growth:
        try:
            return super().append(sequence, tokens)
        except OutOfSlots:
            length, table = self._find("append", sequence)
            alone = table and self._pool.blocks[table[-1]].holders == 1 and length % self._size
            if not alone or length % self._size + tokens > self._size or self._pool.free or self._pool.idle():
                raise
            source = table[-1]
            self._pool.release([source])
            self._tables[sequence] = table[:-1] + self._pool.take(len(table) - 1, 1)
            self._lengths[sequence] = length + tokens
            return Growth([], [(source, source)])


class TruncateClamps(PagedCache):
    """Tokens of a shared prefix are not taken back, and nobody is told."""

    def truncate(self, sequence: int, tokens: int) -> None:
        length, table = self._find("truncate", sequence)
        shared = sum(self._pool.blocks[block].holders > 1 for block in table) * self._size
        super().truncate(sequence, max(tokens, min(shared, length)) if 0 <= tokens <= length else tokens)


class TruncateToZeroIsNone(PagedCache):
    """Cutting to no tokens cuts nothing, and a negative number counts from the end."""

    def truncate(self, sequence: int, tokens: int) -> None:
        length, _ = self._find("truncate", sequence)
        super().truncate(sequence, (length + tokens if tokens < 0 else tokens) or length)


class CursorForward(PagedCache):
    """What was registered once and evicted is not registered again."""

    def reset(self) -> None:
        super().reset()
        self._stored: set[int] = set()

    def register(self, sequence: int, keys: Sequence[int], first: int = 0) -> int:
        before = set(self._pool.registered)
        count = super().register(sequence, keys, first)
        passed = self._stored.intersection(keys) - before
        self._pool.registered = {key: b for key, b in self._pool.registered.items() if key not in passed}
        self._stored.update(keys)
        return count - len(passed)


class HitInBlocks(PagedCache):
    """The length of a hit is answered in blocks."""

    def allocate(self, sequence: int, tokens: int, keys: Sequence[int] = ()) -> Allocation:
        answer = super().allocate(sequence, tokens, keys)
        return answer._replace(cached=answer.cached // self._size)


class HitsBehindHole(PagedCache):
    """Every key that is known counts as a hit, also behind the one that ends the prefix."""

    def allocate(self, sequence: int, tokens: int, keys: Sequence[int] = ()) -> Allocation:
        known = sum(key in self._pool.registered for key in keys)
        used = len(self.lookup(keys))
        answer = super().allocate(sequence, tokens, keys)
        self._pool.counts["hits"] += known - used
        self._pool.counts["misses"] -= known - used
        return answer


class EmptyIsUnknown(PagedCache):
    """A sequence that has no blocks is not there when it is to be freed."""

    def free(self, sequence: int) -> None:
        if not self._find("free", sequence)[1]:
            raise UnknownSequence("no blocks")
        super().free(sequence)


class ResetKeepsLengths(PagedCache):
    """A reset empties the pool; the sequences keep their lengths."""

    def reset(self) -> None:
        old = dict(getattr(self, "_lengths", {}))
        super().reset()
        self._old_lengths = old

    def allocate(self, sequence: int, tokens: int, keys: Sequence[int] = ()) -> Allocation:
        answer = super().allocate(sequence, tokens, keys)
        self._lengths[sequence] += self._old_lengths.pop(sequence, 0)
        return answer


class RollbackCounts(PagedCache):
    """What a failed allocation took and gave back counts as allocated."""

    def allocate(self, sequence: int, tokens: int, keys: Sequence[int] = ()) -> Allocation:
        try:
            return super().allocate(sequence, tokens, keys)
        except OutOfSlots:
            self._pool.counts["allocations"] += len(self._pool.free)
            raise


class EvictionFreesNothing(Spoiled):
    """An evicted block does not count as freed."""

    class pool_type(PagedPool):
        def evict(self, block: int) -> None:
            super().evict(block)
            self.counts["deallocations"] -= 1


class LookupCounts(PagedCache):
    """Every lookup counts as a hit or as a miss."""

    def lookup(self, keys: Sequence[int]) -> list[int]:
        hit = super().lookup(keys)
        self._pool.counts["hits" if hit else "misses"] += 1
        return hit


class FragmentationInBlocks(PagedCache):
    """Fragmentation is the share of blocks that are not full, however full they are."""

    def statistics(self) -> PagedStatistics:
        blocks = sum(len(table) for table in self._tables.values())
        partial = sum(length % self._size > 0 for length in self._lengths.values())
        return super().statistics()._replace(fragmentation=partial / blocks if blocks else 0.0)


class FreesHeadFirst(Spoiled):
    """The blocks of a sequence become free in the order of its table."""

    class pool_type(PagedPool):
        def release(self, blocks: Sequence[int]) -> None:
            free = len(self.free)
            super().release(blocks)
            self.free[free:] = self.free[free:][::-1]


class NewerBlockWins(PagedCache):
    """Of two blocks that are registered under one key the newer stays, and who holds the older is moved over to it."""

    def register(self, sequence: int, keys: Sequence[int], first: int = 0) -> int:
        answer = super().register(sequence, keys, first)
        for i, key in enumerate(keys):
            old, new = self._pool.registered[key], self._tables[sequence][first + i]
            if old != new and self._pool.blocks[old].holders:
                self._pool.registered[key] = new
                for table in [t for t in self._tables.values() if old in t]:
                    table[first + i] = new
                    self._pool.hold([new])
                    self._pool.release([old])
        return answer


class TwoKeysForOne(PagedCache):
    """A block that is registered can be registered under another key as well."""

    def register(self, sequence: int, keys: Sequence[int], first: int = 0) -> int:
        _, table = self._find("register", sequence)
        if len(keys) == 1 and 0 <= first < len(table) and table[first] in self._pool.registered.values():
            self._pool.registered.setdefault(keys[0], table[first])
            return 0
        return super().register(sequence, keys, first)


class CountSaturates(Spoiled):
    """The count of references has room for two."""

    class pool_type(PagedPool):
        def hold(self, blocks: Sequence[int]) -> None:
            super().hold(blocks)
            for block in blocks:
                self.blocks[block].holders = min(2, self.blocks[block].holders)


class RollbackReorders(PagedCache):
    """What a failed allocation took is given back in another order."""

    def allocate(self, sequence: int, tokens: int, keys: Sequence[int] = ()) -> Allocation:
        try:
            return super().allocate(sequence, tokens, keys)
        except OutOfSlots:
            self._pool.free.reverse()
            raise


class FreesByTable(PagedCache):
    """Whether a sequence is live is not looked at before its table is fetched."""

    def free(self, sequence: int) -> None:
        self._pool.release(self._tables.pop(sequence))
        del self._lengths[sequence]


class TakesUntilFull(Spoiled):
    """Blocks are evicted until one is free, also where none is left to evict."""

    class pool_type(PagedPool):
        def require(self, operation: str, n: int, hit: Sequence[int] = ()) -> None:
            while not self.free and n:
                for block in self.idle()[:1]:
                    self.evict(block)
            super().require(operation, n, hit)


FAULTS = faults_of(
    "paged_cache",
    ("paged-evicts-live", EvictsLive, "eviction from a live sequence", ("seed 004",), "eviction_safety"),
    ("paged-rollback-others", RollbackDropsOthers, "rollback drops the wrong blocks", ("seed 004",), "eviction_safety"),
    ("paged-rollback-twice", RollbackFreesTwice, "rollback frees twice", ("seed 004",), "conservation"),
    ("paged-failure-counts", FailureCounts, "a refusal counts hits", ("Megatron-LM#6416",), "atomicity"),
    ("paged-copies-tables", CopiesTablesOnly, "copy-on-write without the bytes", ("seed 004",), "content_equality"),
    ("paged-copies-backwards", CopiesBackwards, "a copy runs backwards", ("LMCache#4921",), "content_equality"),
    ("paged-copies-full", CopiesFullBlock, "a full shared block is copied", ("seed 004",), "agreement"),
    ("paged-append-half", AppendHalfDone, "a refused append has copied", ("seed 004",), "eviction_safety"),
    ("paged-writes-shared", WritesShared, "a shared tail is written", ("atlas#692", "vllm#417"), "write_isolation"),
    ("paged-writes-registered", WritesRegistered, "a cached block is written", ("mlx-lm#1547",), "write_isolation"),
    ("paged-around-hole", AnswersAroundHole, "a prefix with a hole", ("seed 004",), "prefix_soundness"),
    ("paged-any-index", AnyIndex, "a key hits at any index", ("mutant",), "prefix_soundness"),
    ("paged-misses-last", MissesLast, "the last block is missed", ("mutant",), "prefix_completeness"),
    ("paged-evicts-own-hit", EvictsOwnHit, "a hit is evicted by its own allocation", ("vllm#10507",), "structure"),
    ("paged-ghost-key", GhostKey, "the key outlives the block", ("nano-vllm#163",), "write_isolation"),
    ("paged-registration-holds", RegistrationHolds, "a registration is a holder", ("seed 004",), "refcount_exact"),
    ("paged-register-replaces", RegisterReplaces, "a twin takes the key over", ("seed 004",), "agreement"),
    ("paged-registers-unfilled", RegistersUnfilled, "a partial block is cached", ("mutant",), "agreement"),
    ("paged-fifo-as-lru", FifoAsLru, "fifo behaves as lru", ("mutant",), "eviction_order"),
    ("paged-lru-as-fifo", LruAsFifo, "no use is noticed", ("seed 004",), "eviction_order"),
    ("paged-frequency-ties", FrequencyTies, "ties are broken anyhow", ("seed 004",), "eviction_order"),
    ("paged-frequency-tokens", FrequencyCountsTokens, "tokens count as uses", ("seed 004",), "eviction_order"),
    ("paged-hit-no-use", HitIsNoUse, "a hit is no use", ("seed 004",), "eviction_order"),
    ("paged-head-first", HeadFirst, "parents go before children", ("Megatron-LM#5822",), "eviction_order"),
    ("paged-evicts-more", EvictsOneMore, "evicts one too many", ("sglang#4987",), "eviction_order"),
    ("paged-free-stack", LastFreedFirst, "another order than the contract's", ("mutant",), "agreement"),
    ("paged-takes-held", TakesHeld, "a held block is handed out", ("vllm#42571",), "no_aliasing"),
    ("paged-one-more", OneBlockMore, "a block too many at the boundary", ("mutant",), "structure"),
    ("paged-allocate-extends", AllocateExtends, "blocks behind a gap", ("seed 004",), "no_double_free"),
    ("paged-append-creates", AppendCreates, "append begins a sequence", ("seed 004",), "no_double_free"),
    ("paged-fork-into-live", ForkIntoLive, "a fork into a live sequence", ("seed 004",), "no_double_free"),
    ("paged-fork-whole-block", ForkTakesWholeBlock, "the fill of a block is shared", ("seed 004",), "structure"),
    ("paged-fork-unheld", ForkWithoutHolding, "a fork without references", ("atlas#692",), "refcount_exact"),
    ("paged-free-unknown", FreeUnknown, "an unknown sequence is freed", ("LMCache#2559",), "no_double_free"),
    ("paged-truncate-keeps", TruncateKeepsBlocks, "a stranded tail", ("sglang#22862",), "structure"),
    ("paged-refuses-hits", RefusesHits, "the hit is to fit twice", ("vllm#11565",), "admission_honesty"),
    ("paged-keeps-one", KeepsOneFree, "refuses with a block free", ("llama.cpp#10873",), "admission_honesty"),
    ("paged-reset-keys", ResetKeepsKeys, "keys survive a reset", ("lmdeploy#4917",), "reset_complete"),
    ("paged-reset-counts", ResetKeepsCounts, "counters survive a reset", ("dynamo#6536",), "reset_complete"),
    ("paged-frees-per-entry", DeallocationsPerEntry, "frees are counted per table", ("seed 004",), "accounting"),
    ("paged-fork-counts-hit", ForkCountsHit, "a fork counts as a hit", ("seed 004",), "accounting"),
    ("paged-copy-uncounted", CopyIsNoAllocation, "a copy's block is not counted", ("seed 004",), "accounting"),
    ("paged-cached-is-used", CachedIsUsed, "idle blocks count as used", ("seed 004", "imp#1120"), "accounting"),
    ("paged-shared-twice", FragmentationPerEntry, "shared blocks count twice", ("seed 004",), "accounting"),
    ("paged-two-bytes", TwoBytes, "every dtype has two bytes", ("seed 004",), "agreement"),
    ("paged-stale-heap", StaleHeap, "a heap keeps what was taken out", ("vllm#16825",), "eviction_order"),
    ("paged-keys-grow", KeysOnlyGrow, "a heap whose keys may only grow", ("sglang-omni#1724",), "eviction_order"),
    ("paged-evicts-source", EvictsCopySource, "a copy's source is evicted", ("TensorRT-LLM#12892",), "eviction_order"),
    ("paged-truncate-clamps", TruncateClamps, "a cut is clamped silently", ("mlx-lm#1547",), "structure"),
    ("paged-truncate-zero", TruncateToZeroIsNone, "0 is taken for none", ("transformers#47433",), "structure"),
    ("paged-cursor-forward", CursorForward, "evicted, never stored again", ("vllm#47235",), "prefix_completeness"),
    ("paged-hit-in-blocks", HitInBlocks, "blocks taken for tokens", ("vllm-ascend#13330",), "write_isolation"),
    ("paged-hits-behind-hole", HitsBehindHole, "more hits than used", ("Megatron-LM#6416 (b)",), "accounting"),
    ("paged-empty-unknown", EmptyIsUnknown, "no blocks, no sequence", ("seed 004", "vllm#18829"), "agreement"),
    ("paged-reset-lengths", ResetKeepsLengths, "a reset leaves lengths", ("transformers#48509",), "structure"),
    ("paged-rollback-counts", RollbackCounts, "what is given back counts", ("seed 004",), "atomicity"),
    ("paged-evict-uncounted", EvictionFreesNothing, "an eviction frees nothing", ("seed 004",), "accounting"),
    ("paged-lookup-counts", LookupCounts, "a look counts as a hit", ("seed 004",), "accounting"),
    ("paged-partial-blocks", FragmentationInBlocks, "blocks taken for tokens", ("seed 004",), "accounting"),
    ("paged-frees-head-first", FreesHeadFirst, "freed in another order", ("seed 004",), "agreement"),
    ("paged-newer-wins", NewerBlockWins, "a table changes under its holder", ("shape: dedup",), "eviction_safety"),
    ("paged-two-keys", TwoKeysForOne, "one block, two keys", ("vllm#49125",), "conservation"),
    ("paged-count-saturates", CountSaturates, "a count has no room", ("mutant",), "refcount_exact"),
    ("paged-rollback-reorders", RollbackReorders, "a refusal shows", ("Megatron-LM#6091",), "atomicity"),
    ("paged-free-by-table", FreesByTable, "an error of the dict", ("LMCache#2559",), "error_contract"),
    ("paged-evicts-for-ever", TakesUntilFull, "nothing left to evict", ("vllm#11565",), "termination"),
)
