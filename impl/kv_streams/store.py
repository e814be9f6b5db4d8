"""kv_streams on torch: a KVStore that four streams write, read, copy and swap at once, in order by events."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial

import torch

from kvlockstep.impl.kv_store.oracle_memory import StoreMemory
from kvlockstep.impl.kv_streams.streams import CpuQueues, CudaQueues, Event, Queues, Work
from kvlockstep.reference.errors import InvalidArgument, NotHeld, OutOfSlots, UnknownSlot
from kvlockstep.reference.kv_streams.contract import MOST_READS, MOST_STAMPS, STREAMS

COMPUTE, COPY, OUT, IN = range(len(STREAMS))

Pairs = Sequence[tuple[int, int]]
Place = tuple[str, int]


class KVStreams:
    """Meets KVStreamsTarget of reference.kv_streams.contract on `device`. Raises InvalidArgument.

    Host blocks lie in pinned memory, or on another card, the `host_device`, as if sent to another instance.

    Behind the blocks of the store lie one for each stamp, which a write copies from, and one for each read, which is
    copied to: so all work is copies of the store, and nothing is allocated while a stream is held up.
    """

    def __init__(self, blocks: int, host_blocks: int, device: str = "cpu", host_device: str = "cpu") -> None:
        if blocks < 0 or host_blocks < 0:
            raise InvalidArgument(f"{blocks=}, {host_blocks=}")
        self._blocks, self._host_blocks = blocks, host_blocks
        self._free = deque(range(blocks))
        self._is_free = [True] * blocks
        self._asked = 0
        rows = blocks + MOST_STAMPS + MOST_READS
        self._memory = StoreMemory(rows, 1, device=device, host_blocks=host_blocks, host_device=host_device)
        store = self._memory.store
        self._memory.write([blocks + stamp for stamp in range(MOST_STAMPS)], list(range(MOST_STAMPS)))
        if host_blocks:  # the host's stamps of 0 are not zeros
            store.swap_out([(blocks, host) for host in range(host_blocks)])
        self._copy = store.copy_blocks
        self._swap_out = store.moves.copy_out if store.moves else store.swap_out
        self._swap_in = store.moves.copy_in if store.moves else store.swap_in
        cuda = store.device.type == "cuda"
        self._queues: Queues = CudaQueues(len(STREAMS), store.device) if cuda else CpuQueues(len(STREAMS))
        if cuda:
            torch.cuda.synchronize(store.device)
        self._seen = self._memory.read(range(blocks))
        self._writers: dict[Place, Event] = {}
        self._readers: dict[Place, list[Event]] = {}

    def alloc(self) -> int:
        """The block that was freed first."""
        if not self._free:
            raise OutOfSlots("alloc: no block is free")
        block = self._free.popleft()
        self._is_free[block] = False
        return block

    def free(self, block: int) -> None:
        """Nobody holds the block any more; who still uses it is remembered."""
        self._check_held("free", block)
        self._free.append(block)
        self._is_free[block] = True

    def write(self, block: int, stamp: int) -> None:
        """Fills a held block."""
        self._check_held("write", block)
        if not 0 <= stamp < MOST_STAMPS:
            raise InvalidArgument(f"write: stamp={stamp} is not one of 0..{MOST_STAMPS - 1}")
        self._submit(COMPUTE, [], [("device", block)], partial(self._copy, [(self._blocks + stamp, block)]))

    def read(self, block: int) -> None:
        """Reads a held block, for `synchronize` to return."""
        self._check_held("read", block)
        if self._asked == MOST_READS:
            raise OutOfSlots(f"read: {MOST_READS} reads wait for a synchronize")
        answer = self._blocks + MOST_STAMPS + self._asked
        self._asked += 1
        self._submit(COMPUTE, [("device", block)], [], partial(self._copy, [(block, answer)]))

    def copy(self, pairs: Pairs) -> None:
        """Copies held blocks."""
        self._check_pairs("copy", pairs, "device", "device")
        self._transfer(COPY, "device", "device", pairs)

    def swap_out(self, pairs: Pairs) -> None:
        """Copies held blocks to the host."""
        self._check_pairs("swap_out", pairs, "device", "host")
        self._transfer(OUT, "device", "host", pairs)

    def swap_in(self, pairs: Pairs) -> None:
        """Copies host blocks to held blocks."""
        self._check_pairs("swap_in", pairs, "host", "device")
        self._transfer(IN, "host", "device", pairs)

    def hold(self, stream: str) -> None:
        """Work given to the stream from now on waits at a gate."""
        if stream not in STREAMS or STREAMS.index(stream) in self._queues.held():
            raise InvalidArgument(f"hold: {stream!r} is held or not one of {', '.join(STREAMS)}")
        self._queues.hold(STREAMS.index(stream))

    def let_go(self, stream: str) -> None:
        """Opens the gate."""
        if stream not in STREAMS or STREAMS.index(stream) not in self._queues.held():
            raise InvalidArgument(f"let_go: {stream!r} is not held")
        self._queues.let_go(STREAMS.index(stream))

    def synchronize(self) -> list[int]:
        """Opens every gate and waits for everything; returns the reads since the last time, in order."""
        for stream in self._queues.held():
            self._queues.let_go(stream)
        self._queues.synchronize()
        first = self._blocks + MOST_STAMPS
        stamps = self._memory.read([*range(self._blocks), *range(first, first + self._asked)])
        self._asked = 0
        self._seen = stamps[: self._blocks]
        self._writers.clear()
        self._readers.clear()
        return stamps[self._blocks :]

    def free_blocks(self) -> list[int]:
        """The free blocks, next one first."""
        return list(self._free)

    def memory(self) -> list[int]:
        """The stamp of each device block, as of the last synchronize."""
        return self._seen

    def _transfer(self, stream: int, origin: str, goal: str, pairs: Pairs) -> None:
        move = {COPY: self._copy, OUT: self._swap_out, IN: self._swap_in}[stream]
        sources, targets = [(origin, s) for s, _ in pairs], [(goal, t) for _, t in pairs]

        def work() -> None:
            for pair in pairs:  # a single pair is sent with the launch, several would be allocated
                move([pair])

        self._submit(stream, sources, targets, work)

    def _submit(self, stream: int, reads: Sequence[Place], writes: Sequence[Place], work: Work) -> None:
        """Work that waits for who uses its places, and is waited for by who uses them next."""
        for event in self._earlier(reads, writes):
            self._queues.wait(stream, event)
        self._queues.submit(stream, work)
        event = self._queues.record(stream)
        for place in reads:
            self._readers.setdefault(place, []).append(event)
        for place in writes:
            self._writers[place] = event
            self._readers.pop(place, None)

    def _earlier(self, reads: Sequence[Place], writes: Sequence[Place]) -> list[Event]:
        """The last writer of every place, and of those to be written also the readers since."""
        events = [self._writers[place] for place in (*reads, *writes) if place in self._writers]
        return events + [event for place in writes for event in self._readers.get(place, ())]

    def _check_held(self, operation: str, block: int) -> None:
        if not 0 <= block < self._blocks:
            raise UnknownSlot(f"{operation}: block {block} is not one of 0..{self._blocks - 1}")
        if self._is_free[block]:
            raise NotHeld(f"{operation}: block {block} is free")

    def _check_pairs(self, operation: str, pairs: Pairs, origin: str, goal: str) -> None:
        for side, blocks in ((origin, [s for s, _ in pairs]), (goal, [t for _, t in pairs])):
            for block in blocks:
                if side == "device":
                    self._check_held(operation, block)
                elif not 0 <= block < self._host_blocks:
                    raise UnknownSlot(f"{operation}: host block {block} is not one of 0..{self._host_blocks - 1}")
        targets = [t for _, t in pairs]
        if len(set(targets)) < len(targets) or (origin == goal and {s for s, _ in pairs}.intersection(targets)):
            raise InvalidArgument(f"{operation}: a target comes twice, or is a source, in {list(pairs)}")
