"""KV on several streams: in lockstep with program order, and every missing event is a wrong stamp."""

from __future__ import annotations

from functools import partial

import pytest
from driving import FEW, walk

from kvlockstep.drivers.hypothesis_machine import machine_for
from kvlockstep.impl.faulty import faults_of
from kvlockstep.impl.kv_streams import KVStreams
from kvlockstep.models.core.model import Divergence
from kvlockstep.models.core.op import Op
from kvlockstep.models.kv_streams import KVStreamsModel, KVStreamsScope
from kvlockstep.reference.errors import InvalidArgument
from kvlockstep.reference.kv_streams import KVStreams as Reference
from kvlockstep.reference.kv_streams.contract import KVStreamsTarget
from kvlockstep.reference.kv_streams.streams import Streams

BOTH = pytest.mark.parametrize("make", [Reference, KVStreams], ids=["reference", "optimised"])


@pytest.fixture(params=["cpu", *(pytest.param(p, marks=pytest.mark.gpu) for p in ("cuda", "two cards"))])
def places(request):
    """Where a target keeps its blocks, and where the host's."""
    if request.param == "cpu":
        return {}
    torch = pytest.importorskip("torch")
    cards = torch.cuda.device_count()
    if cards < (2 if request.param == "two cards" else 1):
        pytest.skip(f"{cards} CUDA devices")
    return {"device": "cuda:0", "host_device": "cuda:1"} if request.param == "two cards" else {"device": "cuda"}


def test_agrees_with_the_reference_and_reaches_everything(places):
    outcome = walk(KVStreamsModel, partial(KVStreams, **places), 5_000 if places else 15_000)
    assert outcome.failure is None, outcome.failure
    assert not [goal.id for goal in KVStreamsModel.goals if not outcome.reach[goal.id]]


class TestKVStreamsMachine(machine_for(KVStreamsModel, KVStreams).TestCase):
    settings = FEW


def test_every_law_names_a_fault():
    assert {law.id for law in KVStreamsModel.own_laws} <= {fault.law for fault in faults_of("kv_streams")}


def play(model, ops):
    for op in ops:
        model.step(op)


class NoWait(KVStreams):
    def _earlier(self, reads, writes):
        return []


class NoReaders(KVStreams):
    def _earlier(self, reads, writes):
        return [self._writers[place] for place in (*reads, *writes) if place in self._writers]


class FreeForgets(KVStreams):
    def free(self, block):
        super().free(block)
        self._writers.pop(("device", block), None)
        self._readers.pop(("device", block), None)


class WrongStream(KVStreams):
    def _submit(self, stream, reads, writes, work):
        record = self._queues.record
        self._queues.record = lambda _: record(0)
        super()._submit(stream, reads, writes, work)
        del self._queues.record


class WaitsLate(KVStreams):
    def _submit(self, stream, reads, writes, work):
        earlier = self._earlier(reads, writes)
        self._earlier = lambda *_: []
        super()._submit(stream, reads, writes, work)
        del self._earlier
        for event in earlier:
            self._queues.wait(stream, event)


BLOCKS = [Op("alloc"), Op("alloc"), Op("write", block=0, stamp=5)]
READ_TOO_EARLY = [*BLOCKS, Op("hold", stream="copy"), Op("copy", pairs=[(0, 1)]), Op("read", block=1)]
LEAVING = [*BLOCKS, Op("hold", stream="out"), Op("swap_out", pairs=[(0, 0)])]
WRITTEN_TOO_EARLY = [*LEAVING, Op("write", block=0, stamp=6)]
REUSED_TOO_EARLY = [*LEAVING, Op("free", block=0), Op("alloc"), Op("write", block=0, stamp=6)]
BACK = [Op("synchronize"), Op("swap_in", pairs=[(0, 1)]), Op("read", block=1), Op("synchronize")]


@pytest.mark.parametrize(
    ("broken", "ops"),
    [
        (NoWait, READ_TOO_EARLY),
        (WrongStream, READ_TOO_EARLY),
        (WaitsLate, READ_TOO_EARLY),
        (NoReaders, WRITTEN_TOO_EARLY),
        (FreeForgets, REUSED_TOO_EARLY),
    ],
)
def test_the_same_faults_on_real_streams_are_caught_every_time(broken, ops, places):
    scope = KVStreamsScope(2, 1)
    for _ in range(10):
        play(KVStreamsModel(scope, partial(KVStreams, **places)), [*ops, *BACK])
        with pytest.raises(Divergence, match="stream_order"):
            play(KVStreamsModel(scope, partial(broken, **places)), [*ops, *BACK])
    assert walk(KVStreamsModel, partial(broken, **places), 30_000).failure is not None


@BOTH
def test_meets_the_protocol(make):
    assert isinstance(make(2, 1), KVStreamsTarget)
    with pytest.raises(InvalidArgument):
        make(-1, 0)


@BOTH
def test_a_freed_block_waits_for_its_last_reader(make):
    kv = make(2, 1)
    first = kv.alloc()
    kv.write(first, 5)
    kv.swap_out([(first, 0)])
    kv.write(first, 6)
    kv.hold("compute")
    kv.read(first)
    kv.free(first)
    kv.alloc()
    again = kv.alloc()
    assert again == first
    kv.swap_in([(0, again)])
    assert list(kv.synchronize()) == [6]
    assert list(kv.memory())[first] == 5


def test_streams_run_in_their_own_order_and_past_each_other():
    done = []
    streams = Streams("ab")
    streams.hold("a")
    streams.submit("a", partial(done.append, 1))
    event = streams.record("a")
    streams.submit("b", partial(done.append, 2))
    streams.wait("b", event)
    streams.submit("b", partial(done.append, 3))
    streams.submit("a", partial(done.append, 4))
    assert done == [2]
    streams.let_go("a")
    assert done == [2, 1, 3, 4]
