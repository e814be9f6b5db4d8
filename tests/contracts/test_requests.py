"""Parts that the models of kv_manager and kv_scheduler share: answers, scopes in trace headers, proposals."""

from __future__ import annotations

import pytest

from kvlockstep.core.trace import Trace, parse_trace, trace_text
from kvlockstep.models.core.op import NotEnabled, Op, Pick, command, one_in, pick_first, require
from kvlockstep.models.kv_manager import KVManagerModel
from kvlockstep.models.kv_manager.scope import FLAGS, KVScope, Mode
from kvlockstep.models.requests.answers import DONE, REFUSED, Answer
from kvlockstep.models.requests.checks import Checks
from kvlockstep.models.requests.occupancy import Occupancy
from kvlockstep.models.requests.tables import Tables
from kvlockstep.properties.kv_manager import laws
from kvlockstep.reference.kv_manager import KVManager


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (DONE, "done"),
        (REFUSED, "refused"),
        (Answer(cached=0), "cached 0"),
        (Answer(text="released block 1"), "released block 1"),
    ],
)
def test_an_answer_is_read_back_from_its_text(answer: Answer, text: str) -> None:
    assert str(answer) == text
    assert Answer.parse(text) == answer


def test_an_answer_of_no_known_form_is_kept() -> None:
    assert Answer.parse("cached many") == Answer(text="cached many")


@pytest.mark.parametrize("mode", Mode)
def test_a_mode_is_a_flag_in_the_header_of_a_trace(mode: Mode) -> None:
    scope = KVScope(3, 2, 2, 4, mode=mode)
    raised = [flag for flag in FLAGS if scope.to_json()[flag]]
    assert raised == ([] if mode is Mode.VARIED else [mode.value])
    assert parse_trace(trace_text(Trace("kv_manager", scope, ())), "x.jsonl").scope == scope


def test_a_header_without_flags_is_varied() -> None:
    values = {"blocks": 3, "block_size": 2, "live": 2, "max_tokens": 4}
    assert KVScope.from_json(values).mode is Mode.VARIED


def test_a_header_with_two_flags_is_refused() -> None:
    with pytest.raises(ValueError, match="many and forks"):
        KVScope.from_json(KVScope(3, 2, 2, 4).to_json() | {"many": True, "forks": True})


def test_one_in_takes_one_option_at_the_place_that_it_names() -> None:
    taken = [[one_in(3, lambda options, at=at: options[at], first=first) for at in range(3)] for first in (True, False)]
    assert taken == [[True, False, False], [False, False, True]]


class _Picks(KVManagerModel):
    """A model that resets only on Sundays."""

    sunday = False

    @command(when=lambda self, _: self.sunday)
    def reset(self, pick: Pick) -> Op:
        """Everything is dropped."""
        return Op("reset")


def test_a_command_proposes_only_when_it_says_so() -> None:
    model = _Picks(KVScope(3, 2, 2, 4), KVManager)
    (reset,) = (c for c in _Picks.commands if c.name == "reset")
    with pytest.raises(NotEnabled):
        model.propose(reset, pick_first)
    model.sunday = True
    assert model.propose(reset, pick_first) == Op("reset")


def test_the_grammar_is_asked_before_any_command_proposes() -> None:
    model = KVManagerModel(KVScope(3, 2, 2, 4), KVManager)
    (forward,) = (c for c in KVManagerModel.commands if c.name == "forward")
    with pytest.raises(NotEnabled):
        model.propose(forward, pick_first)
    model.step(Op("admit", request="r0", tokens=[1, 2, 3], extra_key=None, n=3))
    assert model.propose(forward, pick_first).name == "forward"


def test_while_a_script_runs_other_commands_are_rare() -> None:
    model = KVManagerModel(KVScope(6, 2, 3, 4, mode=Mode.FORKS), KVManager)
    assert model.forks.scripted
    model.forks.script = ["decode", "forward"]
    assert model.forks.follows_script("decode", pick_first)
    assert not model.forks.follows_script("admit", lambda options: options[-1])


def test_require() -> None:
    require([0])
    with pytest.raises(NotEnabled):
        require([])


class _Rows:
    """Two requests of two blocks each of two slots, of which they share one."""

    def __init__(self) -> None:
        self.rows = {"a": [0, 1, 2], "b": [0, 1, 4]}

    def slots(self, rid: str) -> list[int]:
        return self.rows[rid]


def test_occupancy_follows_tables_by_blocks() -> None:
    rows = _Rows()
    tables = Tables(rows, 2, per_block=False)
    occupancy = Occupancy(tables, Checks(), laws, block_size=2, total=8, max_length=None, most_blocks=None)
    occupancy.follow({name: tables.entries(name) for name in rows.rows})
    assert (occupancy.held, occupancy.held_slots, list(occupancy.idle)) == ({0, 1, 2}, 6, [])
    before = occupancy.held
    occupancy.written = {3}
    occupancy.follow({"b": tables.entries("b")})
    assert (occupancy.held, list(occupancy.idle), occupancy.seen) == ({0, 2}, [1], {0, 1, 2})
    assert occupancy.given_back(before) == {1, 3}
    # Block 3 was taken, and two blocks became free; a request gave back one of them, and wrote the other itself.
    assert occupancy.evictions(before, free_before=0, free_now=4) == 1
