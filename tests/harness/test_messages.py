"""What a message says: the failing step, the slots with their blocks and positions, where a wrong content came from."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from driving import walk
from places import FAULT_TRACES
from watched import watched

from kvlockstep.core.failure_page import failure_page
from kvlockstep.core.profiles import profile_of
from kvlockstep.core.trace import Trace, load_trace, save_trace
from kvlockstep.drivers.episode import run_ops
from kvlockstep.impl.faulty import FAULTS
from kvlockstep.models.core.calls import TRACEBACK_LINES, unexpected
from kvlockstep.models.core.model import Divergence
from kvlockstep.models.core.op import Op
from kvlockstep.models.kv_manager import KVManagerModel
from kvlockstep.models.kv_manager.judge import ManagerJudge
from kvlockstep.models.kv_manager.questions import ASK_ORDERS
from kvlockstep.models.kv_manager.scope import KVScope
from kvlockstep.models.kv_scheduler import KVSchedulerModel
from kvlockstep.models.requests.answers import DONE, batch_text, copies_text, released_text
from kvlockstep.models.requests.block_memory import BlockMemory
from kvlockstep.models.requests.slot_memory import SlotMemory
from kvlockstep.properties.kv_manager import laws
from kvlockstep.properties.law import counted
from kvlockstep.reference.kv_manager import KVManager
from kvlockstep.reference.kv_scheduler import KVScheduler
from kvlockstep.reference.kv_scheduler.contract import Batch
from kvlockstep.runs.play_trace import replay_trace
from kvlockstep.show.finding_page import finding_page
from kvlockstep.targets import resolve

FORWARD = Op("forward", accept=None, abort=[], reverse=None)


def admit(name: str, *tokens: int) -> Op:
    return Op("admit", request=name, tokens=list(tokens), extra_key=None, n=len(tokens))


def decode(name: str, token: int = 1, *drafts: int) -> Op:
    return Op("decode", request=name, token=token, drafts=list(drafts))


def failing(factory: Callable[..., Any], *ops: Op, blocks: int = 4, size: int = 2, ask: str = "avail") -> Trace:
    trace = watched(run_ops, KVManagerModel, factory, KVScope(blocks, size, 4, 40, ask=ask), ops)
    assert trace is not None
    return trace


class ByBlock(KVManager):
    """Played with one stamp per block."""

    def blocks(self, rid: str) -> list[int]:
        return self._live[rid].table


class CopiesFrom(KVManager):
    """Copy-on-write reads the block before the one that it is to copy."""

    def copies(self) -> list[tuple[int, int]]:
        return [((source - self.block_size) % self.total, target) for source, target in super().copies()]


class ForgetsTables(KVManager):
    """A request that decodes has no table any more."""

    def commit(self, rid: str, n: int) -> None:
        super().commit(rid, n)
        if n == 1:
            self._live[rid].table = []


class ResetKeepsKeys(KVManager):
    def reset(self) -> None:
        kept = getattr(self, "_cached", {})
        super().reset()
        self._cached = dict(kept)
        self._key_of = {block: key for key, block in kept.items()}
        for block in kept.values():
            self._free.remove(block)
            self._idle[block] = None

    def free_now(self) -> int:
        return self.avail()


class TestTheFailingStep:
    def test_a_forward_shows_its_copies(self) -> None:
        fork = Op("fork", request="r0", child="r1")
        trace = failing(CopiesFrom, admit("r0", 1), FORWARD, fork, decode("r1"), FORWARD)
        assert trace.answers[-1] == "copied slots 6-7 to 2-3"
        assert "5  forward" in failure_page(trace)
        assert re.search(r"5  forward +-> copied slots 6-7 to 2-3\n", failure_page(trace))

    def test_a_forward_that_passes_shows_them_too(self) -> None:
        judge = ManagerJudge(KVManager(4, 2), SlotMemory)
        judge.admit("r0", [1], None, 1)
        assert judge.forward(None, [], None) == DONE
        judge.fork("r0", "r1")
        judge.decode("r1", 1, [])
        assert str(judge.forward(None, [], None)) == "copied slots 0-1 to 2-3"
        judge.decode("r1", 1, [])
        assert str(judge.forward(None, ["r1"], None)) == "released blocks 1, 2"

    def test_a_batch_shows_who_runs_who_was_preempted_and_what_that_freed(self) -> None:
        class Loses(KVScheduler):
            def schedule(self) -> Batch:
                batch = super().schedule()
                if batch.preempted:
                    self._kv._free.pop()
                return batch

        outcome = walk(KVSchedulerModel, Loses, 20_000)
        last = outcome.failure.answers[-1]
        assert (outcome.failure.law, len(outcome.failure.answers)) == ("accounting", len(outcome.failure.ops))
        assert re.search(r"^(r\d+\[\d+:\d+\] ?)+ preempted r\d+( preempted r\d+)* released blocks? \d", last), last

    def test_an_operation_that_ends_before_it_answers_shows_nothing(self) -> None:
        class Raises(KVManager):
            def launch(self) -> None:
                raise RuntimeError("no device")

        assert len(failing(Raises, admit("r0", 1), FORWARD).answers) == 1

    def test_texts(self) -> None:
        assert copies_text([]) == released_text([]) == ""
        assert copies_text([(0, 4), (1, 5), (7, 2)]) == "copied slots 0-1 to 4-5, slot 7 to 2"
        assert copies_text([(2 * i, i) for i in range(6)]).endswith("slot 6 to 3 and 2 more")
        assert released_text({3, 1}) == "released blocks 1, 3"
        assert batch_text([], [], []) == "nothing"


class TestRefusals:
    @pytest.mark.parametrize("ask", ASK_ORDERS)
    @pytest.mark.parametrize("fault", ["kv-rollback-forgets", "kv-rollback-anew"])
    def test_a_refusal_that_changes_a_table_is_named_in_every_order_of_questions(self, fault: str, ask: str) -> None:
        ops = [admit("r0", 1, 1, 1), FORWARD, decode("r0", 1, 1, 1), FORWARD, decode("r0", 1, *[1] * 12)]
        trace = failing(FAULTS[fault].make, *ops, ask=ask)
        assert (trace.law, trace.answers[-1]) == ("atomicity", "refused")
        assert trace.message.startswith(
            "a reservation was refused, but the slots of r0 went from [0, 1, 2, 3, 4, 5] to ["
        )

    def test_within_a_step_what_is_computed_must_stay(self) -> None:
        ops = [admit("r0", 1), admit("r1", 1), FORWARD, decode("r0"), decode("r1", 1, *[1] * 12)]
        trace = failing(FAULTS["kv-rollback-forgets"].make, *ops)
        assert (trace.law, len(trace.ops)) == ("atomicity", 5)
        assert trace.message == "a reservation was refused, but the slots of computed tokens of r1 went from 1 to 0"

    def test_an_admission_may_not_change_the_table_of_another(self) -> None:
        class Borrows(KVManager):
            def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
                cached = super().admit(rid, tokens, extra_key, n)
                for request in self._live.values() if cached is None else ():
                    request.table.append(self._take(1)[0])
                return cached

            def avail(self) -> int:
                return super().avail() + self.block_size * sum(
                    len(request.table) - self._blocks_for(request.computed) for request in self._live.values()
                )

        trace = failing(Borrows, admit("r0", 1), FORWARD, admit("r1", *[2] * 9), ask="late")
        assert trace.law == "atomicity"
        assert trace.message == "an admission was refused, but the slots of r0 went from [0, 1] to [0, 1, 2, 3]"

    def test_a_slot_that_comes_with_an_append_is_no_change(self) -> None:
        class TakesAtAppend(KVManager):
            can_withdraw = False

            def append(self, rid: str, token: int) -> None:
                super().append(rid, token)
                request = self._live[rid]
                if self._free and self._blocks_for(len(request.tokens)) > len(request.table):
                    request.table += self._take(1)

        assert walk(KVManagerModel, TakesAtAppend, 10_000).failure is None

    def test_long_tables_are_shown_from_the_difference_on(self) -> None:
        table = list(range(100))
        wrong = laws.atomicity(table, [*table[:-1], 7], "a fork", "the slots of r0")
        assert (
            wrong == "a fork was refused, but the slots of r0 went from [99] from entry 99 on to [7] from entry 99 on"
        )


def test_a_request_that_is_live_and_lost_its_table_is_said_to() -> None:
    trace = failing(ForgetsTables, admit("r0", 1), FORWARD)
    assert trace.law == "leak_freedom"
    assert trace.message == "r0 is live and lost every slot, but avail=6 of total=8: 2 slots leaked, in block 0"


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("kv-preempt-leaks", "1 slot leaked, in block 0"),
        ("kv-hit-held-twice", "2 slots leaked, in blocks 0 and 1"),
        ("kv-recorded-in-tokens", "2 slots leaked, in some of blocks 0 and 1"),
        ("kv-tenth-live", "1 slot lost, in block 8"),
        ("kv-mirror-extends", "1 slot counted twice, in some of blocks 0 and 1"),
        # The free list is right, and only the number is wrong.
        ("kv-avail-drifts", "1 slot lost"),
    ],
)
def test_a_wrong_sum_names_the_blocks(fault: str, said: str) -> None:
    trace = load_trace(FAULT_TRACES / "kv_manager" / f"{fault}.jsonl")
    again = replay_trace(resolve("kv_manager", f"fault:{fault}"), trace, profile_of("quick"))
    assert again is not None
    assert again.message.endswith(f": {said}")


def test_a_wrong_sum_of_a_scheduler_names_the_blocks() -> None:
    trace = load_trace(FAULT_TRACES / "kv_scheduler" / "sched-preempt-keeps.jsonl")
    again = replay_trace(resolve("kv_scheduler", "fault:sched-preempt-keeps"), trace, profile_of("quick"))
    assert again is not None
    assert again.message.endswith(": 2 slots lost, in block 1")


def test_a_hit_of_cached_blocks_that_free_now_counted_is_told_with_its_blocks() -> None:
    make = FAULTS["kv-free-now-cached"].make
    trace = failing(make, admit("r0", 1, 1), FORWARD, Op("finish", request="r0"), admit("r1", 1, 1, 1), FORWARD)
    assert trace.law == "free_count"
    assert trace.message == (
        "free_now=8 of avail=8, but then r1 hit block 0, which nobody held: 2 slots were cached and counted as free"
    )


def test_a_hit_across_a_hole_is_blamed_for_its_content_and_not_on_free_now() -> None:
    class AcrossHoles(KVManager):
        """The second block of a hit is whatever is free, if the third is cached."""

        def _lookup(self, tokens: list[int], extra_key: int | None) -> list[int]:
            hit = super()._lookup(tokens, extra_key)
            later = [self._cached.get(self._key(extra_key, tokens[:end])) for end in (4, 6)]
            if len(hit) == 1 and later[0] is None and later[1] is not None and self._free:
                self._idle[self._free[0]] = None
                hit += [self._free.pop(0), later[1]]
            return hit

    ops = [admit("r0", *[1] * 6), FORWARD, Op("finish", request="r0")]

    class Holed(AcrossHoles):
        def finish(self, rid: str) -> None:
            super().finish(rid)
            self._evict(1)

    trace = failing(Holed, *ops, admit("r1", *[1] * 7), FORWARD)
    assert trace.law == "prefix_soundness"
    assert "r1 position 2 (slot 6 of block 3) holds freed memory" in trace.message


class TestOrigins:
    @pytest.mark.parametrize("memory", [SlotMemory, BlockMemory])
    def test_a_copy_of_this_forward_is_named(self, memory: Any) -> None:
        class Copies(ByBlock, CopiesFrom):
            pass

        judge = ManagerJudge(Copies(4, 2), memory)
        judge.admit("r0", [1], None, 1)
        judge.forward(None, [], None)
        judge.fork("r0", "r1")
        judge.decode("r1", 1, [])
        with pytest.raises(
            Divergence, match=r"r1 position 0 \(slot 2 of block 1\) holds .*: copied from slot 6 in this f"
        ):
            judge.forward(None, [], None)

    def test_a_copy_of_a_fork_and_one_of_an_earlier_forward_are_named(self) -> None:
        memory = SlotMemory(None, ManagerJudge(KVManager(4, 2), SlotMemory).traits, Counter())
        memory._store.write([5], [9])
        memory.copy([(5, 0)], "when r1 was forked")
        memory.copy([(5, 1)])
        assert memory._origin(0, 9, False) == "copied from slot 5 when r1 was forked"
        assert memory._origin(1, 9, False) == "copied from slot 5 in this forward"
        memory.end_forward()
        assert memory._origin(1, 9, False) == "copied from slot 5 in an earlier forward"
        assert memory._origin(1, 8, False) == ""

    @pytest.mark.parametrize("memory", [SlotMemory, BlockMemory])
    def test_a_key_that_a_reset_left_is_named(self, memory: Any) -> None:
        class Resets(ByBlock, ResetKeepsKeys):
            free_slots = None

        Resets.free_slots = lambda self: None  # type: ignore[assignment]
        judge = ManagerJudge(Resets(4, 2), memory)
        judge.admit("r0", [1, 1], None, 2)
        judge.forward(None, [], None)
        judge.reset()
        judge.admit("r1", [1, 1, 1], None, 1)
        with pytest.raises(Divergence, match=r"freed memory.*: it counts as cached, but was written before the reset"):
            judge.forward(None, [], None)


def test_a_wrong_slot_is_named_with_its_block_and_every_position_that_it_serves() -> None:
    fork = Op("fork", request="r0", child="r1")
    trace = failing(
        FAULTS["kv-fork-no-copy"].make, admit("r0", 1, 1, 1), FORWARD, fork, decode("r0"), decode("r1", 2), FORWARD
    )
    assert trace.message == "slot 3 of block 1 serves r0 position 3 and r1 position 3"
    free = laws.eviction_safety([4, 5], {2}, 2, {"r0": [2, 3, 4], "r1": [4]}, 1)
    assert free == (
        "slot 4 of block 2 (r0 position 2, r1 position 0) and slot 5 of block 2 are free, "
        "and a live request holds the block"
    )
    assert laws.no_double_free([3, 3], 2) == "slot 3 of block 1 is in the free list more than once"
    assert laws.serving(5, {"r0": [0, 4]}, 2) == ["r0 position 3"]


class TestAvail:
    def test_it_stands_behind_each_step_that_ends_one(self) -> None:
        page = failure_page(
            failing(CopiesFrom, admit("r0", 1), FORWARD, Op("fork", request="r0", child="r1"), decode("r1"), FORWARD)
        )
        lines = [line for line in page.splitlines() if re.match(r" +\d  ", line)]
        assert [line.rpartition("  avail ")[2] if "avail" in line else "" for line in lines] == ["", "6", "6", "", ""]

    def test_it_is_kept_in_the_file_and_old_files_do_without(self, tmp_path: Any) -> None:
        trace = failing(ForgetsTables, admit("r0", 1), FORWARD)
        assert load_trace(save_trace(trace, tmp_path)).avails == trace.avails == (None, 6)
        path = save_trace(trace.but(avails=()), tmp_path, "old.jsonl")
        assert "avail" not in path.read_text().split("\n", 1)[1]
        assert load_trace(path).avails == ()

    def test_late_nobody_asks_for_it_before_a_step_ends(self) -> None:
        class Counts(KVManager):
            asked = 0

            def avail(self) -> int:
                self.asked += 1
                return super().avail()

        model = KVManagerModel(KVScope(4, 2, 4, 40, ask="late"), Counts)
        before = model.judge.adapter.asked
        model.step(admit("r0", 1))
        assert (model.avails, model.judge.adapter.asked) == ([None], before)
        model.step(FORWARD)
        assert (model.avails, model.judge.adapter.asked) == ([None, 6], before + 1)

    def test_the_page_shows_it_and_the_positions_of_a_slot(self) -> None:
        fork = Op("fork", request="r0", child="r1")
        trace = failing(
            FAULTS["kv-fork-no-copy"].make, admit("r0", 1, 1, 1), FORWARD, fork, decode("r0"), decode("r1", 2), FORWARD
        )
        text = finding_page(trace, resolve("kv_manager", "fault:kv-fork-no-copy"))
        assert '<span class="quiet">avail 4</span>' in text
        assert "<td>r0 position 0, r1 position 0</td>" in text
        assert '"0 of block 0 after step 3: held, r0 position 0, r1 position 0' in text


class TestPlurals:
    def test_one_of_a_thing_is_one(self) -> None:
        assert [counted(n, "slot") for n in (0, 1, 2, 4096)] == ["0 slots", "1 slot", "2 slots", "4,096 slots"]
        assert counted(2, "batch") == "2 batches"

    def test_the_table_of_a_check_says_what_its_drivers_count(self, run_cli: Any) -> None:
        _, out, _ = run_cli("check", "kv_manager", "--target", "fault:kv-fork-no-copy", "--driver", "random", "-v")
        assert re.search(r"random +[\d,]+ +\d+ episodes? ", out)
        assert re.search(r"VIOLATED: 1 target, [\d,]+ steps in ", out)
        _, out, _ = run_cli("check", "slot_pool", "--target", "fault:pool-occupy-toggles", "--driver", "explore", "-v")
        assert re.search(r"explore +[\d,]+ +[\d,]+ states? ", out)


class TestTracebacks:
    def test_it_is_cut_between_frames(self) -> None:
        def even(n: int) -> None:
            odd(n - 1)

        def odd(n: int) -> None:
            if n > 0:
                even(n)
            raise ValueError("at the bottom\nand below")

        with pytest.raises(ValueError, match="bottom") as raised:
            even(20)
        details = unexpected(raised.value, "admit").details
        assert 6 < len(details) <= TRACEBACK_LINES
        assert details[0].startswith("  File ")
        assert details[-2:] == ("ValueError: at the bottom", "and below")
        assert details[-3].strip().startswith("raise ValueError")

    def test_a_long_message_leaves_room_for_the_innermost_frame(self) -> None:
        def says_much() -> None:
            raise ValueError("line\n" * 50)

        with pytest.raises(ValueError, match="line") as raised:
            says_much()
        assert any(line.startswith("  File ") for line in unexpected(raised.value, "admit").details)


@pytest.mark.parametrize("lookahead", [0, 1])
def test_lookahead_blocks_are_allowed_for_whoever_declares_them(lookahead: int) -> None:
    class Ahead(FAULTS["kv-takes-ahead"].make):  # type: ignore[name-defined, misc]
        lookahead_blocks = lookahead

    outcome = walk(KVManagerModel, Ahead, 5_000)
    assert (outcome.failure and outcome.failure.law) == (None if lookahead else "table_limit")
    assert ("table_limit" in outcome.not_checked) is False


def test_without_max_length_a_table_may_be_any_length() -> None:
    outcome = walk(KVManagerModel, KVManager, 500)
    assert outcome.not_checked["table_limit"] == "the target declares no max_length"
