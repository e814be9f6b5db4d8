"""The manager over the radix cache, its page tables, and the pages that a budget holds."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest
import torch
from driving import explore, walk
from slow import slow
from watched import watched

from kvlockstep.core.failure_page import failure_page
from kvlockstep.impl.kv_manager import page_table
from kvlockstep.impl.kv_manager.page_table import PageTable
from kvlockstep.impl.kv_manager.radix import RadixManager
from kvlockstep.models.kv_manager import KVManagerModel
from kvlockstep.reference.errors import InvalidArgument, OutOfSlots
from kvlockstep.reference.kv import shape as kv_sizing


class Tabulating(RadixManager):
    """A manager that compares its page tables with its slots whenever a step is launched."""

    def launch(self) -> None:
        super().launch()
        for rid in self._live:
            blocks = self.blocks(rid)
            assert self.table.tensor[self.row(rid), : len(blocks)].tolist() == blocks


@pytest.mark.parametrize("seed", [0, *slow(1)])
def test_page_tables_follow_the_slots(seed):
    factory = partial(Tabulating, rows=20, tensors=True)
    outcome = walk(KVManagerModel, factory, 4_000, seed=seed)
    assert outcome.failure is None, failure_page(outcome.failure)


def test_a_missing_table_write_shows():
    class Forgets(Tabulating):
        def _tabulate(self, request, start, stop):
            super()._tabulate(request, start + self.block_size, stop)

    outcome = walk(KVManagerModel, partial(Forgets, rows=20), 2_000, seed=0)
    assert outcome.failure is not None


def test_no_request_is_admitted_or_forked_without_a_row():
    manager = RadixManager(8, 1, rows=1)
    assert manager.admit("a", [1, 2], None, 2) == 0
    assert manager.admit("b", [3], None, 1) is None
    manager.launch()
    manager.commit("a", 2)
    assert manager.fork("a", "c") is None
    manager.finish("a")
    assert manager.admit("b", [3], None, 1) == 0


@pytest.mark.slow
def test_the_manager_in_the_states_of_a_small_scope():
    scope = KVManagerModel.small_scopes[0]
    outcome = watched(explore, KVManagerModel, RadixManager, scope, steps=400_000)
    assert outcome.failure is None, failure_page(outcome.failure)
    assert outcome.exhausted


def test_what_is_cached_under_a_key_is_not_found_under_another():
    manager = RadixManager(16, 1)
    for rid, key in (("a", None), ("b", 0), ("c", 1)):
        assert manager.admit(rid, [1, 2, 3], key, 3) == 0
        manager.launch()
        manager.commit(rid, 3)
        manager.finish(rid)
    assert [manager.admit(f"again {key}", [1, 2, 3], key, 3) for key in (None, 0, 1, 2)] == [2, 2, 2, 0]
    assert "key=0" in manager.cache.render()


class TestPageTable:
    def test_changes_arrive_with_a_flush(self):
        table = PageTable(2, 3)
        row = table.take_row()
        table.write(row, 1, np.array([7, 8], np.int32))
        assert table.tensor.sum() == 0
        table.flush()
        assert table.tensor[row].tolist() == [0, 7, 8]
        assert table.tensor.dtype == torch.int32

    def test_the_last_of_several_changes_counts(self):
        table = PageTable(1, 2)
        table.write(0, 0, np.array([4, 5], np.int32))
        table.write(0, 1, np.array([6], np.int32))
        table.flush()
        assert table.tensor.tolist() == [[4, 6]]

    def test_a_flush_moves_only_what_changed(self):
        table = PageTable(1, 2)
        table.write(0, 0, np.array([4, 5], np.int32))
        table.flush()
        table.tensor.zero_()
        table.write(0, 1, np.array([6], np.int32))
        table.flush()
        assert table.tensor.tolist() == [[0, 6]]

    def test_rows_run_out(self):
        table = PageTable(1, 1)
        row = table.take_row()
        with pytest.raises(OutOfSlots):
            table.take_row()
        table.free_row(row)
        assert table.take_row() == row

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    def test_on_the_device(self):
        table = PageTable(4, 64, "cuda")
        pages = np.arange(64, dtype=np.int32)
        for row in range(4):
            table.write(row, 0, pages + row)
            table.write(row, 3, pages[:5])
        table.flush()
        expected = torch.arange(64) + torch.arange(4)[:, None]
        expected[:, 3:8] = torch.arange(5)
        assert torch.equal(table.tensor.cpu(), expected.int())


DTYPES = (torch.float32, torch.bfloat16, torch.float8_e4m3fn)


@pytest.mark.parametrize("dtype", DTYPES)
def test_bytes_of_a_page_are_those_of_its_tensors(dtype):
    for size, layers, heads, dim, ranks in itertools.product((1, 16), (1, 3), (1, 2, 8), (64, 80), (1, 2, 4, 16)):
        share = max(1, heads // ranks)
        held = torch.empty((layers, 2, size, share, dim), dtype=dtype)
        ours = page_table.page_bytes(size, layers, heads, dim, dtype, ranks)
        assert ours == held.numel() * held.element_size()
        assert ours == kv_sizing.page_bytes(size, layers, heads, dim, dtype.itemsize, ranks)


@pytest.mark.parametrize(("heads", "ranks"), [(6, 4), (4, 6), (0, 1), (1, 0), (-2, 1)])
def test_heads_that_do_not_divide_are_refused(heads, ranks):
    with pytest.raises(InvalidArgument):
        page_table.page_bytes(1, 1, heads, 64, torch.float16, ranks)
    with pytest.raises(InvalidArgument):
        kv_sizing.page_bytes(1, 1, heads, 64, 2, ranks)


@pytest.mark.parametrize("module", [page_table, kv_sizing])
def test_a_budget_is_never_exceeded(module):
    for budget, size in ((0, 7), (6, 7), (7, 7), (10**18 + 1, 3), (4 * 2**30, 8192)):
        pages = module.pages_within(budget, size)
        assert pages * size <= budget < (pages + 1) * size
    for budget, size in ((-1, 1), (1, 0)):
        with pytest.raises(InvalidArgument):
            module.pages_within(budget, size)
