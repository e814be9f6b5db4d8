"""The chat workload: every turn sends the whole conversation again."""

from __future__ import annotations

import random

from kvlockstep.runs.chat import Chats


def test_a_prompt_begins_with_all_that_was_said_before() -> None:
    chats = Chats(random.Random(1), users=2, system=3, vocabulary=10)
    first, answer = chats.turn(0, asked=4, answered=2)
    second, _ = chats.turn(0, asked=4, answered=2)
    assert second[: len(first) + len(answer)] == first + answer
    assert (len(first), len(second), chats.length(0), chats.length(1)) == (7, 13, 12, 0)


def test_users_share_the_system_prompt_and_nothing_more() -> None:
    chats = Chats(random.Random(1), users=2, system=3, vocabulary=1000)
    (one, _), (other, _) = (chats.turn(user, asked=4, answered=2) for user in (0, 1))
    assert one[:3] == other[:3]
    assert one[3:] != other[3:]
    chats.start_over(0)
    assert chats.turn(0, asked=1, answered=1)[0][:3] == one[:3]
    assert chats.length(0) == 2


def test_the_first_user_comes_most_often() -> None:
    assert Chats(random.Random(1), users=3, system=0, vocabulary=2, popularity=1.0).weights == [1, 1 / 2, 1 / 3]
