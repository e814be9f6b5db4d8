"""vLLM's cache of 4-bit codes, from the rows that attention gives to the rows that a reader gets back."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
target = pytest.importorskip(
    "kvlockstep.impl.engines.vllm.kv_write_int4",
    reason="vLLM is not on this machine (see --engine-path), or there is a card",
    exc_type=ImportError,
)

DIM = 64


def read_back(row: Any) -> Any:
    """Writes a row of one head into a cache of one slot, decodes it and undoes the rotation, as attention does."""
    given = row.view(1, 1, DIM)
    caches = [torch.zeros(1, 1, 1, DIM // 2, dtype=torch.uint8) for _ in "KV"]
    scales = [torch.zeros(1, 1, 1) for _ in "KV"]
    target.int4.reshape_and_cache_int4(
        *(given, given, *caches, torch.tensor([0])), k_scale_cache=scales[0], v_scale_cache=scales[1]
    )
    bits = scales[0].view(torch.int32)
    scale, zero = (bits & ~15).view(torch.float32), bits & 15
    codes = torch.stack([caches[0] & 15, caches[0] >> 4], -1).flatten()
    return target.int4.single_rht((codes - zero) * scale, inverse=True).flatten() / DIM


@pytest.fixture
def row() -> Any:
    return torch.randn(DIM, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("channel", [1, 5, DIM - 1])
def test_an_outlier_is_read_back(row: Any, channel: int) -> None:
    row[channel] += 100
    assert (read_back(row) - row).norm() < 0.1 * row.norm()


@pytest.mark.parametrize(("added", "least", "most"), [(0, 0.0, 0.1), (40, 0.15, 0.3), (100, 0.6, 0.7)])
def test_an_outlier_in_the_first_channel_is_lost(row: Any, added: int, least: float, most: float) -> None:
    row[0] += added
    assert least <= (read_back(row) - row).norm() / row.norm() < most
