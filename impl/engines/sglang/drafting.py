"""kv_scheduler on SGLang's Scheduler (0.5.23) with speculative decoding, on CPU: n-grams or EAGLE, a chain of drafts.

The Scheduler is driven as in scheduler.py. A decode verifies `drafts` + 1 tokens of each request: the last one and its
drafts. Where drafts come from is not the scheduler's business: here they are the judge's, and where it has fewer the
rest is padding. The worker stands for the engine's NGRAMWorker or EAGLEWorkerV2. It writes to the slots that the
scheduler has reserved, twice as many as a batch verifies: under overlap the scheduler hears one batch late how many
drafts were right. The layers of a drafter have their KV in the slots of the same tokens. It depends on the token
behind as well, so that the tree keys pairs of tokens.

What only the device knows comes to the next batch by the engine's FutureMap. It is written there when that batch has
been decided, before it is launched.
Source: sglang/srt/speculative/ngram_worker.py, eagle_worker_v2.py and eagle_utils.py (eagle_prepare_for_decode),
managers/overlap_utils.py and scheduler_components/batch_result_processor.py (_resolve_spec_v2_tokens), beside those of
scheduler.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from kvlockstep.impl.engines.sglang.modules import configure, sglang_alone
from kvlockstep.impl.engines.sglang.real_scheduler import (
    STUBS,
    ModelWorker,
    Options,
    RepairedScheduler,
    Scheduler,
    engine,
)
from kvlockstep.impl.engines.sglang.scheduler import SGLangScheduler, rid_of
from kvlockstep.reference.kv_scheduler.contract import END_TOKEN, NO_DRAFTS, PAD_DRAFT, Batch, Item

with sglang_alone(STUBS):
    ngram: Any = import_module("sglang.srt.speculative.ngram_info")
    spec: Any = import_module("sglang.srt.speculative.spec_utils")
    eagle: Any = import_module("sglang.srt.speculative.eagle_info")
    eagles: Any = import_module("sglang.srt.speculative.eagle_utils")
    allocation: Any = import_module("sglang.srt.mem_cache.allocation")
    sizing: Any = import_module("sglang.srt.mem_cache.allocation_sizing")
    batches: Any = import_module("sglang.srt.managers.schedule_batch")


def fill_rows(
    rows: torch.Tensor, table: torch.Tensor, starts: torch.Tensor, stops: torch.Tensor, slots: torch.Tensor, _n: int
) -> None:
    """What the engine does with a kernel: gives the positions [start, stop) of each row their slots."""
    left = iter(slots.tolist())
    for row, start, stop in zip(rows.tolist(), starts.tolist(), stops.tolist(), strict=True):
        table[row, start:stop] = torch.tensor([next(left) for _ in range(start, stop)], dtype=table.dtype)


allocation.assign_req_to_token_pool_func = fill_rows


class Verified(NamedTuple):
    """What a batch verifies of one request: its row, where it starts, and its drafts."""

    req: Any
    row: int
    start: int
    drafts: list[int]


@dataclass
class Flight:
    """What a batch verifies; `known` once the device knows what of it is right, and has told the next batch."""

    verified: list[Verified]
    known: bool = False


class DraftWorker(ModelWorker):
    """`verified` is what the last batch has verified. `guesses` are the drafts for the next batch of each request."""

    width, eagle = 1, False

    def __init__(self, rows: Any) -> None:
        super().__init__(rows)
        self.guesses: dict[str, list[int]] = {}
        self.verified: list[Verified] = []

    def forward_batch_generation(self, batch: Any, on_publish: Any = None, **options: Any) -> Any:
        verifies = batch.forward_mode.is_decode()
        guesses = [self.guesses.pop(req.rid, []) for req in batch.reqs]
        result = self._verify(batch, guesses) if verifies else super().forward_batch_generation(batch, **options)
        self.verified = self.verified if verifies else []
        # Of a batch that verifies, this is where it starts; the right drafts are added when they are known.
        result.new_seq_lens = batch.seq_lens.clone()
        result.accept_lens = torch.ones(len(batch.reqs), dtype=torch.int32)
        result.speculative_num_draft_tokens = self.width
        result.next_draft_input = self._behind(batch, result)
        if on_publish is not None:
            on_publish(result.new_seq_lens)
        return result

    def _behind(self, batch: Any, result: Any) -> Any:
        """What the next batch of these requests drafts and verifies behind: the token of each, which is unknown yet."""
        requests = len(batch.reqs)
        marks = result.next_token_ids.reshape(requests, -1)[:, 0]
        if self.eagle:
            # Only the loop without overlap keeps these with the batch.
            unused = None if batch.enable_overlap else torch.zeros(requests, 1)
            return eagle.EagleDraftInput(topk_p=unused, topk_index=unused, bonus_tokens=marks)
        return ngram.NgramVerifyInput(
            draft_token_num=self.width,
            new_seq_lens=result.new_seq_lens,
            accept_tokens=marks.repeat_interleave(self.width),
            accept_lens=result.accept_lens,
        )

    def _verify(self, batch: Any, guesses: Sequence[list[int]]) -> Any:
        rows, starts = batch.req_pool_indices.tolist(), batch.seq_lens.tolist()
        self.items, self.verified = [], []
        marks = [next(self._next_mark) for _ in batch.reqs]
        for i, (req, row, start) in enumerate(zip(batch.reqs, rows, starts, strict=True)):
            slots = self._rows.req_to_token[row, : start + self.width].tolist()
            drafts = [*guesses[i], *[PAD_DRAFT] * self.width][: self.width - 1]
            self.items.append((req, start, self.width, slots, [self._last(batch, i), *drafts], True))
            self.verified.append(Verified(req, row, start, drafts))
        self.marks |= dict(zip(marks, batch.reqs, strict=True))
        return engine.GenerationBatchResult(next_token_ids=torch.tensor(marks).repeat_interleave(self.width))

    def _last(self, batch: Any, i: int) -> int:
        """The last token of a request, which the batch verifies drafts behind: relayed, or known to the host."""
        if not batch.enable_overlap:
            return int(batch.reqs[i].output_ids[-1])
        if self.eagle:
            return int(batch.spec_info.bonus_tokens[i])
        relayed = batch.spec_info.accept_tokens.reshape(-1, self.width)[i]
        return int(relayed[batch.spec_info.accept_lens[i] - 1])

    def on_verify_complete_cpu(self, _correct: list[int], batch_size: int = 0) -> None:
        """Of use to drafts of a length that adapts itself."""


class DraftScheduler(Scheduler):
    """The engine's, with the worker that verifies drafts."""

    worker = DraftWorker
    pp_group, device = SimpleNamespace(is_last_rank=True), "cpu"

    def accept(self, result: Any, verified: Sequence[Verified], right: Sequence[int]) -> None:
        """The device knows how many drafts of each request, by its place in the batch, were right."""
        for i, (_, row, start, _drafts) in enumerate(verified):
            result.accept_lens[i] = 1 + right[i]
            result.new_seq_lens[i] = start + 1 + right[i]
            if self.enable_overlap:
                self.future_map.new_seq_lens_buf[row] = start + 1 + right[i]
                if not self.model_worker.eagle:
                    self.future_map.accept_lens_buf[row] = 1 + right[i]

    def arrive(self, result: Any, i: int, token: int) -> None:
        if len(result.next_token_ids) == len(result.accept_lens):
            mark = int(result.next_token_ids[i])
            super().arrive(result, i, token)
            self._relay(mark, token)

    def arrive_verified(self, result: Any, i: int, drafts: Sequence[int], token: int) -> None:
        """The right drafts of the i-th request of a batch and its token come back."""
        width = self.model_worker.width
        mark = int(result.next_token_ids[i * width])
        result.next_token_ids[i * width : i * width + len(drafts) + 1] = torch.tensor([*drafts, token])
        self._relay(mark, token)
        del self.model_worker.marks[mark]

    def _relay(self, mark: int, token: int) -> None:
        for relayed in (self.future_map.output_tokens_buf, self.future_map.accept_tokens_buf):
            if relayed is not None:
                relayed[relayed == mark] = token


