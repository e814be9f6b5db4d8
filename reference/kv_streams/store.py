"""kv_streams: KV that one stream writes and reads while others copy and swap it, as if all came one after the other.

The host never waits, except in `synchronize`; events keep the order. A freed block may be handed out at once, yet what
its next holder does waits for its last readers and writer. Source: the races of engines that overlap transfers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kvlockstep.reference.errors import InvalidArgument, NotHeld, OutOfSlots, UnknownSlot
from kvlockstep.reference.kv_streams.contract import MOST_READS, MOST_STAMPS, STREAMS
from kvlockstep.reference.kv_streams.streams import Event, Streams, Work

Place = tuple[str, int]
Pairs = Sequence[tuple[int, int]]


class KVStreams:
    """`blocks` device and `host_blocks` host blocks, each with one stamp, 0 at first; free blocks are handed out first
    in, first out. Writes and reads go to the stream "compute", copies to "copy", swaps to "out" and "in".

    Raises InvalidArgument.
    """

    def __init__(self, blocks: int, host_blocks: int) -> None:
        if blocks < 0 or host_blocks < 0:
            raise InvalidArgument(f"{blocks=}, {host_blocks=}")
        self._cells: dict[Place, int] = {("device", b): 0 for b in range(blocks)}
        self._cells |= {("host", b): 0 for b in range(host_blocks)}
        self._blocks, self._host_blocks = blocks, host_blocks
        self._free = list(range(blocks))
        self._seen = [0] * blocks
        self._reads: list[int] = []
        self._asked = 0
        self._streams = Streams(STREAMS)
        self._writers: dict[Place, Event] = {}
        self._readers: dict[Place, list[Event]] = {}

    def alloc(self) -> int:
        """The block that was freed first. Raises OutOfSlots."""
        if not self._free:
            raise OutOfSlots("alloc: no block is free")
        return self._free.pop(0)

    def free(self, block: int) -> None:
        """Nobody holds the block any more. Raises UnknownSlot, NotHeld."""
        self._check_held("free", block)
        self._free.append(block)

    def write(self, block: int, stamp: int) -> None:
        """Fills a held block. Raises UnknownSlot, NotHeld, InvalidArgument if not 0 <= stamp < MOST_STAMPS."""
        self._check_held("write", block)
        if not 0 <= stamp < MOST_STAMPS:
            raise InvalidArgument(f"write: stamp={stamp} is not one of 0..{MOST_STAMPS - 1}")
        self._submit("compute", [], [("device", block)], partial(self._cells.__setitem__, ("device", block), stamp))

    def read(self, block: int) -> None:
        """Reads a held block, for `synchronize` to return. Raises UnknownSlot, NotHeld, OutOfSlots after MOST_READS."""
        self._check_held("read", block)
        if self._asked == MOST_READS:
            raise OutOfSlots(f"read: {MOST_READS} reads wait for a synchronize")
        self._asked += 1
        self._submit("compute", [("device", block)], [], lambda: self._reads.append(self._cells["device", block]))

    def copy(self, pairs: Pairs) -> None:
        """Copies held blocks. Raises UnknownSlot, NotHeld, InvalidArgument for a target twice or that is a source."""
        self._check_pairs("copy", pairs, "device", "device")
        self._transfer("copy", "device", "device", pairs)

    def swap_out(self, pairs: Pairs) -> None:
        """Copies held blocks to the host. Raises UnknownSlot, NotHeld, InvalidArgument for a target twice."""
        self._check_pairs("swap_out", pairs, "device", "host")
        self._transfer("out", "device", "host", pairs)

    def swap_in(self, pairs: Pairs) -> None:
        """Copies host blocks to held blocks. Raises UnknownSlot, NotHeld, InvalidArgument for a target twice."""
        self._check_pairs("swap_in", pairs, "host", "device")
        self._transfer("in", "host", "device", pairs)

    def hold(self, stream: str) -> None:
        """Work given to the stream from now on waits at a gate. Raises InvalidArgument if it is held or unknown."""
        if stream not in STREAMS or stream in self._streams.held():
            raise InvalidArgument(f"hold: {stream!r} is held or not one of {', '.join(STREAMS)}")
        self._streams.hold(stream)

    def let_go(self, stream: str) -> None:
        """Opens the gate. Raises InvalidArgument if there is none."""
        if stream not in self._streams.held():
            raise InvalidArgument(f"let_go: {stream!r} is not held")
        self._streams.let_go(stream)

    def synchronize(self) -> list[int]:
        """Opens every gate and waits for everything; returns the reads since the last time, in order."""
        for stream in self._streams.held():
            self._streams.let_go(stream)
        reads, self._reads, self._asked = self._reads, [], 0
        self._seen = [self._cells["device", block] for block in range(self._blocks)]
        return reads

    def free_blocks(self) -> list[int]:
        """The free blocks, next one first."""
        return list(self._free)

    def memory(self) -> list[int]:
        """The stamp of each device block, as of the last synchronize."""
        return list(self._seen)

    def _transfer(self, stream: str, origin: str, goal: str, pairs: Pairs) -> None:
        sources, targets = [(origin, s) for s, _ in pairs], [(goal, t) for _, t in pairs]

        def move() -> None:
            self._cells.update(zip(targets, [self._cells[source] for source in sources], strict=True))

        self._submit(stream, sources, targets, move)

    def _submit(self, stream: str, reads: Sequence[Place], writes: Sequence[Place], work: Work) -> None:
        """Work that waits for who uses its places, and is waited for by who uses them next."""
        for event in self._earlier(reads, writes):
            self._streams.wait(stream, event)
        self._streams.submit(stream, work)
        self._note(self._streams.record(stream), reads, writes)

    def _earlier(self, reads: Sequence[Place], writes: Sequence[Place]) -> list[Event]:
        """The last writer of every place, and of those to be written also the readers since."""
        events = [self._writers[place] for place in (*reads, *writes) if place in self._writers]
        return events + [event for place in writes for event in self._readers.get(place, ())]

    def _note(self, event: Event, reads: Sequence[Place], writes: Sequence[Place]) -> None:
        for place in reads:
            self._readers.setdefault(place, []).append(event)
        for place in writes:
            self._writers[place] = event
            self._readers.pop(place, None)

    def _check_held(self, operation: str, block: int) -> None:
        if not 0 <= block < self._blocks:
            raise UnknownSlot(f"{operation}: block {block} is not one of 0..{self._blocks - 1}")
        if block in self._free:
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
