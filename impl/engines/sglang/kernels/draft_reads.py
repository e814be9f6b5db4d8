"""slot_mapping on the kernels that tell SGLang's attention which slots to read (0.5.23), from the same request table.

`create_flashinfer_kv_indices_triton` reads a span of each request's row, from a table of tokens or of pages.
`generate_draft_decode_kv_indices` makes a list for each step of a draft model: of each request and branch the row up to
its length, perhaps the first and the latest tokens alone, and the slots of its drafts. What of the lists is not asked
for is compared here: if it is not what the table says, the first slot is WRONG. Source:
sglang/kernels/ops/attention/kv_indices.py and sglang/kernels/ops/speculative/cache_locs.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain, pairwise

import torch

from kvlockstep.impl.engines.kernels_apart import Apart
from kvlockstep.impl.engines.sglang.kernels.slot_mapping import ENGINE, UNUSED, RequestTable, drafts
from kvlockstep.impl.interpreted import DEVICE, triton
from kvlockstep.reference.slot_mapping.contract import PAD_SLOT

NAME = "sglang.kernels.ops.attention.kv_indices"
(indices,) = Apart(ENGINE, [NAME], {}).load(NAME)
WRONG = -3
WAYS, BRANCHES = 4, 2
# Places for a step of all requests: no scope needs more.
MOST = 4096
# Of a draft model that reads a part of what was said: the latest tokens, and the first ones.
WINDOW, SINK = 3, 1


class ReadTable(RequestTable):
    """The spans of a batch are read by each kernel in turn."""

    def _room(self, tokens: int) -> int:
        return 2 * BRANCHES * (2 * tokens + self._size)

    def slots(self, batch: Sequence[int], starts: Sequence[int], positions: Sequence[int]) -> list[int]:
        counts = [end - start for start, end in pairwise(starts)]
        if not positions:
            return [PAD_SLOT] * self._tokens
        firsts = [positions[start] if n else 0 for start, n in zip(starts, counts, strict=False)]
        self._calls += 1
        way = self._calls % WAYS
        read = self._spans if way < WAYS // 2 else self._drafts
        found = read(batch, firsts, counts, way)
        return [*found, *[PAD_SLOT] * (self._tokens - len(found))]

    def _spans(self, batch: Sequence[int], firsts: Sequence[int], counts: Sequence[int], way: int) -> list[int]:
        """By the kernel that reads spans: with a program for each request, or with several and a table of pages."""
        total = sum(counts)
        found = torch.full((total + 1,), UNUSED, dtype=torch.int32, device=DEVICE)
        pages = self._table[:, :: self._size] // self._size
        table, page = (pages, self._size) if way else (self._table, 1)
        indices.create_flashinfer_kv_indices_triton[(len(batch), 1 + way)](
            *(table, self._index(batch), self._index(counts), self._index([0, *accumulate(counts)]).to(torch.int32)),
            *(self._index(firsts).to(torch.int32), found, table.stride(0)),
            ENTRY_PAGE_SIZE=page,
            TOKEN_BLOCK_PARALLEL=bool(way),
        )
        slots: list[int] = found.tolist()
        return slots[:total] if slots[total] == UNUSED else [WRONG, *slots[1:total]]

    def _drafts(self, batch: Sequence[int], firsts: Sequence[int], counts: Sequence[int], way: int) -> list[int]:
        """By the kernel for drafts, which begin at the first position that is asked for, in two branches."""
        # Sizes are constants of the kernel: there are few of each, so that few kernels are compiled.
        steps, n = triton.next_power_of_2(max(counts)), len(batch)
        odd, part = way % 2, self._calls % (2 * WAYS) < WAYS
        window, sink = (WINDOW, SINK) if part else (0, 0)
        page = self._size if odd else 1
        lists = [self._lists(batch, firsts, step + 1, steps, page, window, sink) for step in range(steps)]
        found = torch.full((steps, MOST), UNUSED, dtype=torch.int64, device=DEVICE)
        ends = torch.zeros((steps, MOST), dtype=torch.int32, device=DEVICE)
        drafts.generate_draft_decode_kv_indices[(steps * (1 if odd else 2), n, BRANCHES)](
            *(self._index(batch), self._table, self._index(firsts), found, ends),
            *(self._index([first for first in firsts for _ in range(BRANCHES)]), self._table.stride(0)),
            *(found.stride(0), ends.stride(0), triton.next_power_of_2(n), triton.next_power_of_2(steps)),
            *(triton.next_power_of_2(n * BRANCHES), page, window, sink),
            NUM_STEPS=0 if odd else steps,
        )
        same = self._is(found, [[*chain.from_iterable(one)] for one in lists], UNUSED)
        same = self._is(ends, [[0, *accumulate(map(len, one))] for one in lists], 0) and same
        # The drafts of the last step, of the first branch of each request.
        row, places, slots = found[-1].tolist(), [0, *accumulate(map(len, lists[-1]))], []
        for i, count in enumerate(counts):
            end = places[i * BRANCHES + 1]
            slots += row[end - steps : end - steps + count]
        return slots if same else [WRONG, *slots[1:]]

    @staticmethod
    def _is(found: torch.Tensor, wanted: Sequence[Sequence[int]], rest: int) -> bool:
        """Tells whether each row begins with these numbers and has nothing but `rest` behind them."""
        rows = torch.full(found.shape, rest, dtype=found.dtype)
        for row, numbers in zip(rows, wanted, strict=True):
            row[: len(numbers)] = torch.tensor(numbers, dtype=found.dtype)
        return found.cpu().equal(rows)

    def _lists(
        self, batch: Sequence[int], firsts: Sequence[int], step: int, steps: int, page: int, window: int, sink: int
    ) -> list[list[int]]:
        """What each branch of each request reads in a step, by the copy of the table on the host.

        The drafts of a branch lie behind those of the one before, or in pages of their own.
        """
        lists = []
        for row, first in zip(batch, firsts, strict=True):
            slots: list[int] = self._twin[row].tolist()
            before = slots[:first]
            if window and first > window + sink:
                before = before[:sink] + before[first - window :]
            apart = steps if page == 1 else -(-(first % page + steps) // page) * page
            lists += [[*before, *slots[first + branch * apart :][:step]] for branch in range(BRANCHES)]
        return lists
