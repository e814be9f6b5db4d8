"""Mooncake traces: reading them line by line, and playing them against a kv_manager under the judge."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from kvlockstep.commands import replay as replaying
from kvlockstep.core.errors import UsageError
from kvlockstep.impl.kv_manager.blocks import BlockManager, CachedBlock
from kvlockstep.impl.kv_manager.slots import SlotManager
from kvlockstep.models.requests import long_memory as kv_slots
from kvlockstep.reference.kv_manager import KVManager
from kvlockstep.runs.mooncake import MalformedTrace, MooncakeRequest, prompt_tokens, read_mooncake
from kvlockstep.runs.request_player import TAIL, play
from kvlockstep.runs.request_results import ReplayDivergence, RequestEvent, Summary

GOOD = {"timestamp": 10, "input_length": 600, "output_length": 3, "hash_ids": [0, 1]}
SIZE = 64


def trace(path: Path, *lines: object) -> Path:
    file = path / "trace.jsonl"
    file.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return file


def request(line: int, timestamp: float, prompt: int, output: int, first_id: int = 0) -> MooncakeRequest:
    ids = tuple(range(first_id, first_id - (-prompt // 512)))
    return MooncakeRequest(line, timestamp, prompt, output, ids)


def chat(requests: int, seed: int = 1) -> list[MooncakeRequest]:
    """Conversations over shared system prompts: prompts grow turn by turn."""
    rng, clock, turns = random.Random(seed), 0, dict[int, list[int]]()
    made = []
    for line in range(1, requests + 1):
        clock += rng.randrange(120)
        ids = turns.setdefault(rng.randrange(8), [rng.randrange(3)])
        ids += range(100 + line * 4, 100 + line * 4 + rng.randrange(1, 3))
        prompt = len(ids) * 512 - rng.randrange(512)
        made.append(MooncakeRequest(line, clock, prompt, rng.randrange(20), tuple(ids)))
        if len(ids) > 8:
            del ids[1:]
    return made


def late(prompts: list[tuple[int, ...]]) -> list[MooncakeRequest]:
    """Requests of these ids, one after another, when all else is done."""
    return [MooncakeRequest(100 + i, 10**6 * (i + 1), len(p) * 512, 5, p) for i, p in enumerate(prompts)]


class Counting:
    """Counts its calls."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.calls = 0
        self._call = call

    def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        return self._call(*arguments)


def deterministic(summary: Summary) -> dict[str, Any]:
    return {k: v for k, v in asdict(summary).items() if k not in ("seconds", "peak_memory")}


