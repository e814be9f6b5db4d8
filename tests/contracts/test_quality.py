"""What a kv_manager makes of its memory, in counts that do not depend on the machine."""

from __future__ import annotations

import itertools
import json

import pytest
from click.testing import CliRunner

from kvlockstep.commands.cli import cli
from kvlockstep.commands.quality import ChatWorkload, chat_turns, compare, measure
from kvlockstep.core.errors import UsageError
from kvlockstep.reference.kv_manager import KVManager
from kvlockstep.targets import Target, resolve

CHAT = ChatWorkload(blocks=64, block_size=4, users=6, turns=5, system=16, asked=12, answered=8)
SMALL = ChatWorkload(blocks=20, block_size=4, users=4, turns=2, system=4, asked=12, answered=16)


def quality(name, chat=CHAT):
    return measure(resolve("kv_manager", name), chat, seed=3)


def test_each_turn_repeats_the_conversation_so_far():
    turns = chat_turns(CHAT, seed=3)
    assert len(turns) == CHAT.users * CHAT.turns
    for user in range(CHAT.users):
        own = [(prompt, answer) for u, prompt, answer in turns if u == user]
        for (prompt, answer), (later, _) in itertools.pairwise(own):
            assert later[: len(prompt) + len(answer)] == prompt + answer
    assert turns == chat_turns(CHAT, seed=3)


def test_exact_lru_lies_between_a_flushing_cache_and_an_unbounded_one():
    flushing, lru, unbounded = compare([resolve("kv_manager", "variant:flushes-under-pressure")], CHAT, seed=3)
    assert flushing.hit < lru.hit < unbounded.hit < unbounded.prompt
    assert flushing.requests == lru.requests == unbounded.requests == CHAT.users * CHAT.turns


class OneByOne(KVManager):
    def admit(self, rid, tokens, extra_key, n):
        return None if self._live else super().admit(rid, tokens, extra_key, n)


def test_lost_blocks_and_needless_refusals_show():
    assert quality("reference").lost == 0
    assert quality("fault:kv-preempt-leaks", SMALL).lost > 0
    assert quality("reference").needless == 0
    assert measure(Target("kv_manager", "one by one", OneByOne), CHAT, seed=3).needless > 0


def test_a_decode_without_room_preempts_the_youngest():
    preempting = quality("reference", SMALL)
    assert preempting.preempted > 0
    assert preempting.requests == 8


def test_a_pool_too_small_for_one_conversation_is_named():
    with pytest.raises(UsageError, match="with nothing else live"):
        quality("reference", ChatWorkload(blocks=8, block_size=4, users=1))


def test_the_command_prints_a_row_for_each_target_and_bound():
    done = CliRunner().invoke(cli, ["quality", "--target", "blocks", "--blocks", "128", "--json"])
    document = json.loads(done.stdout)
    assert [row["target"] for row in document["rows"]] == ["blocks", "exact LRU", "unbounded cache"]
    assert document["rows"][-1]["recomputed"] == 0
