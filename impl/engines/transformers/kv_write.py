"""kv_write on the caches of the `transformers` package (5.20 and later), which are torch code, on CPU.

The static layer keeps [request, head, position, dim] and writes as many positions of all requests in a call. Here a
request is a block: where a position is not written, its own bits are. The paged cache of continuous batching keeps all
layers of a block together, and what is padding goes to a sector that belongs to nobody. The fp8 layer grows; what it
appends is put into slots by us. Source: transformers/cache_utils.py and transformers/generation/continuous_batching/
{cache, cache_allocators/full_attention}.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from kvlockstep.impl.engines.transformers.manager import sized_by_caller
from kvlockstep.reference.kv_write.contract import PAD_SLOT, Rows
from kvlockstep.reference.kv_write.geometry import Geometry
from kvlockstep.reference.kv_write.layout import places_of

try:
    import torch
    import transformers
    from transformers import ContinuousBatchingConfig
    from transformers.cache_utils import Fp8QuantizedLayer, StaticLayer
    from transformers.generation.continuous_batching.cache import PagedAttentionCache
    from transformers.generation.continuous_batching.cache_allocators import FULL_ATTENTION
except ImportError as error:
    raise ImportError(
        f"the transformers target needs torch and transformers >= 5.20 with continuous batching ({error}); "
        "get it with: pip install 'kvlockstep[engines]'"
    ) from error

from kvlockstep.impl.kv_write.arena import DTYPES, Arena, bytes_of, tensor_of

POISON = 0xA5
NO_ROWS = torch.empty(0, dtype=torch.int64)


class StaticWriter:
    """One StaticLayer for each layer, over memory of the judge."""

    engine = "transformers"
    version = transformers.__version__
    layouts = "HND"
    own_strides = own_dims = True
    pads = False

    def open(self, geometry: Geometry, memory: bytes, scales: bytes) -> None:
        self.arena = Arena(geometry, memory, scales)
        self._layers: list[Any] = [StaticLayer(geometry.block_size) for _ in range(geometry.layers)]
        for number, layer in enumerate(self._layers):
            layer.keys, layer.values = (self.arena.cache(number, plane).transpose(1, 2) for plane in (0, 1))
            layer.device, layer.is_initialized = self.arena.device, True

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        size, cache = self.arena.geometry.block_size, self._layers[layer]
        rows = self.arena.rows(keys, 0), self.arena.rows(values, 1)
        for first, count in _runs(sorted({slot % size for slot in slots})):
            new = [kept[:, :, first : first + count].clone() for kept in (cache.keys, cache.values)]
            for i, slot in enumerate(slots):
                if first <= slot % size < first + count:
                    for plane in (0, 1):
                        new[plane][slot // size, :, slot % size - first] = rows[plane][i]
            cache.cumulative_length.fill_(first)
            cache.update(*new)

    def memory(self) -> bytes:
        return self.arena.memory()


class PagedWriter:
    """A PagedAttentionCache. Its bytes that are not the judge's are watched, but for the sector for padding."""

    engine = "transformers"
    version = transformers.__version__
    own_strides = True

    def open(self, geometry: Geometry, memory: bytes, scales: bytes) -> None:
        self.arena = Arena(geometry, memory, scales)
        self._cache = _cache(geometry)
        self._allocator = self._cache.cache_allocators[FULL_ATTENTION]
        self._raw, sector = self._cache.cache_tensor.fill_(POISON), self._cache.bytes_per_sector
        self._first = 2 * sector // self._allocator.bytes_per_block
        places = [(place, self._place(*owner)) for place, owner in places_of(geometry)]
        byte, width = torch.arange(geometry.width), geometry.width
        self._ours, self._its = (
            (torch.tensor(each)[:, None] * width + byte).flatten() for each in zip(*places, strict=True)
        )
        self._given = tensor_of(memory, "uint8", "cpu")
        self._others = torch.ones(len(self._raw), dtype=torch.bool)
        self._others[self._its] = False
        self._others[sector : 2 * sector] = False
        self._raw[self._its] = self._given[self._ours]

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        if not slots:
            return
        where = [self._allocator.write_trash_index if slot == PAD_SLOT else self._row(slot) for slot in slots]
        given = [self.arena.rows(rows, plane).transpose(0, 1)[None] for plane, rows in enumerate((keys, values))]
        batch: dict[str, Any] = {
            "cu_seq_lens_k": {self._allocator.layer_type: NO_ROWS},
            "max_length_k": {self._allocator.layer_type: 0},
            "read_index": [NO_ROWS],
            "write_index": [torch.tensor(where)],
        }
        self._cache.update(*given, layer, batch)

    def memory(self) -> bytes:
        found = self._given.clone()
        found[self._ours] = self._raw[self._its]
        if (self._raw[self._others] != POISON).any():
            found[-1] ^= 0xFF
        return bytes_of(found)

    def _row(self, slot: int) -> int:
        block, offset = divmod(slot, self.arena.geometry.block_size)
        row: int = (self._first + block) * self._allocator.block_physical_stride + offset
        return row

    def _place(self, layer: int, plane: int, slot: int, head: int, element: int) -> int:
        """Where an element is in the engine's tensor, in elements."""
        geometry = self.arena.geometry
        row = self._row(slot) + (2 * layer + plane) * geometry.block_size
        return (row * geometry.heads + head) * geometry.key_dim + element