class TestReading:
    def test_requests_with_their_lines(self, tmp_path: Path) -> None:
        file = trace(tmp_path, GOOD, "", {**GOOD, "timestamp": 10.5, "extra": "ignored"})
        assert list(read_mooncake(file)) == [
            MooncakeRequest(1, 10.0, 600, 3, (0, 1)),
            MooncakeRequest(3, 10.5, 600, 3, (0, 1)),
        ]

    def test_lines_are_read_when_they_are_wanted(self, tmp_path: Path) -> None:
        requests = iter(read_mooncake(trace(tmp_path, GOOD, GOOD, "{")))
        assert [r.line for r in islice(requests, 2)] == [1, 2]
        with pytest.raises(MalformedTrace):
            next(requests)

    @pytest.mark.parametrize(
        ("bad", "reason"),
        [
            ("{", "bad JSON"),
            ("[1]", "an object is expected, not list"),
            ("[" * 100_000, "bad JSON"),
            ({k: v for k, v in GOOD.items() if k != "hash_ids"}, "missing field hash_ids"),
            ({}, "missing field timestamp, input_length, output_length, hash_ids"),
            ({**GOOD, "timestamp": "10"}, "timestamp must be a number"),
            ({**GOOD, "timestamp": True}, "timestamp must be a number"),
            (
                '{"timestamp": NaN, "input_length": 1, "output_length": 1, "hash_ids": [1]}',
                "timestamp must be a number",
            ),
            ({**GOOD, "timestamp": 9}, "goes backwards"),
            ({**GOOD, "input_length": 600.0}, "input_length must be a number of tokens"),
            ({**GOOD, "input_length": True}, "input_length must be a number of tokens"),
            ({**GOOD, "input_length": -1}, "input_length=-1"),
            ({**GOOD, "input_length": 0, "hash_ids": []}, "input_length=0"),
            ({**GOOD, "output_length": -3}, "output_length=-3"),
            ({**GOOD, "output_length": None}, "output_length must be a number of tokens"),
            ({**GOOD, "hash_ids": [0]}, "1 hash_ids, but input_length=600 makes 2 blocks"),
            ({**GOOD, "hash_ids": [0, 1, 2]}, "3 hash_ids"),
            ({**GOOD, "hash_ids": "01"}, "hash_ids must be a list"),
            ({**GOOD, "hash_ids": [0, "1"]}, "hash_ids must be a list of integers"),
            ({**GOOD, "hash_ids": [0, -1]}, "hash id -1"),
            ({**GOOD, "hash_ids": [0, 2**21]}, "hash id 2097152"),
        ],
    )
    def test_malformed_lines(self, tmp_path: Path, bad: object, reason: str) -> None:
        file = trace(tmp_path, GOOD, bad, GOOD)
        with pytest.raises(MalformedTrace) as caught:
            list(read_mooncake(file))
        assert caught.value.line == 2
        assert reason in caught.value.reason
        assert f"{file}:2: " in str(caught.value)
        reader = read_mooncake(file, skip_bad=True)
        assert [r.line for r in reader] == [1, 3]
        assert reader.skipped == 1

    def test_bytes_that_are_no_text(self, tmp_path: Path) -> None:
        file = tmp_path / "trace.jsonl"
        file.write_bytes(b'{"timestamp": "\xff"}\n')
        with pytest.raises(MalformedTrace, match="bad JSON"):
            list(read_mooncake(file))

    def test_a_skipped_line_sets_no_time(self, tmp_path: Path) -> None:
        late = {**GOOD, "timestamp": 99, "input_length": 0}
        assert [r.line for r in read_mooncake(trace(tmp_path, GOOD, late, GOOD), skip_bad=True)] == [1, 3]

    def test_no_file(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="cannot read trace"):
            list(read_mooncake(tmp_path / "none"))

    def test_equal_ids_are_equal_tokens(self) -> None:
        a = prompt_tokens(MooncakeRequest(1, 0, 1024, 0, (7, 9)))
        b = prompt_tokens(MooncakeRequest(2, 0, 700, 0, (8, 9)))
        assert (len(a), len(b)) == (1024, 700)
        assert a[512:700] == b[512:]
        assert a[:512] == list(range(7 * 512, 8 * 512))
        assert max(prompt_tokens(MooncakeRequest(3, 0, 512, 0, (2**21 - 1,)))) < 2**30


class Uncounted:
    """A block manager that does not count its evictions."""

    def __init__(self, blocks: int, block_size: int, make: type[BlockManager] = BlockManager) -> None:
        self._manager = make(blocks, block_size)

    def __getattr__(self, name: str) -> Any:
        if name == "evictions":
            raise AttributeError(name)
        return getattr(self._manager, name)


class Counts(KVManager):
    """A manager whose attributes of these names are numbers."""

    blocks = 160
    free_blocks = 0


class CountsFreeBlocks(BlockManager):
    free_blocks = 0  # type: ignore[assignment]


class NoBlocks(Uncounted):
    """A block manager that names slots alone."""

    def __getattr__(self, name: str) -> Any:
        if name in ("blocks", "free_blocks"):
            raise AttributeError(name)
        return getattr(self._manager, name)


class NoFreeBlocks(Uncounted):
    def __getattr__(self, name: str) -> Any:
        if name == "free_blocks":
            raise AttributeError(name)
        return getattr(self._manager, name)


class FreesTooMuch(NoBlocks):
    """Names a block that a request holds among the free ones, once there are five requests."""

    def free_slots(self) -> Any:
        live = list(self._manager._live.values())
        more = live[0].table[:1] if len(live) > 4 else []
        return [*self._manager.free_slots(), *(block * SIZE + i for block in more for i in range(SIZE))]


class NoChunks(BlockManager):
    chunk = False


class Aligned(BlockManager):
    chunk_align = 48


class KeyWithoutParent(BlockManager):
    """Publishes and finds a block under its own tokens only."""

    def _find(self, key: int, parent: CachedBlock | int | None, tokens: bytes) -> CachedBlock | None:
        return next((c for bucket in self._buckets.values() for c in bucket if c.tokens == tokens), None)


class HandsOutHeld(BlockManager):
    """The seventh finish frees a block that another request holds."""

    finishes = 0

    def finish(self, rid: str) -> None:
        super().finish(rid)
        self.finishes += 1
        if self.finishes == 7:
            self._blank += next(iter(self._live.values())).table[:1]


