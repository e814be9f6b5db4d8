"""A cache that keeps a row of bytes for each token or head: each of the judge's bytes is one of its own."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from kvlockstep.impl.engines.row_bytes import APART, BlockBytes, RowBytes  # noqa: E402
from kvlockstep.reference.kv_write.geometry import Geometry  # noqa: E402
from kvlockstep.reference.kv_write.layout import layout_of  # noqa: E402
from kvlockstep.reference.kv_write.split import NormAndLowWriter, SplitWriter  # noqa: E402

LATENT = Geometry(
    3, 2, 2, 2, 4, 4, "bfloat16", "float8_e4m3fn", "NHD", 2, 5, scale="row", value_kept="bfloat16", value_scale="none"
)
HEADS = Geometry(
    2, 2, 2, 3, 4, 4, "float16", "uint4", scale="norm", scale_dtype="float16", nibbles="pairs", value_scale="low"
)
CASES = [(LATENT, False, SplitWriter), (HEADS, True, NormAndLowWriter)]


def buffers(geometry):
    width = 4 if geometry.scale_dtype == "float32" else 2
    sizes = layout_of(geometry).places, geometry.scale_places * width
    return [bytes(i * 7 % 256 for i in range(size)) for size in sizes]


KINDS = [(LATENT, False, RowBytes), (HEADS, True, RowBytes), (HEADS, True, BlockBytes)]


@pytest.mark.parametrize(("geometry", "by_head", "kind"), KINDS)
def test_the_judges_bytes_are_there_again(geometry, by_head, kind):
    memory, scales = buffers(geometry)
    cache = kind(geometry, memory, scales, "cpu", by_head)
    assert (cache.memory(), cache.scales()) == (memory, scales)
    assert len(cache._bytes) == len(memory) + len(scales)


@pytest.mark.parametrize(("geometry", "by_head", "kind"), KINDS)
def test_a_byte_that_changes_is_one_of_the_judges(geometry, by_head, kind):
    memory, scales = buffers(geometry)
    cache = kind(geometry, memory, scales, "cpu", by_head)
    for place in range(len(cache._bytes)):
        cache._bytes[place] ^= 1
        found = cache.memory() + cache.scales()
        assert sum(a != b for a, b in zip(found, memory + scales, strict=True)) == 1
        cache._bytes[place] ^= 1


@pytest.mark.parametrize(("geometry", "by_head", "writer"), CASES)
def test_a_row_has_what_the_judge_has_of_its_slot(geometry, by_head, writer):
    """A write of the reference changes the bytes of one row in a layer, or of one for each head, and all of them."""
    memory, scales = buffers(geometry)
    reference, cache = writer(), RowBytes(geometry, memory, scales, "cpu", by_head)
    reference.open(geometry, memory, scales)
    rows = [[0x3C00 + 37 * i for i in range(geometry.heads * 4)] for _ in range(2)]
    reference.write(1, [2], rows[:1], rows[1:])
    after = RowBytes(geometry, reference.memory(), reference.scales(), "cpu", by_head)
    changed = cache.rows(1) != after.rows(1)
    assert changed.flatten(1).any(1).tolist() == [slot == 2 for slot in range(geometry.slots)]
    assert not (cache.rows(0) != after.rows(0)).any()
    for part in cache.parts:
        assert part.start == part.stop or changed[2, :, part].any(1).all()


def test_numbers_of_a_block_lie_behind_the_codes_of_all_its_tokens():
    memory, scales = buffers(HEADS)
    cache, apart = (kind(HEADS, memory, scales, "cpu", True) for kind in (RowBytes, BlockBytes))
    (k, norm, v, low), tokens = cache.parts, HEADS.block_size
    rows = cache.rows(1).view(-1, tokens, *cache.rows(1).shape[1:])
    blocks = apart.rows(1).view(len(rows), -1)
    for row, block in zip(rows, blocks, strict=True):
        codes = torch.cat([row[..., k], row[..., v]], -1)
        numbers = torch.cat([row[..., norm], row[..., low]], -1).unflatten(-1, (-1, 2))
        assert block[: codes.numel()].equal(codes.flatten())
        assert block[codes.numel() :].equal(numbers.permute(1, 2, 0, 3).flatten())


def test_layers_lie_apart_and_words_stay_aligned():
    memory, scales = buffers(LATENT)
    cache = RowBytes(LATENT, memory, scales, "cpu")
    starts = [cache.rows(layer).data_ptr() - cache._bytes.data_ptr() for layer in (0, 1)]
    assert starts[0] == APART
    assert starts[1] == starts[0] + cache.rows(0).numel() + APART
    assert cache.rows(0).stride(0) % 4 == 0
