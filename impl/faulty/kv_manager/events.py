"""Faults of kv_manager: KV cache events."""

from __future__ import annotations

from collections.abc import Hashable
from typing import cast

from kvlockstep.impl.faulty.fault import fault
from kvlockstep.impl.variants.kv_manager import Announces, AnnouncesCopies
from kvlockstep.reference.kv_manager.contract import AllBlocksCleared, BlockStored, Event
from kvlockstep.reference.kv_manager.manager import Key, KVManager


@fault("kv-event-none-at-eviction", law="event_consistency", seen=("mutant",))
class SilentEviction(Announces):
    """Eviction sends no BlockRemoved event."""

    def _announce_removal(self, key: Key) -> None:
        pass


@fault("kv-event-none-at-reset", law="event_consistency", seen=("mutant",))
class SilentReset(Announces):
    """reset sends no AllBlocksCleared event."""

    def reset(self) -> None:
        super().reset()
        self._events.clear()


@fault("kv-event-twice", law="event_consistency", seen=("mutant",))
class ToldTwice(AnnouncesCopies):
    """Each stored copy of a block is announced twice but removed once."""

    def _announce(self, key: Key) -> None:
        super()._announce(key)
        super()._announce(key)


@fault("kv-event-per-copy", law="event_consistency", seen=("vllm#55092",))
class RemovedPerCopy(AnnouncesCopies):
    """Evicting one of two equal blocks announces its key as removed while a copy is cached."""

    event_listener = "set"


@fault("kv-event-before-commit", law="event_consistency", seen=("mutant",))
class ToldAtAdmission(Announces):
    """The blocks of a first chunk are announced at admission, before they are computed."""

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


@fault("kv-event-no-parent", law="event_consistency", seen=("mutant",))
class NoParentLater(Announces):
    """A block of a later chunk is announced without its parent."""

    def commit(self, rid: str, n: int) -> None:
        super().commit(rid, n)
        self._events = [e._replace(parent=None) if isinstance(e, BlockStored) else e for e in self._events]


@fault("kv-event-grandparent", law="event_consistency", seen=("mutant",))
class Grandparent(Announces):
    """Behind the second block, an event names the grandparent as the parent."""

    def events(self) -> list[Event]:
        return [self._aged(event) if isinstance(event, BlockStored) else event for event in super().events()]

    def _aged(self, event: BlockStored) -> BlockStored:
        if event.parent is None:
            return event
        extra_key, tokens = cast("Key", event.parent)
        before = len(tokens) - self.block_size
        return event._replace(parent=(extra_key, tokens[:before])) if before else event


@fault("kv-event-partial", law="event_consistency", seen=("mutant",))
class PartialBlock(Announces):
    """finish announces a last block that is not full."""

    def finish(self, rid: str) -> None:
        request = self._live[rid]
        partial = request.computed % self.block_size
        if partial:
            tokens = tuple(request.tokens[: request.computed])
            parent = (request.extra_key, tokens[:-partial]) if len(tokens) > partial else None
            key = (request.extra_key, tokens)
            self._events.append(BlockStored((key,), parent, tokens[-partial:], partial, request.extra_key))
        super().finish(rid)


@fault("kv-event-tokens", law="event_consistency", seen=("mutant",))
class NextTokens(Announces):
    """The tokens of an event start one token too late."""

    def commit(self, rid: str, n: int) -> None:
        known = self._live[rid].tokens
        super().commit(rid, n)
        for i, event in enumerate(self._events):
            if isinstance(event, BlockStored) and len(known) > len(event.tokens):
                self._events[i] = event._replace(tokens=(*event.tokens[1:], known[len(event.tokens)]))


@fault("kv-event-namespace", law="event_consistency", seen=("sglang#24568",))
class NamespacesAlike(Announces):
    """Event keys leave out the extra key."""

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


@fault("kv-event-split", law="event_consistency", seen=("sglang#14934",))
class SplitRemoves(Announces):
    """Storing a second child of a block announces its siblings as removed."""

    def _announce(self, key: Key) -> None:
        parent = key[1][: -self.block_size]
        for extra_key, tokens in self._cached:
            if extra_key == key[0] and tokens[: -self.block_size] == parent and tokens != key[1]:
                self._announce_removal((extra_key, tokens))
        super()._announce(key)


@fault("kv-event-child-first", law="event_consistency", seen=("tokenspeed#87",))
class ChildFirst(Announces):
    """The stored blocks of a step are announced last block first."""

    def commit(self, rid: str, n: int) -> None:
        told = len(self._events)
        super().commit(rid, n)
        self._events[told:] = reversed(self._events[told:])

    def _say(self, event: BlockStored) -> None:
        self._events.append(event)


@fault("kv-event-clear", law="event_consistency", seen=("mutant",))
class ClearsTooMuch(Announces):
    """evict_all announces AllBlocksCleared although blocks of live requests can still be hit."""

    def evict_all(self) -> None:
        super().evict_all()
        self._events.append(AllBlocksCleared())


@fault("kv-event-decodes", law="event_consistency", seen=("mutant",))
class SilentDecodes(Announces):
    """Blocks of decoded tokens are not announced."""

    def commit(self, rid: str, n: int) -> None:
        request = self._live[rid]
        if request.computed and request.computed + n == len(request.tokens):
            KVManager.commit(self, rid, n)
        else:
            super().commit(rid, n)
