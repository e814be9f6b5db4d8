"""Faults of kv_streams: each an event that is missing, too early, on the wrong stream, or waited for too late."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.impl.faulty.fault import faults_of
from kvlockstep.reference.errors import OutOfSlots
from kvlockstep.reference.kv_streams.store import KVStreams, Pairs, Place
from kvlockstep.reference.kv_streams.streams import Event, Work

Places = Sequence[Place]


class NoWait(KVStreams):
    """No stream waits for another."""

    def _earlier(self, reads: Places, writes: Places) -> list[Event]:
        return []


class SwapInUnawaited(KVStreams):
    """Nothing waits for a swap in."""

    def swap_in(self, pairs: Pairs) -> None:
        super().swap_in(pairs)
        for _, target in pairs:
            self._writers.pop(("device", target), None)


class WrongStream(KVStreams):
    """The event of a transfer is recorded on the compute stream."""

    def _submit(self, stream: str, reads: Places, writes: Places, work: Work) -> None:
        for event in self._earlier(reads, writes):
            self._streams.wait(stream, event)
        self._streams.submit(stream, work)
        self._note(self._streams.record("compute"), reads, writes)


class EventBeforeWork(KVStreams):
    """The event of a transfer is recorded before the transfer."""

    def _submit(self, stream: str, reads: Places, writes: Places, work: Work) -> None:
        for event in self._earlier(reads, writes):
            self._streams.wait(stream, event)
        event = self._streams.record(stream)
        self._streams.submit(stream, work)
        self._note(event, reads, writes)


class WaitAfterUse(KVStreams):
    """The stream waits for the others when its own work is under way."""

    def _submit(self, stream: str, reads: Places, writes: Places, work: Work) -> None:
        self._streams.submit(stream, work)
        for event in self._earlier(reads, writes):
            self._streams.wait(stream, event)
        self._note(self._streams.record(stream), reads, writes)


class ForgetsReaders(KVStreams):
    """A writer waits for the writer before it, not for those who still read."""

    def _earlier(self, reads: Places, writes: Places) -> list[Event]:
        return [self._writers[place] for place in (*reads, *writes) if place in self._writers]


class LastReaderOnly(KVStreams):
    """Of several readers only the last is waited for."""

    def _note(self, event: Event, reads: Places, writes: Places) -> None:
        for place in reads:
            self._readers.pop(place, None)
        super()._note(event, reads, writes)


class ForgetsWriters(KVStreams):
    """A writer waits for the readers since the last writer, but not for that one."""

    def _earlier(self, reads: Places, writes: Places) -> list[Event]:
        events = [self._writers[place] for place in reads if place in self._writers]
        return events + [event for place in writes for event in self._readers.get(place, ())]


class FreeForgets(KVStreams):
    """Who still reads or writes a block is forgotten when it is freed."""

    def free(self, block: int) -> None:
        super().free(block)
        self._writers.pop(("device", block), None)
        self._readers.pop(("device", block), None)


class FirstPairOnly(KVStreams):
    """Of several blocks in one call only the first is tracked."""

    def _note(self, event: Event, reads: Places, writes: Places) -> None:
        super()._note(event, reads[:1], writes[:1])


class ByBlockNumber(KVStreams):
    """Events are kept by block number, so that host and device blocks of one number are mixed up."""

    def _note(self, event: Event, reads: Places, writes: Places) -> None:
        super()._note(event, reads, [place for place in writes if place[0] == "device"])


class HalfSynchronized(KVStreams):
    """A synchronize looks at the blocks before the copy stream is done."""

    def synchronize(self) -> list[int]:
        seen = list(self._cells.values())[: self._blocks]
        copying = "copy" in self._streams.held()
        reads = super().synchronize()
        if copying:
            self._seen = seen
        return reads


class LeaksInFlight(KVStreams):
    """A block that is freed while its reader is held up waits for a signal that has come already: it is lost."""

    def free(self, block: int) -> None:
        super().free(block)
        if not all(event.done for event in self._readers.get(("device", block), ())):
            self._free.remove(block)


class WaitsToHandOut(KVStreams):
    """While any stream is held up, no block is handed out."""

    def alloc(self) -> int:
        if len(self._streams.held()) > 1:
            raise OutOfSlots("busy")
        return super().alloc()


class HandsOutHeld(KVStreams):
    """The block that was freed last and handed out again is handed out twice."""

    def alloc(self) -> int:
        block = super().alloc()
        again, self._last = getattr(self, "_last", block), block
        return again if self._blocks > 2 and len(self._free) == 0 else block


class RefusedFrees(KVStreams):
    """A refused swap gives back the blocks that it was to fill."""

    def swap_in(self, pairs: Pairs) -> None:
        try:
            super().swap_in(pairs)
        except ValueError:
            self._free += [t for _, t in pairs if 0 <= t < self._blocks and t not in self._free]
            raise


class LastOneAgain(KVStreams):
    """With no block free the one that was handed out last is handed out again."""

    _last: int | None = None

    def alloc(self) -> int:
        if self._free:
            self._last = super().alloc()
        elif self._last is None:
            return super().alloc()
        return self._last


class RefusedFreeRequeues(KVStreams):
    """A second free is refused after the block has gone to the end of the queue."""

    def free(self, block: int) -> None:
        if block in self._free:
            self._free.remove(block)
            self._free.append(block)
        super().free(block)


class GateKeyError(KVStreams):
    """Opening a gate that is not closed fails in the dict."""

    def let_go(self, stream: str) -> None:
        self._streams.let_go(stream)


FAULTS = faults_of(
    "kv_streams",
    ("streams-no-wait", NoWait, "no event is waited for", ("TensorRT-LLM#10060",), "content_equality"),
    ("streams-in-unawaited", SwapInUnawaited, "a load that nobody waits for", ("vllm#45704",), "stream_order"),
    ("streams-wrong-stream", WrongStream, "an event on the wrong stream", ("TensorRT-LLM#10060",), "content_equality"),
    ("streams-event-early", EventBeforeWork, "an event before the work", ("vllm#45704",), "content_equality"),
    ("streams-wait-late", WaitAfterUse, "a wait after the use", ("TensorRT-LLM#10060",), "content_equality"),
    (
        "streams-readers-forgotten",
        ForgetsReaders,
        "readers are not waited for",
        ("sglang-jax#1008",),
        "content_equality",
    ),
    ("streams-last-reader", LastReaderOnly, "one reader of several is waited for", ("mutant",), "content_equality"),
    ("streams-writers-forgotten", ForgetsWriters, "two writers in any order", ("mutant",), "content_equality"),
    ("streams-free-forgets", FreeForgets, "a freed block is reused in flight", ("vllm#32255",), "stream_order"),
    ("streams-first-pair", FirstPairOnly, "one event for several blocks", ("mutant",), "content_equality"),
    ("streams-by-number", ByBlockNumber, "events by the wrong key", ("TensorRT-LLM#9056",), "content_equality"),
    ("streams-half-synchronized", HalfSynchronized, "one stream is not waited for", ("mutant",), "content_equality"),
    ("streams-leaks", LeaksInFlight, "a block freed in flight is lost", ("vllm#32255",), "conservation"),
    ("streams-waits", WaitsToHandOut, "work in flight counts as held", ("llama.cpp#10873",), "admission_honesty"),
    ("streams-hands-out-twice", HandsOutHeld, "a block with two holders", ("vllm#42571",), "no_aliasing"),
    ("streams-refused-frees", RefusedFrees, "a refused swap frees", ("Megatron-LM#6091",), "atomicity"),
    ("streams-last-again", LastOneAgain, "handed out twice", ("mutant",), "no_aliasing"),
    ("streams-refused-requeues", RefusedFreeRequeues, "a refusal shows", ("Megatron-LM#6091",), "atomicity"),
    ("streams-key-error", GateKeyError, "an error of the dict", ("mutant",), "error_contract"),
)
