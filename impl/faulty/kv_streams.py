"""Faults of kv_streams: events that are missing, early, late or on the wrong stream."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.reference.errors import OutOfSlots
from kvlockstep.reference.kv_streams.store import KVStreams, Pairs, Place
from kvlockstep.reference.kv_streams.streams import Event, Work

Places = Sequence[Place]


@fault("streams-no-wait", law="content_equality", seen=("TensorRT-LLM#10060",))
class NoWait(KVStreams):
    """No stream ever waits for another."""

    def _earlier(self, reads: Places, writes: Places) -> list[Event]:
        return []


@fault("streams-in-unawaited", law="stream_order", seen=("vllm#45704",))
class SwapInUnawaited(KVStreams):
    """No stream waits for a swap in."""

    def swap_in(self, pairs: Pairs) -> None:
        super().swap_in(pairs)
        for _, target in pairs:
            self._writers.pop(("device", target), None)


@fault("streams-wrong-stream", law="content_equality", seen=("TensorRT-LLM#10060",))
class WrongStream(KVStreams):
    """The event of a transfer is recorded on the compute stream."""

    def _submit(self, stream: str, reads: Places, writes: Places, work: Work) -> None:
        for event in self._earlier(reads, writes):
            self._streams.wait(stream, event)
        self._streams.submit(stream, work)
        self._note(self._streams.record("compute"), reads, writes)


@fault("streams-event-early", law="content_equality", seen=("vllm#45704",))
class EventBeforeWork(KVStreams):
    """The event of a transfer is recorded before the transfer."""

    def _submit(self, stream: str, reads: Places, writes: Places, work: Work) -> None:
        for event in self._earlier(reads, writes):
            self._streams.wait(stream, event)
        event = self._streams.record(stream)
        self._streams.submit(stream, work)
        self._note(event, reads, writes)


@fault("streams-wait-late", law="content_equality", seen=("TensorRT-LLM#10060",))
class WaitAfterUse(KVStreams):
    """A stream waits for the others only after its own work has started."""

    def _submit(self, stream: str, reads: Places, writes: Places, work: Work) -> None:
        self._streams.submit(stream, work)
        for event in self._earlier(reads, writes):
            self._streams.wait(stream, event)
        self._note(self._streams.record(stream), reads, writes)


@fault("streams-readers-forgotten", law="content_equality", seen=("sglang-jax#1008",))
class ForgetsReaders(KVStreams):
    """A writer waits for the previous writer but not for the readers."""

    def _earlier(self, reads: Places, writes: Places) -> list[Event]:
        return [self._writers[place] for place in (*reads, *writes) if place in self._writers]


@fault("streams-last-reader", law="content_equality", seen=("mutant",))
class LastReaderOnly(KVStreams):
    """Of several readers, a writer waits only for the last one."""

    def _note(self, event: Event, reads: Places, writes: Places) -> None:
        for place in reads:
            self._readers.pop(place, None)
        super()._note(event, reads, writes)


@fault("streams-writers-forgotten", law="content_equality", seen=("mutant",))
class ForgetsWriters(KVStreams):
    """A writer waits for the readers but not for the previous writer."""

    def _earlier(self, reads: Places, writes: Places) -> list[Event]:
        events = [self._writers[place] for place in reads if place in self._writers]
        return events + [event for place in writes for event in self._readers.get(place, ())]


@fault("streams-free-forgets", law="stream_order", seen=("vllm#32255",))
class FreeForgets(KVStreams):
    """Freeing a block forgets the work in flight on it, so its next user does not wait."""

    def free(self, block: int) -> None:
        super().free(block)
        self._writers.pop(("device", block), None)
        self._readers.pop(("device", block), None)


@fault("streams-first-pair", law="content_equality", seen=("mutant",))
class FirstPairOnly(KVStreams):
    """Of several blocks in one call, only the first one is tracked."""

    def _note(self, event: Event, reads: Places, writes: Places) -> None:
        super()._note(event, reads[:1], writes[:1])


@fault("streams-by-number", law="content_equality", seen=("TensorRT-LLM#9056",))
class ByBlockNumber(KVStreams):
    """Events are kept by block number, which confuses host and device blocks."""

    def _note(self, event: Event, reads: Places, writes: Places) -> None:
        super()._note(event, reads, [place for place in writes if place[0] == "device"])


@fault("streams-half-synchronized", law="content_equality", seen=("mutant",))
class HalfSynchronized(KVStreams):
    """synchronize reads the blocks before the copy stream has finished."""

    def synchronize(self) -> list[int]:
        seen = list(self._cells.values())[: self._blocks]
        copying = "copy" in self._streams.held()
        reads = super().synchronize()
        if copying:
            self._seen = seen
        return reads


@fault("streams-leaks", law="conservation", seen=("vllm#32255",))
class LeaksInFlight(KVStreams):
    """A block freed while a reader is in flight never returns to the free blocks."""

    def free(self, block: int) -> None:
        super().free(block)
        if not all(event.done for event in self._readers.get(("device", block), ())):
            self._free.remove(block)


@fault("streams-waits", law="admission_honesty", seen=("llama.cpp#10873",))
class WaitsToHandOut(KVStreams):
    """No block is handed out while any stream is held up."""

    def alloc(self) -> int:
        if len(self._streams.held()) > 1:
            raise OutOfSlots("busy")
        return super().alloc()


@fault("streams-hands-out-twice", law="no_aliasing", seen=("vllm#42571",))
class HandsOutHeld(KVStreams):
    """A block that was freed and handed out again is handed out a second time."""

    def alloc(self) -> int:
        block = super().alloc()
        again, self._last = getattr(self, "_last", block), block
        return again if self._blocks > 2 and len(self._free) == 0 else block


@fault("streams-refused-frees", law="atomicity", seen=("Megatron-LM#6091",))
class RefusedFrees(KVStreams):
    """A refused swap frees the blocks that it was to fill."""

    def swap_in(self, pairs: Pairs) -> None:
        try:
            super().swap_in(pairs)
        except ValueError:
            self._free += [t for _, t in pairs if 0 <= t < self._blocks and t not in self._free]
            raise


@fault("streams-last-again", law="no_aliasing", seen=("mutant",))
class LastOneAgain(KVStreams):
    """With no block free, the block handed out last is handed out again."""

    _last: int | None = None

    def alloc(self) -> int:
        if self._free:
            self._last = super().alloc()
        elif self._last is None:
            return super().alloc()
        return self._last


@fault("streams-refused-requeues", law="atomicity", seen=("Megatron-LM#6091",))
class RefusedFreeRequeues(KVStreams):
    """A refused second free has already moved the block to the end of the queue."""

    def free(self, block: int) -> None:
        if block in self._free:
            self._free.remove(block)
            self._free.append(block)
        super().free(block)


@fault("streams-key-error", law="error_contract", seen=("mutant",))
class GateKeyError(KVStreams):
    """Opening a gate that is not closed raises KeyError."""

    def let_go(self, stream: str) -> None:
        self._streams.let_go(stream)
