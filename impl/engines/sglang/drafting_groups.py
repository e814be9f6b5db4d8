"""kv_scheduler with groups on SGLang's Scheduler (0.5.23) with speculative decoding, on CPU.

The drafts are those of drafting.py, the groups those of window_scheduler.py and state_scheduler.py.

A window slides by the tokens that the scheduler has heard of, so no further than the device has come. Its pool has
room for the slots that decodes reserve.

A forward that verifies leaves the states behind all of its tokens in buffers of its own. Then the worker commits the
one behind the last right draft to the state of the request; if that has crossed a multiple of the interval, the state
there goes to the slot for checkpoints. Which states these are the engine's own function says, asked for each number of
drafts that may be right.
Source: sglang/srt/speculative/spec_utils.py (prepare_mamba_track_for_verify, commit_mamba_states_after_verify).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from kvlockstep.impl.engines.sglang.drafting import (
    DraftScheduler,
    DraftWorker,
    RepairedDraftScheduler,
    SGLangDraftScheduler,
    spec,
)
from kvlockstep.impl.engines.sglang.state_scheduler import (
    MixedScheduler,
    SGLangStateScheduler,
    SGLangStateWindowScheduler,
    StateWorker,
)
from kvlockstep.impl.engines.sglang.window_scheduler import RepairedWindowScheduler, SGLangWindowScheduler
from kvlockstep.reference.kv_manager.groups.contract import Step


class SGLangDraftWindowScheduler(SGLangDraftScheduler, SGLangWindowScheduler):
    """One Scheduler that verifies drafts over full attention and a window."""


class DraftStateWorker(DraftWorker, StateWorker):
    """`steps` are what the last batch does with the state of each of its requests."""

    def forward_batch_generation(self, batch: Any, on_publish: Any = None, **options: Any) -> Any:
        if batch.forward_mode.is_decode():
            spec.prepare_mamba_track_for_verify(batch)
        result = super().forward_batch_generation(batch, on_publish, **options)
        if self.verified:
            self.steps, self.copies = self._commits(batch), []
        return result

    def _commits(self, batch: Any) -> list[Step]:
        """What each request goes on from, and where its checkpoint goes, for each number of right drafts."""
        width, requests = self.width, len(batch.reqs)
        own = self._rows.get_mamba_indices(batch.req_pool_indices).tolist()
        chain = torch.arange(requests * width).reshape(requests, width)
        commits: list[list[tuple[int, int]]] = [[] for _ in own]
        checkpoints: list[list[tuple[int, int]]] = [[] for _ in own]
        for right in range(width):
            lens = torch.full((requests,), 1 + right, dtype=torch.int32)
            last, crossed = spec._verify_commit_step_indices(
                batch=batch, accept_index=chain, accept_lens=lens, draft_token_num=width
            )
            for i, one in enumerate(self.verified):
                commits[i].append((one.start + 1 + int(last[i]), own[i]))
                if crossed is not None and int(crossed[i]) >= 0:
                    checkpoints[i].append((one.start + 1 + int(crossed[i]), int(batch.mamba_track_indices[i])))
        return [
            Step(own[i] if one.start else None, [], list(dict.fromkeys(checkpoints[i])), commits[i])
            for i, one in enumerate(self.verified)
        ]


class DraftStateScheduler(DraftScheduler):
    """The engine's, with the worker that keeps states and verifies drafts."""

    worker = DraftStateWorker


class MixedDraftStateScheduler(DraftStateScheduler, MixedScheduler):
    """Without the findings in mixed batches, as MixedScheduler."""


class RepairedDraftWindowScheduler(RepairedDraftScheduler, RepairedWindowScheduler):
    """Without the findings in mixed batches over a window, as RepairedWindowScheduler."""


class SGLangDraftStateScheduler(SGLangDraftScheduler, SGLangStateScheduler):
    """One Scheduler that verifies drafts over full attention and states."""

    _kind = DraftStateScheduler


class SGLangDraftStateWindowScheduler(SGLangDraftScheduler, SGLangStateWindowScheduler):
    """One Scheduler that verifies drafts over full attention, a window and states."""

    _kind = DraftStateScheduler


make_window = SGLangDraftWindowScheduler
make_overlap_window = partial(SGLangDraftWindowScheduler, overlap=True)
make_overlap_window_python = partial(make_overlap_window, core="python")
make_overlap_window_wide = partial(make_overlap_window, reach=7, interval=3, releases=True)
make_overlap_eagle_window = partial(make_overlap_window, eagle=True)
make_mixed_eagle_window = partial(make_overlap_eagle_window, mixed=True, kind=RepairedDraftWindowScheduler)
make_state = SGLangDraftStateScheduler
make_extra = partial(SGLangDraftStateScheduler, chunk=2, interval=8)
make_overlap_extra = partial(make_extra, overlap=True)
make_overlap_extra_python = partial(make_overlap_extra, core="python")
make_overlap_eagle_extra = partial(make_overlap_extra, eagle=True)
make_overlap_lazy = partial(make_overlap_extra, lazy=True)
make_mixed_eagle_extra = partial(make_overlap_eagle_extra, mixed=True, kind=MixedDraftStateScheduler)
make_mixed_eagle_lazy = partial(make_mixed_eagle_extra, lazy=True)
make_overlap_extra_window = partial(SGLangDraftStateWindowScheduler, chunk=2, interval=8, overlap=True)
# Of two batches in flight each may come to a multiple of the interval, which has more tokens than one of them.
make_short = partial(SGLangDraftStateScheduler, chunk=2, interval=4, overlap=True)
