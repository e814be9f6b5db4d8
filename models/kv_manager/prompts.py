"""Prompts for new requests: new ones, and those that share something with earlier prompts."""

from __future__ import annotations

from collections.abc import Sequence

from kvlockstep.models.core.op import Pick, one_in
from kvlockstep.models.kv_manager.judge import ManagerJudge
from kvlockstep.models.kv_manager.scope import KVScope, Mode
from kvlockstep.models.requests.prompts import HISTORY, all_prompts, length_near_block

PROMPT_KINDS = (
    "fresh", "repeat", "repeat", "longer", "longer", "shorter", "branch", "edited", "edited", "crossed", "joined"
)  # fmt: skip
# Longer prompts repeat their beginning.
DRAWN = 96


class Prompts:
    """Proposes prompts for one episode, and keeps the last HISTORY that were there; with Mode.MANY all of them."""

    def __init__(self, scope: KVScope, judge: ManagerJudge) -> None:
        self.history: list[tuple[tuple[int, ...], int | None]] = []
        self._scope, self._judge = scope, judge
        traits = judge.traits
        self._sizes = judge.sizes
        self._keys = scope.keys if traits.extra_key else (None,)
        self.longest = min(scope.max_tokens, traits.max_length or scope.max_tokens)

    def remember(self, tokens: Sequence[int], extra_key: int | None) -> None:
        """A prompt, or all that a request had when it left, may come again."""
        known = (tuple(tokens), extra_key)
        if self._scope.mode is Mode.FORKS and known in self.history:
            self.history.remove(known)
        if known not in self.history:
            self.history.append(known)
            if self._scope.mode is not Mode.MANY:
                del self.history[:-HISTORY]

    def propose(self, pick: Pick, look_up: bool) -> tuple[list[int], int | None]:
        """Returns the tokens of a new request and its extra key, mostly that of the request it resembles.

        With `look_up` it is the last known prompt with one token more.
        """
        scope = self._scope
        if scope.exhaustive:
            return list(pick(all_prompts(scope.tokens, self.longest))), pick(self._keys)
        if scope.mode is Mode.MANY:
            return self._one_of_many(pick)
        last = [self._judge.live[name] for name in self._judge.scheduled[-1:] if self._judge.live[name].admitted]
        if last and one_in(5, pick, first=True):
            return list(last[0].tokens), last[0].extra_key
        if look_up and self.history:
            tokens, key = self.history[-1]
            return [*tokens, pick(scope.tokens)][: self._judge.traits.max_length], key
        kind = pick(PROMPT_KINDS) if self.history else "fresh"
        if kind == "fresh":
            return self._grown([], pick), pick(self._keys)
        if kind == "joined" and self._judge.live:
            other = pick(list(self._judge.live.values()))
            return [*other.tokens[: other.computed], pick(scope.tokens)][: self.longest], other.extra_key
        known, key = pick((*self.history, *self.history[-2:]))
        if len(self._keys) > 1 and one_in(2, pick, first=True):
            key = pick(self._keys)
        base = list(known)
        if kind in ("shorter", "branch"):
            base = base[: self._length(pick, len(base) - 1)] if len(base) > 1 else base
        if kind == "edited":
            return self._edited(base, pick), key
        if kind == "crossed":
            return self._crossed(base, pick), key
        return base[: self.longest] if kind in ("repeat", "shorter") else self._grown(base, pick), key

    def _one_of_many(self, pick: Pick) -> tuple[list[int], int | None]:
        """A prompt of random tokens, or one that was there before."""
        if self.history and one_in(2, pick, first=True):
            tokens, key = pick(self.history)
            return list(tokens), key
        return [pick(self._scope.tokens) for _ in range(self.longest)], pick(self._keys)

    def _grown(self, base: list[int], pick: Pick) -> list[int]:
        room = self.longest - len(base)
        more = self._length(pick, room) if room > 0 else 0
        new = [pick(self._scope.tokens) for _ in range(min(more, DRAWN))]
        return (base + (new * (more // DRAWN + 1))[:more])[: self.longest]

    def _edited(self, base: list[int], pick: Pick) -> list[int]:
        """The sequence with one token replaced or left out, and perhaps one more, so that its last block can be hit."""
        at = pick((0, len(base) // 2, max(0, len(base) - 2), len(base) - 1))
        base[at : at + 1] = [pick(self._scope.tokens)] if len(base) == 1 or pick((True, True, False)) else []
        return (base + [pick(self._scope.tokens)] * pick((0, 1)))[: self.longest]

    def _crossed(self, base: list[int], pick: Pick) -> list[int]:
        """The head of one sequence before the tail of another, as if requests that parted had come together again."""
        other, _ = pick(self.history)
        at = self._length(pick, min(len(base), len(other)))
        return (base[:at] + list(other[at:]) + [pick(self._scope.tokens)])[: self.longest]

    def _length(self, pick: Pick, most: int) -> int:
        """A length from 1 to `most`, near a multiple of the block, at times nine blocks for the goal `long_request`."""
        size = self._sizes[0] if len(self._sizes) == 1 else pick(self._sizes)
        blocks = most // size
        counts = (0, 1, 1, 2, 2, 3, blocks, 9) if blocks > 3 else range(blocks + 1)
        return length_near_block(pick, most, size, counts)