class LosesBlocks(BlockManager):
    def preempt(self, rid: str) -> None:
        self._holders[self._live[rid].table[-1]] += 1
        super().preempt(rid)


class TestPlaying:
    @pytest.mark.parametrize(
        ("make", "granularity"),
        [(BlockManager, "block"), (NoChunks, "block"), (Aligned, "block"), (KVManager, "slot"), (Counts, "slot")],
    )
    def test_a_trace_runs_to_its_end(self, make: Callable[..., Any], granularity: str) -> None:
        requests = chat(30)
        summary = play(requests, make(160, SIZE), prefill_budget=700)
        assert (summary.requests, summary.rejected, summary.granularity) == (30, 0, granularity)
        assert summary.prompt_tokens == sum(r.input_length for r in requests)
        assert summary.generated_tokens == sum(r.output_length for r in requests)
        assert 0.2 < summary.hit_rate < 1
        assert summary.evictions > 0
        assert summary.seconds > 0
        assert summary.peak_memory > 1
        assert summary.operations_per_second > 0

    def test_a_number_is_no_list_of_free_blocks(self) -> None:
        assert play(chat(10), CountsFreeBlocks(160, SIZE)).granularity == "block"

    @pytest.mark.parametrize("small_pool", [1 << 16, 0])
    def test_slot_by_slot_is_block_by_block(self, monkeypatch: pytest.MonkeyPatch, small_pool: int) -> None:
        monkeypatch.setattr(kv_slots, "SMALL_POOL", small_pool)
        by_slot = deterministic(play(chat(40), NoBlocks(90, SIZE), prefill_budget=512))
        by_block = deterministic(play(chat(40), BlockManager(90, SIZE), prefill_budget=512))
        assert by_slot == {**by_block, "granularity": "slot"}
        assert by_slot["preemptions"] > 0

    @pytest.mark.parametrize("small_pool", [1 << 16, 0])
    @pytest.mark.parametrize("wrong", [KeyWithoutParent, HandsOutHeld, LosesBlocks])
    def test_slot_by_slot_the_same_is_caught(
        self, monkeypatch: pytest.MonkeyPatch, small_pool: int, wrong: type[BlockManager]
    ) -> None:
        monkeypatch.setattr(kv_slots, "SMALL_POOL", small_pool)
        caught = []
        for make in (wrong, partial(NoBlocks, make=wrong)):
            with pytest.raises(ReplayDivergence) as found:
                play([*chat(40), *late([(1, 2), (5, 6), (1, 6, 7, 8)])], make(90, SIZE), prefill_budget=512)
            caught.append((found.value.law, found.value.line, found.value.tail))
        assert caught[0] == caught[1]

    def test_a_held_block_among_the_free_is_caught_in_a_large_pool(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(kv_slots, "SMALL_POOL", 0)
        with pytest.raises(ReplayDivergence, match="eviction_safety"):
            play(chat(40), FreesTooMuch(160, SIZE))

    def test_what_is_free_is_asked_for_less_often_in_a_large_pool(self) -> None:
        asked = []
        for blocks in (160, (kv_slots.SMALL_POOL // SIZE) + 1):
            slots = NoBlocks(blocks, SIZE)
            slots.free_slots = counted = Counting(slots.free_slots)
            steps = play(chat(20), slots).steps
            asked.append(counted.calls / steps)
        assert asked[0] > 1
        assert asked[1] < 0.5

    def test_rows(self) -> None:
        requests = [r for r in chat(40) if r.input_length + r.output_length <= 4 * 512]
        summary = play(requests, SlotManager(4, 512))
        assert (summary.granularity, summary.rejected, summary.requests) == ("slot", 0, len(requests))
        assert summary.hit_tokens > 0

    def test_a_run_repeats(self) -> None:
        runs = [play(chat(40), BlockManager(90, SIZE), prefill_budget=512) for _ in range(2)]
        assert deterministic(runs[0]) == deterministic(runs[1])
        assert runs[0].preemptions > 0

    def test_hits_are_whole_blocks_of_what_was_computed(self) -> None:
        first, second = request(1, 0, 600, 2), request(2, 1000, 600, 2)
        summary = play([first, second], BlockManager(40, SIZE))
        assert summary.hit_tokens == 600 // SIZE * SIZE
        assert summary.prompt_tokens == 1200
        assert summary.generated_tokens == 4

    def test_output_of_two_requests_is_never_shared(self) -> None:
        ids = (0,)
        requests = [MooncakeRequest(line, 10_000 * line, 512, 200, ids) for line in (1, 2)]
        manager = BlockManager(40, SIZE)
        play(requests, manager)
        outputs = [c.tokens for c in manager._published if c and isinstance(c.parent, CachedBlock)]
        assert len(outputs) == len(set(outputs))
        assert len(outputs) == 7 + 2 * (200 // SIZE)

    def test_the_clock(self) -> None:
        events: list[RequestEvent] = []
        requests = [request(1, 0, 100, 4), request(2, 5, 100, 1, 10), request(3, 1000, 100, 0, 20)]
        summary = play(requests, BlockManager(40, SIZE), step_ms=10.0, on_event=events.append)
        assert [(e.kind, e.line, e.clock) for e in events] == [
            ("admit", 1, 0.0),
            ("admit", 2, 10.0),
            ("finish", 2, 10.0),
            ("finish", 1, 30.0),
            ("admit", 3, 1000.0),
            ("finish", 3, 1000.0),
        ]
        assert (summary.steps, summary.clock) == (5, 1010.0)
        assert [e.tokens for e in events if e.kind == "finish"] == [100, 103, 100]

    def test_prompts_share_the_budget_of_a_step(self) -> None:
        events: list[RequestEvent] = []
        requests = [request(1, 0, 500, 1), request(2, 0, 500, 1, 10)]
        play(requests, BlockManager(40, SIZE), step_ms=1.0, prefill_budget=300, on_event=events.append)
        assert [(e.kind, e.line, e.clock) for e in events] == [
            ("admit", 1, 0.0),
            ("admit", 2, 1.0),
            ("finish", 1, 1.0),
            ("finish", 2, 3.0),
        ]

    def test_no_more_run_than_allowed(self) -> None:
        running, most = set[int](), 0

        def follow(event: RequestEvent) -> None:
            nonlocal most
            (running.add if event.kind in ("admit", "resume") else running.discard)(event.line)
            most = max(most, len(running))

        play(chat(20), BlockManager(400, SIZE), max_running=2, on_event=follow)
        assert most == 2

    def test_the_youngest_is_preempted_and_comes_back_first(self) -> None:
        events: list[RequestEvent] = []
        requests = [request(line, 0, 60, 60, 10 * line) for line in (1, 2, 3)]
        summary = play(requests, BlockManager(3, SIZE), on_event=events.append)
        kinds = [(e.kind, e.line) for e in events]
        assert kinds[:5] == [("admit", 1), ("admit", 2), ("admit", 3), ("preempt", 3), ("preempt", 2)]
        assert [line for kind, line in kinds if kind == "finish"] == [1, 2, 3]
        assert kinds.index(("resume", 2)) < kinds.index(("resume", 3))
        assert summary.preemptions == sum(kind == "preempt" for kind, _ in kinds)
        assert summary.refusals >= summary.preemptions
        assert (summary.generated_tokens, summary.rejected) == (180, 0)

    def test_what_can_never_fit_is_rejected(self) -> None:
        fits, longer = request(1, 0, 2 * SIZE, SIZE + 1), request(2, 0, 2 * SIZE, SIZE + 2)
        events: list[RequestEvent] = []
        summary = play([longer, fits, longer], BlockManager(3, SIZE), on_event=events.append)
        assert (summary.requests, summary.rejected, summary.generated_tokens) == (3, 2, SIZE + 1)
        assert [event.kind for event in events] == ["reject", "reject", "admit", "finish"]
        row = SlotManager(3, SIZE)
        assert play([request(1, 0, 4 * SIZE, 1), request(2, 0, 4 * SIZE, 2)], row).rejected == 1

    def test_the_judge_counts_no_more_evictions_than_the_manager(self) -> None:
        counted = play(chat(40), BlockManager(120, SIZE))
        judged = play(chat(40), Uncounted(120, SIZE))
        assert (counted.evictions_by, judged.evictions_by) == ("manager", "judge")
        assert 0.9 * counted.evictions < judged.evictions <= counted.evictions

    def test_a_wrong_key_is_caught_with_its_request(self) -> None:
        requests = [
            MooncakeRequest(3, 0, 1024, 5, (1, 2)),
            MooncakeRequest(4, 500, 1024, 5, (5, 6)),
            MooncakeRequest(8, 1000, 2048, 5, (1, 6, 7, 8)),
        ]
        assert play(requests, BlockManager(60, SIZE)).requests == 3
        with pytest.raises(ReplayDivergence) as caught:
            play(requests, KeyWithoutParent(60, SIZE))
        divergence = caught.value
        assert divergence.law == "prefix_soundness"
        assert (divergence.line, divergence.request) == (8, requests[2])
        assert "line 8" in str(divergence)
        assert [op.name for op in divergence.tail[-2:]] == ["admit", "forward"]
        assert divergence.tail[-2].args["tokens"] == 2048
        assert len(divergence.tail) <= TAIL
        assert divergence.summary.requests == 3

    def test_a_held_block_in_the_free_list_is_caught(self) -> None:
        with pytest.raises(ReplayDivergence) as caught:
            play(chat(40), HandsOutHeld(160, SIZE))
        assert caught.value.law in ("accounting", "eviction_safety")
        assert caught.value.tail[-1].name == "finish"

    def test_a_leak_is_caught_when_it_happens(self) -> None:
        with pytest.raises(ReplayDivergence) as caught:
            play(chat(40), LosesBlocks(90, SIZE), prefill_budget=512)
        assert caught.value.law in ("accounting", "leak_freedom")
        assert "preempt" in [op.name for op in caught.value.tail]

    @pytest.mark.parametrize("wrong", [{"step_ms": 0}, {"prefill_budget": 0}, {"max_running": 0}])
    def test_sizes_that_make_no_sense(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(UsageError, match=next(iter(wrong))):
            play([], BlockManager(4, SIZE), **wrong)


MANAGERS = """
from kvlockstep.impl.kv_manager.blocks import BlockManager


class Named:
    without = ("blocks", "free_blocks")

    def __init__(self, blocks, block_size):
        self._manager = BlockManager(blocks, block_size)

    def __getattr__(self, name):
        if name in type(self).without:
            raise AttributeError(name)
        return getattr(self._manager, name)


class WithBlocks(Named):
    without = ("free_blocks",)


class Whole(Named):
    without = ()
"""


class TestCommand:
    @pytest.fixture
    def replay(self, run_cli: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
        (tmp_path / "named.py").write_text(MANAGERS)
        lines = [
            {"timestamp": r.timestamp, "input_length": r.input_length, "output_length": 9, "hash_ids": r.hash_ids}
            for r in chat(12)
        ]
        file = trace(tmp_path, *lines)
        return partial(run_cli, "replay", file, "--format", "mooncake", "--blocks", "200", "--block-size", "64")

    def test_what_is_missing_is_said_and_changes_no_number(self, replay: Callable[..., Any]) -> None:
        summaries = []
        for name in ("Whole", "Named"):
            code, out, err = replay("--target", f"named.py:{name}", "--json")
            assert code == 0
            played = json.loads(out)["summary"]
            summaries.append({k: v for k, v in played.items() if k not in ("seconds", "peak_memory", "granularity")})
            assert ("named.py:Named has no blocks(rid), its block table: slots are read one by one, " in err) == (
                name == "Named"
            )
        assert summaries[0] == summaries[1]

    def test_a_free_list_that_is_missing(self, replay: Callable[..., Any]) -> None:
        code, _, err = replay("--target", "named.py:WithBlocks")
        assert code == 0
        assert "has no free_blocks(): the free list is not checked, and freed blocks are not poisoned" in err

    def test_what_would_take_too_long_is_refused_before_it_starts(
        self, replay: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(replaying, "MOST_SLOT_ENTRIES", 60_000)
        code, out, err = replay("--target", "named.py:Named")
        assert (code, out) == (2, "")
        fitting = re.search(r"more than 60,000 are not played; give it .* play (\d+) requests with --limit", err)
        assert fitting
        assert replay("--target", "named.py:Named", "--limit", fitting[1])[0] == 0
        assert replay("--target", "named.py:Named", "--limit", int(fitting[1]) + 1)[0] == 2
        assert replay("--target", "named.py:WithBlocks")[0] == 0

    def test_without_a_terminal_there_is_a_line_now_and_then(
        self, replay: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(replaying, "MOONCAKE_SECONDS", 0.0)
        _, out, err = replay("--target", "named.py:Whole", "--limit", 5)
        assert "named.py:Whole: 0 of 5 requests, 1 steps\n" in err
        assert "of 5 requests" not in out
