"""Multi-turn chats, a workload for caches: each turn sends the whole conversation again, with new tokens at its end."""

from __future__ import annotations

import random


class Chats:
    """The conversations of `users` users behind one system prompt of `system` tokens.

    `weights` says how often each user comes: 1 / rank ** `popularity`, the first user most often. Tokens are drawn from
    `draw`, below `vocabulary`.
    """

    def __init__(
        self, draw: random.Random, *, users: int, system: int, vocabulary: int, popularity: float = 0.8
    ) -> None:
        self.weights = [1 / rank**popularity for rank in range(1, users + 1)]
        self._draw = draw
        self._vocabulary = vocabulary
        self._system = self._drawn(system)
        self._talks = [list(self._system) for _ in range(users)]

    def turn(self, user: int, asked: int, answered: int) -> tuple[list[int], list[int]]:
        """The user asks `asked` tokens. Returns the prompt, which is the whole conversation, and the answer to it."""
        talk = self._talks[user]
        talk += self._drawn(asked)
        prompt, answer = list(talk), self._drawn(answered)
        talk += answer
        return prompt, answer

    def length(self, user: int) -> int:
        """The tokens of the user's conversation behind the system prompt."""
        return len(self._talks[user]) - len(self._system)

    def start_over(self, user: int) -> None:
        """The user's next turn begins a new conversation."""
        self._talks[user] = list(self._system)

    def _drawn(self, tokens: int) -> list[int]:
        return [self._draw.randrange(self._vocabulary) for _ in range(tokens)]
