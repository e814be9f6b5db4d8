"""kv_scheduler on vLLM's hybrid schedulers (0.33.0) with drafts over recurrent states, prefixes cached or not.

A request has one block more for each draft (`num_speculative_blocks`). Its running state stands in column c of its
table, which is that of the last token of its batch. A batch that feeds drafts leaves the state behind its first token
in column c, the one behind its first draft in c + 1, and so on. The next batch goes on from the column of the last
right draft, and moves the state first if its own column is another one.

Behind the forward the worker copies the state at the last end of a block that was come to into the column of that
block, where the cache may publish it. Of the states of a layer this is the one of all tokens; the convolution's, which
is a window, stands in column c with all its drafts and is shifted instead.

Source: vllm/v1/worker/gpu/model_states/mamba_hybrid.py, preprocess_state and postprocess_state; their kernels in
vllm/v1/worker/mamba_utils.py, beside the files of hybrid_scheduler.py.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from kvlockstep.impl.engines.vllm.hybrid_scheduler import FULL, STATE, WINDOW, VllmHybridScheduler
from kvlockstep.reference.kv_manager.groups.contract import Group, Step
from kvlockstep.reference.kv_scheduler.contract import NO_DRAFTS, Batch, Item


class Ran(NamedTuple):
    """What a batch has done with the state of a request: its column, and the position that it saved there."""

    column: int
    first: int


class DraftedStatesScheduler(VllmHybridScheduler):
    """A hybrid scheduler whose worker saves a state behind each draft.

    Blocks have more tokens than there are drafts, as those of a hybrid model have, unless they may be `small`.
    """

    def __init__(
        self, blocks: int, block_size: int, *args: Any, drafts: int = 3, small: bool = False, **options: Any
    ) -> None:
        self._ran: dict[tuple[str, int], Ran] = {}
        # How many drafts were right in the last batch of each request that the device knows of.
        self._right: dict[str, int] = {}
        size = block_size if small else max(2, block_size)
        drafts = drafts if small else min(drafts, size - 1)
        super().__init__(blocks, size, *args, drafts=drafts, **options)

    def schedule(self, accepted: Sequence[Mapping[str, int]] = ()) -> Batch:
        for (output, _), right in zip(self._launched, accepted, strict=bool(accepted)):
            self._judged(output, right)
        return super().schedule(accepted)

    def update(self, sampled: Mapping[str, int], accepted: Mapping[str, int] = NO_DRAFTS) -> Collection[str]:
        self._judged(self._launched[0][0], accepted)
        return super().update(sampled, accepted)

    def _judged(self, output: Any, right: Mapping[str, int]) -> None:
        """The device has compared the drafts of a batch with what it samples."""
        self._right.update((rid, right.get(rid, 0)) for rid in output.num_scheduled_tokens)

    def _forget(self, rid: str) -> None:
        super()._forget(rid)
        for g in self._states:
            self._ran.pop((rid, g), None)

    def _step(self, g: int, item: Item) -> Step:
        table, size = self._by_group[item.rid][g], self.groups[g].block_size
        source = self._source(g, item)
        stop = item.start + item.n
        first = stop - item.drafts
        column = -(-stop // size) - 1
        self._ran[item.rid, g] = Ran(column, first)
        saves = [(first + i, table[column + i]) for i in range(item.drafts + 1)]
        ends = range(-(-first // size) * size, stop + 1, size)
        return Step(table[source] if item.start else None, saves, [(end, table[end // size - 1]) for end in ends])

    def _source(self, g: int, item: Item) -> int:
        """The column of the state that a batch goes on from."""
        size = self.groups[g].block_size
        ran = self._ran.get((item.rid, g))
        if ran is None:
            return (item.start - 1) // size
        right = self._right.get(item.rid, 0)
        end = (ran.first + right) // size * size
        # The state of a last right draft at the end of the running block was copied to its own column.
        return ran.column if end >= ran.first and end == (ran.column + 1) * size else ran.column + right


def make_uncached_state(
    blocks: int, block_size: int, budget: int, running: int, **options: Any
) -> DraftedStatesScheduler:
    """Without prefix cache a state has one column, whose block has the tokens of the longest request."""
    groups = FULL, Group("state", blocks)
    return DraftedStatesScheduler(blocks, block_size, budget, running, groups, caching=False, **options)


make_ngram_state = partial(DraftedStatesScheduler, groups=(FULL, STATE))
make_ngram_state_window = partial(DraftedStatesScheduler, groups=(*WINDOW, STATE))
make_ngram_state_sparse = partial(DraftedStatesScheduler, groups=(FULL, STATE), retention=0)
make_ngram_state_retained = partial(DraftedStatesScheduler, groups=(FULL, STATE), retention=2)
make_ngram_state_fine = partial(DraftedStatesScheduler, groups=(FULL, STATE), fine=True, spare=2)
make_priority_ngram_state = partial(DraftedStatesScheduler, groups=(FULL, STATE), policy="priority")
make_ngram_state_small = partial(DraftedStatesScheduler, groups=(FULL, STATE), small=True)
make_async_ngram_state = partial(make_ngram_state, asynchronous=True)
make_async_ngram_state_window = partial(make_ngram_state_window, asynchronous=True)
make_async_ngram_state_fine = partial(make_ngram_state_fine, asynchronous=True)
make_async_uncached_state = partial(make_uncached_state, asynchronous=True)
make_eagle_state = partial(make_ngram_state, eagle=True)
make_eagle_state_ahead = partial(make_eagle_state, ahead=1)
make_async_eagle_state = partial(make_ngram_state, eagle=True, asynchronous=True)
