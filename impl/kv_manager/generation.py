"""Greedy generation by a transformers model whose KV lies in a KVStore, where a kv_manager says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from kvlockstep.impl.kv_store import KVStore
from kvlockstep.reference.kv_manager.contract import KVManagerTarget
from kvlockstep.reference.kv_store import PAD_SLOT


@dataclass
class Generation:
    """A request: its known tokens, how many are computed, and the length at which it is done.

    It goes on with the token of this `rank`, 0 the most likely. `logits` has those of every position that it computed,
    float32 [vocabulary]; `cached` the tokens found at each admission.
    """

    tokens: list[int]
    length: int
    rank: int = 0
    computed: int = 0
    logits: dict[int, torch.Tensor] = field(default_factory=dict)
    cached: list[int] = field(default_factory=list)


class PagedGenerator:
    """Continuous batching over one manager and one store of the same blocks: the causal language model `model` never
    sees another KV cache. At most `batch` requests and `chunk` tokens of each run in a step; a request that cannot grow
    preempts the youngest. `done` has the finished requests by name.
    """

    def __init__(self, model: Any, manager: KVManagerTarget, store: KVStore, *, batch: int, chunk: int) -> None:
        self.manager, self.store = manager, store
        self.preemptions = self.copied = 0
        self.done: dict[str, Generation] = {}
        self._model = model
        self._batch, self._chunk = batch, chunk
        self._running: dict[str, Generation] = {}
        self._waiting: dict[str, Generation] = {}

    def submit(self, name: str, prompt: Sequence[int], length: int) -> None:
        """Queues a request that ends with `length` tokens, its prompt included."""
        self._waiting[name] = Generation(list(prompt), length)

    def fork(self, name: str, child: str, rank: int) -> bool:
        """A running request goes on twice, the child with tokens of another rank; False if it is refused."""
        parent = self._running[name]
        if self.manager.fork(name, child) is None:  # type: ignore[attr-defined]
            return False
        self._running[child] = Generation(parent.tokens.copy(), parent.length, rank, parent.computed)
        return True

    def running(self) -> dict[str, Generation]:
        """The running requests by name, oldest first."""
        return dict(self._running)

    def step(self) -> bool:
        """One forward over what can run; False if there is nothing left to do."""
        if not self._running and not self._waiting:
            return False
        scheduled = self._grow() | self._admit()
        if not scheduled:
            raise RuntimeError("no request fits")
        size = self.store.block_size
        pairs = dict.fromkeys((s // size, t // size) for s, t in self.manager.copies())
        self.store.copy_blocks(list(pairs))
        self.copied += len(pairs)
        self.manager.launch()
        sampled = self._forward(scheduled)
        for name, n in scheduled.items():
            self._commit(name, n, sampled[name])
        return True

    def _grow(self) -> dict[str, int]:
        """Reserves the next tokens of the running requests, oldest first."""
        scheduled: dict[str, int] = {}
        for name in list(self._running):
            while name in self._running:
                request = self._running[name]
                n = min(self._chunk, len(request.tokens) - request.computed)
                if self.manager.reserve(name, n):
                    scheduled[name] = n
                    break
                self._preempt(next(reversed(self._running)))
        return scheduled

    def _preempt(self, name: str) -> None:
        request = self._running.pop(name)
        self.manager.preempt(name)
        request.computed = 0
        self._waiting = {name: request, **self._waiting}
        self.preemptions += 1

    def _admit(self) -> dict[str, int]:
        scheduled: dict[str, int] = {}
        for name, request in list(self._waiting.items()):
            if len(self._running) == self._batch:
                break
            cached = self.manager.admit(name, list(request.tokens), None, self._chunk)
            if cached is None:
                break
            request.computed = cached
            request.cached.append(cached)
            self._running[name] = self._waiting.pop(name)
            scheduled[name] = min(self._chunk, len(request.tokens) - cached)
        return scheduled

    @torch.inference_mode()
    def _forward(self, scheduled: dict[str, int]) -> dict[str, int]:
        """Computes n tokens of each request in one batch; returns the next token of each."""
        device = self.store.device
        shape = len(scheduled), max(scheduled.values())
        requests = [(self._running[name], name, n) for name, n in scheduled.items()]
        context = max(request.computed + n for request, _, n in requests)
        ids = torch.zeros(shape, dtype=torch.int64)
        positions = torch.zeros(shape, dtype=torch.int64)
        targets = torch.full(shape, PAD_SLOT)
        origins = torch.zeros(shape[0], context, dtype=torch.int64)
        seen = torch.zeros(shape[0], 1, shape[1], context, dtype=torch.bool)
        seen[..., 0] = True  # a padding row that sees nothing would be NaN
        for row, (request, name, n) in enumerate(requests):
            end = request.computed + n
            slots = torch.tensor(self.manager.slots(name)[:end])
            ids[row, :n] = torch.tensor(request.tokens[request.computed : end])
            positions[row, :n] = torch.arange(request.computed, end)
            targets[row, :n] = slots[request.computed :]
            origins[row, :end] = slots
            seen[row, 0, :n] = torch.arange(context) <= positions[row, :n, None]
        cache = _StepCache(self.store, targets.flatten().to(device), origins.to(device))
        logits = self._model(
            input_ids=ids.to(device),
            position_ids=positions.to(device),
            attention_mask=_additive(seen.to(device), self._model.dtype),
            past_key_values=cache,
            use_cache=True,
        ).logits.float()
        for row, (request, _, n) in enumerate(requests):
            request.logits.update((request.computed + i, logits[row, i].cpu()) for i in range(n))
        ranked = (
            logits[row, n - 1].argsort(descending=True)[request.rank] for row, (request, _, n) in enumerate(requests)
        )
        return dict(zip(scheduled, map(int, ranked), strict=True))

    def _commit(self, name: str, n: int, sampled: int) -> None:
        request = self._running[name]
        request.computed += n
        self.manager.commit(name, n)
        if request.computed == request.length - 1:
            self.manager.finish(name)
            self.done[name] = self._running.pop(name)
        elif request.computed == len(request.tokens):
            request.tokens.append(sampled)
            self.manager.append(name, sampled)


def _additive(seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(~seen, torch.finfo(dtype).min)


class _StepCache:
    """The cache of one forward: stores new K and V in `targets` [row x token], returns those in `origins` [row, token].

    Takes the place of a transformers Cache.
    """

    is_compileable = False

    def __init__(self, store: KVStore, targets: torch.Tensor, origins: torch.Tensor) -> None:
        self._store, self._targets, self._origins = store, targets, origins

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V, [row, head, token, dim], of the new tokens in; of all tokens out."""
        new = (kv.transpose(1, 2).flatten(0, 1).contiguous() for kv in (keys, values))
        self._store.store(layer, self._targets, *new)
        k, v = self._store.load(layer, self._origins.flatten())
        shape = (*self._origins.shape, *k.shape[1:])
        return k.view(shape).transpose(1, 2), v.view(shape).transpose(1, 2)

    def get_seq_length(self, *_: Any) -> int:
        """Asked for positions, which are given."""
        return 0