class RepairedDraftScheduler(DraftScheduler, RepairedScheduler):
    """Without sglang-scheduler-starved-chunk. In a mixed batch a decode takes one token, without drafts."""


class SGLangDraftScheduler(SGLangScheduler):
    """One Scheduler that verifies `drafts` drafts of each request in a batch of decodes."""

    _kind: Callable[..., Any] = DraftScheduler

    def __init__(
        self,
        blocks: int,
        block_size: int,
        budget: int,
        running: int,
        drafts: int = 2,
        eagle: bool = False,
        **options: Any,
    ) -> None:
        self.drafts = drafts = max(1, min(drafts, budget - 1))
        self._eagle = eagle
        self.block_size = block_size
        self._verifying: deque[Flight] = deque()
        options.setdefault("kind", self._kind)
        with self._speculating():
            # A batch verifies tokens of so many requests without a limit of its own.
            running = max(1, min(running, budget // (drafts + 1)))
            options |= {"drafts": drafts, "eagle": eagle}
            super().__init__(blocks, block_size, budget, running, **options)
        self._scheduler.model_worker.width, self._scheduler.model_worker.eagle = drafts + 1, eagle

    def _spare(self, block_size: int, given: Options) -> int:
        self.lookahead_blocks = -(-2 * (given.drafts + 1) // block_size)
        return 2 + self.lookahead_blocks

    @contextmanager
    def _speculating(self) -> Iterator[None]:
        width = self.drafts + 1
        settings = {
            "speculative_algorithm": "EAGLE" if self._eagle else "NGRAM",
            "speculative_num_draft_tokens": width,
            "max_speculative_num_draft_tokens": width,
            "speculative_num_steps": self.drafts if self._eagle else width,
            "speculative_eagle_topk": 1,
            "enable_multi_layer_eagle": False,
        }
        configure({"spec": settings, "schedule": {"page_size": self.block_size}})
        try:
            yield
        finally:
            configure({"spec": dict.fromkeys(settings)})

    def draft(self, rid: str, tokens: list[int]) -> None:
        self._scheduler.model_worker.guesses[self._reqs[rid].rid] = list(tokens)

    def schedule(self, accepted: Sequence[Mapping[str, int]] = ()) -> Batch:
        self._accepted = accepted
        with self._speculating():
            batch = super().schedule()
        for rid in batch.preempted:
            self._scheduler.model_worker.guesses.pop(self._reqs[rid].rid, None)
        self._verifying.append(Flight(self._scheduler.model_worker.verified if batch.items else []))
        return batch

    def _before_launch(self) -> None:
        results = iter(self._scheduler.result_queue)
        for right, batch, flight in zip(self._accepted, self._launched, self._verifying, strict=False):
            if batch is not None:
                self._judged(next(results)[1], flight, right)

    def _judged(self, result: Any, flight: Flight, right: Mapping[str, int]) -> None:
        """The device has compared the drafts of a batch with what it samples."""
        if not flight.known:
            flight.known = True
            rights = [right.get(rid_of(one.req), 0) for one in flight.verified]
            self._scheduler.accept(result, flight.verified, rights)

    def update(self, sampled: Mapping[str, int], accepted: Mapping[str, int] = NO_DRAFTS) -> Collection[str]:
        flight = self._verifying.popleft()
        if flight.verified:
            _, result = self._scheduler.result_queue[0]
            self._judged(result, flight, accepted)
            for i, one in enumerate(flight.verified):
                rid = rid_of(one.req)
                right = one.drafts[: accepted.get(rid, 0)]
                self._scheduler.arrive_verified(result, i, right, sampled.get(rid, END_TOKEN))
        with self._speculating():
            return super().update(sampled)

    def abort(self, rid: str) -> None:
        with self._speculating():
            super().abort(rid)

    def reset(self) -> None:
        self._scheduler.model_worker.guesses.clear()
        with self._speculating():
            super().reset()

    def _item(self, *asked: Any) -> Item:
        req, start, n, slots, fed, samples = asked
        drafts = n - 1 if self._scheduler.model_worker.verified else 0
        # Under overlap the device has them.
        fed = fed[:1] if drafts and self.overlap > 1 else fed
        return super()._item(req, start, n, slots, fed, samples)._replace(drafts=drafts)


make = SGLangDraftScheduler
make_overlap = partial(SGLangDraftScheduler, overlap=True)
make_eagle = partial(SGLangDraftScheduler, eagle=True)
make_overlap_eagle = partial(make_eagle, overlap=True)
make_mixed_eagle = partial(make_overlap_eagle, mixed=True, kind=RepairedDraftScheduler)
