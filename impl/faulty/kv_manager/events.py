"""Faults of kv_manager: what a listener of the events is told."""

from __future__ import annotations

from collections.abc import Hashable
from typing import cast

from kvlockstep.impl.faulty.fault import faults_of
from kvlockstep.impl.variants.kv_manager import Announces, AnnouncesCopies
from kvlockstep.reference.kv_manager.contract import AllBlocksCleared, BlockStored, Event
from kvlockstep.reference.kv_manager.manager import Key, KVManager


class SilentEviction(Announces):
    def _announce_removal(self, key: Key) -> None:
        pass


class SilentReset(Announces):
    def reset(self) -> None:
        super().reset()
        self._events.clear()


class ToldTwice(AnnouncesCopies):
    def _announce(self, key: Key) -> None:
        super()._announce(key)
        super()._announce(key)


class RemovedPerCopy(AnnouncesCopies):
    """One of two equal blocks is evicted, and whoever keeps a set forgets both."""

    event_listener = "set"


class ToldAtAdmission(Announces):
    """The blocks of the first chunk are announced when it is scheduled; they are published when it is computed."""

    def admit(self, rid: str, tokens: list[int], extra_key: int | None, n: int) -> int | None:
        cached = super().admit(rid, tokens, extra_key, n)
        if cached is not None:
            end = min(cached + n, len(tokens)) // self.block_size
            for i in range(cached // self.block_size, end):
                key = (extra_key, tuple(tokens[: (i + 1) * self.block_size]))
                if key not in self._cached:
                    self._announce(key)
        return cached

    def commit(self, rid: str, n: int) -> None:
        KVManager.commit(self, rid, n)


class NoParentLater(Announces):
    """A block of a later chunk is announced as the first of a sequence."""

    def commit(self, rid: str, n: int) -> None:
        super().commit(rid, n)
        self._events = [e._replace(parent=None) if isinstance(e, BlockStored) else e for e in self._events]


class Grandparent(Announces):
    """Behind the first two blocks, the parent that is named is the parent's."""

    def events(self) -> list[Event]:
        return [self._aged(event) if isinstance(event, BlockStored) else event for event in super().events()]

    def _aged(self, event: BlockStored) -> BlockStored:
        if event.parent is None:
            return event
        extra_key, tokens = cast("Key", event.parent)
        before = len(tokens) - self.block_size
        return event._replace(parent=(extra_key, tokens[:before])) if before else event


class PartialBlock(Announces):
    """finish announces the last block though it is not full."""

    def finish(self, rid: str) -> None:
        request = self._live[rid]
        partial = request.computed % self.block_size
        if partial:
            tokens = tuple(request.tokens[: request.computed])
            parent = (request.extra_key, tokens[:-partial]) if len(tokens) > partial else None
            key = (request.extra_key, tokens)
            self._events.append(BlockStored((key,), parent, tokens[-partial:], partial, request.extra_key))
        super().finish(rid)


class NextTokens(Announces):
    """The tokens of an event begin one too late."""

    def commit(self, rid: str, n: int) -> None:
        known = self._live[rid].tokens
        super().commit(rid, n)
        for i, event in enumerate(self._events):
            if isinstance(event, BlockStored) and len(known) > len(event.tokens):
                self._events[i] = event._replace(tokens=(*event.tokens[1:], known[len(event.tokens)]))


class NamespacesAlike(Announces):
    """Two prefixes that differ in their extra keys have one name in events."""

    def events(self) -> list[Event]:
        return [self._plain(event) for event in super().events()]

    @staticmethod
    def _plain(event: Event) -> Event:
        if isinstance(event, AllBlocksCleared):
            return event
        named = event._replace(keys=tuple(_without_extra_key(key) for key in event.keys))
        if isinstance(named, BlockStored) and named.parent is not None:
            return named._replace(parent=_without_extra_key(named.parent))
        return named


def _without_extra_key(key: Hashable) -> Key:
    _, tokens = cast("Key", key)
    return None, tokens


class SplitRemoves(Announces):
    """A branch behind a block is announced, and the block's other children as gone."""

    def _announce(self, key: Key) -> None:
        parent = key[1][: -self.block_size]
        for extra_key, tokens in self._cached:
            if extra_key == key[0] and tokens[: -self.block_size] == parent and tokens != key[1]:
                self._announce_removal((extra_key, tokens))
        super()._announce(key)


class ChildFirst(Announces):
    """What a step stores is told last block first."""

    def commit(self, rid: str, n: int) -> None:
        told = len(self._events)
        super().commit(rid, n)
        self._events[told:] = reversed(self._events[told:])

    def _say(self, event: BlockStored) -> None:
        self._events.append(event)


class ClearsTooMuch(Announces):
    """evict_all says that everything is gone; what live requests hold is still hit."""

    def evict_all(self) -> None:
        super().evict_all()
        self._events.append(AllBlocksCleared())


class SilentDecodes(Announces):
    """Only a prompt's blocks are announced."""

    def commit(self, rid: str, n: int) -> None:
        request = self._live[rid]
        if request.computed and request.computed + n == len(request.tokens):
            KVManager.commit(self, rid, n)
        else:
            super().commit(rid, n)


LAW = "event_consistency"
FAULTS = faults_of(
    "kv_manager",
    ("kv-event-none-at-eviction", SilentEviction, "an evicted block is not announced as gone", ("mutant",), LAW),
    ("kv-event-none-at-reset", SilentReset, "a reset is not announced", ("mutant",), LAW),
    ("kv-event-twice", ToldTwice, "a copy is announced twice and gone once", ("mutant",), LAW),
    ("kv-event-per-copy", RemovedPerCopy, "gone with the first of two copies", ("vllm#55092",), LAW),
    ("kv-event-before-commit", ToldAtAdmission, "announced before it can be hit", ("mutant",), LAW),
    ("kv-event-no-parent", NoParentLater, "a later block is announced as a first one", ("mutant",), LAW),
    ("kv-event-grandparent", Grandparent, "the parent named is the parent's parent", ("mutant",), LAW),
    ("kv-event-partial", PartialBlock, "a block that is not full is announced", ("mutant",), LAW),
    ("kv-event-tokens", NextTokens, "the tokens announced are those one later", ("mutant",), LAW),
    ("kv-event-namespace", NamespacesAlike, "the name lacks the extra key", ("sglang#24568",), LAW),
    ("kv-event-split", SplitRemoves, "a branch announces its siblings as gone", ("sglang#14934",), LAW),
    ("kv-event-child-first", ChildFirst, "a child is announced before its parent", ("tokenspeed#87",), LAW),
    ("kv-event-clear", ClearsTooMuch, "everything is announced as gone while some is held", ("mutant",), LAW),
    ("kv-event-decodes", SilentDecodes, "blocks of decoded tokens are not announced", ("mutant",), LAW),
)
