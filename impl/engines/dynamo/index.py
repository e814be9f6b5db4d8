"""kv_index on the RadixTree of Dynamo's KV router (1.6.1), from its wheel `ai-dynamo-runtime`.

A worker's KV publisher sends each event with the hash of each block's own tokens, and the keys of the engine. The
router hashes a request's tokens in the same way, and `find_matches` walks the tree with those hashes. Sources:
lib/kv-router/src/indexer/radix_tree.rs, lib/bindings/python/rust/llm/kv.rs.

- `apply_event` raises for a parent or a block that it does not know, and the router logs that and goes on; so does this
  adapter.
- A node has one key for all workers: workers have to hash alike, as engines of one configuration do.
- The tree looks at no numbers: the indexer in front of it does.
- A dump has the hashes of tokens and not the tokens, which this adapter remembers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Hashable, Sequence
from importlib.metadata import distributions
from typing import Any

from kvlockstep.impl.engines.loading import find, without_the_rest
from kvlockstep.reference.kv_manager.contract import BlockRemoved, BlockStored, Event

WHEEL = "ai-dynamo-runtime"
ENGINE = find("dynamo", "_core.pyi", f"pip download --no-deps {WHEEL}==1.6.1, unpacked")
# The tree warns of every parent that it does not know.
os.environ.setdefault("DYN_LOG", "off")

with without_the_rest(ENGINE, (), ()):
    from dynamo import _core


class DynamoIndex:
    """One RadixTree. Workers and keys are numbers of up to 64 bits."""

    engine = "dynamo"
    version = next((found.version for found in distributions(name=WHEEL, path=[str(ENGINE.root)])), ENGINE.version)
    extra_key = True
    event_listener = "set"
    orphans = "dropped"
    shared_keys = True
    can_resync = True
    can_snapshot = True

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._tree = _core.RadixTree()
        self._last: dict[int, int] = {}
        self._extra_key: dict[tuple[int, Hashable], int | None] = {}
        self._tokens: dict[int, tuple[tuple[int, ...], int | None]] = {}

    def apply(self, worker: int, number: int, event: Event) -> None:
        self._last[worker] = number
        if isinstance(event, BlockStored):
            self._send(worker, number, {"stored": self._stored(worker, event)})
        elif isinstance(event, BlockRemoved):
            self._send(worker, number, {"removed": {"block_hashes": list(event.keys)}})
        else:
            self._send(worker, number, "cleared")

    def known(self, tokens: Sequence[int], extra_key: int | None) -> dict[int, int]:
        scores: dict[tuple[int, int], int] = self._tree.find_matches(self._hashes(tokens, extra_key)).scores
        return {worker: blocks for (worker, _), blocks in scores.items()}

    def remove(self, worker: int) -> None:
        self._tree.remove_worker(worker)
        self._last.pop(worker, None)

    def resync(self, worker: int, number: int, events: Sequence[Event]) -> None:
        self._tree.remove_worker(worker)
        self._last[worker] = number
        for event in events:
            self.apply(worker, number, event)

    def snapshot(self) -> list[tuple[int, int, list[Event]]]:
        rows: dict[int, list[Event]] = {worker: [] for worker in self._last}
        for line in self._tree.dump_tree_as_events():
            told = json.loads(line)
            stored = told["event"]["data"]["stored"]
            rows[told["worker_id"]].append(self._event(stored))
        return [(worker, self._last[worker], events) for worker, events in rows.items()]

    def _send(self, worker: int, number: int, data: Any) -> None:
        event = {"event_id": max(number, 0), "data": data, "dp_rank": 0}
        try:
            self._tree.apply_event(worker, json.dumps(event).encode())
        except RuntimeError as error:
            if "Failed to find" not in str(error):
                raise

    def _stored(self, worker: int, event: BlockStored) -> dict[str, Any]:
        extra_key = event.extra_key if event.parent is None else self._extra_key.get((worker, event.parent))
        self._extra_key.update(((worker, key), extra_key) for key in event.keys)
        hashes = self._hashes(event.tokens, extra_key)
        size = self._size
        for i, tokens_hash in enumerate(hashes):
            self._tokens[tokens_hash] = event.tokens[i * size : (i + 1) * size], extra_key
        pairs = zip(event.keys, hashes, strict=True)
        blocks = [{"block_hash": key, "tokens_hash": tokens_hash} for key, tokens_hash in pairs]
        return {"parent_hash": event.parent, "blocks": blocks}

    def _event(self, stored: dict[str, Any]) -> BlockStored:
        known = [self._tokens[block["tokens_hash"]] for block in stored["blocks"]]
        keys = tuple(block["block_hash"] for block in stored["blocks"])
        tokens = tuple(token for block, _ in known for token in block)
        return BlockStored(keys, stored["parent_hash"], tokens, self._size, known[0][1])

    def _hashes(self, tokens: Sequence[int], extra_key: int | None) -> list[int]:
        namespace = None if extra_key is None else str(extra_key)
        hashes: list[int] = _core.compute_block_hash_for_seq(list(tokens), self._size, cache_namespace=namespace)
        return hashes


class DynamoIndexOfOwnKeys(DynamoIndex):
    """The same, with workers that hash each in their own way."""

    shared_keys = False
    can_snapshot = False


def make(block_size: int) -> DynamoIndex:
    return DynamoIndex(block_size)


def make_own_keys(block_size: int) -> DynamoIndex:
    return DynamoIndexOfOwnKeys(block_size)