class Float8Writer:
    """One Fp8QuantizedLayer for each layer, whose scale is that of what it got first."""

    engine = "transformers"
    version = transformers.__version__
    kept = "float8_e4m3fn"
    scale = "tensor"
    own_strides = own_dims = True
    pads = False

    def open(self, geometry: Geometry, memory: bytes, scales: bytes) -> None:
        self.arena = Arena(geometry, memory, scales)
        make: Any = Fp8QuantizedLayer
        self._layers: list[Any] = [make() for _ in range(geometry.layers)]
        for number, layer in enumerate(self._layers):
            layer.update(*(self._loudest(number, plane) for plane in (0, 1)))

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        if not slots:
            return
        given = [self.arena.rows(rows, plane).transpose(0, 1)[None] for plane, rows in enumerate((keys, values))]
        cache, size = self._layers[layer], self.arena.geometry.block_size
        cache.update(*given)
        where = self.arena.slots(slots)
        for plane, (codes, _) in enumerate((cache._quantized_keys, cache._quantized_values)):
            self.arena.cache(layer, plane)[where // size, where % size] = codes[0, :, -len(slots) :].transpose(0, 1)

    def memory(self) -> bytes:
        return self.arena.memory()

    def _loudest(self, layer: int, plane: int) -> Any:
        """One token whose scale is that of the judge."""
        geometry = self.arena.geometry
        shape = 1, geometry.heads, 1, geometry.dim(plane)
        most = Fp8QuantizedLayer.fp8_max * float(self.arena.tensor_scale(layer, plane))
        return torch.full(shape, most, dtype=DTYPES[geometry.given])


def _cache(geometry: Geometry) -> Any:
    """A cache with room for the blocks of a geometry."""
    # A config of a model would ask for an even head dim, for the sake of its rotation.
    model: Any = SimpleNamespace(
        num_hidden_layers=geometry.layers,
        num_attention_heads=geometry.heads,
        num_key_value_heads=geometry.heads,
        head_dim=geometry.key_dim,
        hidden_size=geometry.heads * geometry.key_dim,
        vocab_size=3,
        layer_types=None,
        _attn_implementation="sdpa",
    )
    sizes = ContinuousBatchingConfig(page_size=geometry.block_size, num_blocks=geometry.blocks, max_batch_tokens=1)
    one_process: Any = SimpleNamespace(tp_size=1)
    with sized_by_caller():
        return PagedAttentionCache(model, sizes, "cpu", one_process, DTYPES[geometry.given])


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Numbers in ascending order as (first, how many) runs."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == sum(runs[-1]):
            runs[-1] = runs[-1][0], runs[-1][1] + 1
        else:
            runs.append((number, 1))
    return runs
