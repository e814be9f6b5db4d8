"""The contract of kv_write: what a kernel must offer that writes rows of new tokens, and its traits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from kvlockstep.reference.kv_write.geometry import Geometry
from kvlockstep.reference.traits import trait

PAD_SLOT = -1
Rows = Sequence[Sequence[int]]


@runtime_checkable
class KVWriteTarget(Protocol):
    """Factory `make()`. The judge chooses a geometry that the traits allow, and opens the target with it once.

    A row is `heads` x dim bit patterns, unsigned numbers as wide as `given`. Slot = block x block_size + offset.
    """

    def open(self, geometry: Geometry, memory: bytes, scales: bytes) -> None:
        """Makes a cache of this geometry. Its flat buffer has the bytes `memory`, and its buffer of scales `scales`."""

    def write(self, layer: int, slots: Sequence[int], keys: Rows, values: Rows) -> None:
        """Writes row i of `keys` and of `values` to slots[i] of a layer. With `pads` nothing goes to PAD_SLOT."""

    def memory(self) -> bytes:
        """Returns the whole flat buffer as it is now, guards and gaps included. Changes nothing."""


class KVWriteOptional(Protocol):
    """Methods of a kv_write that may be left out. A target that has one announces it with a trait."""

    def scales(self) -> bytes:
        """Returns the whole buffer of scales as it is now. Changes nothing."""

    def gather(self, layer: int, slots: Sequence[int]) -> tuple[Rows, Rows]:
        """Returns the rows of K and of V in these slots as they are kept. Changes nothing."""


@dataclass(frozen=True)
class WriteTraits:
    """What a kv_write target declares of itself; read from attributes of the same names."""

    layouts: str = trait(
        "NHD",
        "The layouts that it writes, by name, with spaces between. NHD is [block, offset, head, dim] and HND [block, "
        "head, offset, dim]. packed is K [block, head, dim / pack, offset, pack] beside V [block, head, dim, offset]. "
        "joint is [block, offset, head, K and V], and paired [slot, heads of K and of V, dim].",
    )
    given: str = trait("float32 float16 bfloat16", "The dtypes that rows may come in, with spaces between.")
    kept: str = trait(
        "same",
        "The dtypes of the cache, with spaces between: `same` as given, float8_e4m3fn, float8_e5m2, float4_e2m1fn, "
        "int8, uint8, uint4, uint3, uint2.",
    )
    nibbles: Literal["halves", "pairs"] = trait(
        "halves",
        "Which codes of four bits share a byte, the first one in its low four bits: neighbours as `pairs`, or one of "
        "each of the `halves` of a head. Of uint2 four neighbours do, or one of each quarter.",
    )
    scale: Literal["none", "tensor", "one", "row", "zero", "low", "norm", "residual", "hidden"] = trait(
        "none",
        "What turns a code into a number: a scale for each `tensor`, which the caller sets, or always `one`, or a "
        "scale for each `row` of a head, which the kernel computes. So it does with a `zero` point beside it, or the "
        "least element, its `low` end, or with a zero point from 0 to 15 that is `hidden` in the lowest four bits of "
        "the scale. With `norm` it is the length of the row, and codes are equal steps from -1 to 1. With `residual` "
        "the fourth bit of a code says whether the element is above its step, and the root of the mean square of how "
        "far off steps are, in units of that length, is kept beside it.",
    )
    scale_dtype: Literal["float32", "float16", "float8_e8m0fnu", "given"] = trait(
        "float32", "The dtype in which scales and zero points are kept, or `given` for that of the rows."
    )
    power_scales: Literal["no", "above", "nearest"] = trait(
        "no",
        "The scale of a row is a power of two: `above` is the first one that is not less than the exact scale, and "
        "`nearest` is the nearest one to it, give or take a tenth of it, so that the largest elements may saturate.",
    )
    value_kept: str = trait("", "The dtype that V is kept in, if not as K is: `same` as given, or one of codes.")
    value_scale: Literal["", "none", "row", "low", "norm"] = trait(
        "", "What turns a code of V into a number, if not as for K."
    )
    keeps_scales: bool = trait(False, "There is `scales()`. Needed with a scale for each row.", method="scales")
    rounding: Literal["nearest", "down"] = trait("nearest", 'How quotients become codes of int8: "down" is towards 0.')
    quotient: Literal["float32", "given"] = trait("float32", "The dtype in which an element is divided by its scale.")
    pads: bool = trait(True, "A slot of -1 writes nothing. Else no slot is -1.")
    repeats: bool = trait(False, "A slot may come twice in a call. Each of its elements is then one of the writers'.")
    own_strides: bool = trait(False, "V may have other strides than K.")
    own_dims: bool = trait(False, "V may have another head dim than K.")
    latent: bool = trait(
        False, "It keeps rows of one head in blocks of one token, as attention with a latent of K and V does."
    )
    power_of_two: bool = trait(False, "Head dims and block sizes must be powers of two.")
    least_dim: int = trait(1, "Head dims are no less than this.", least=1)
    narrow_rows: bool = trait(True, "Rows may have elements that are all equal, all zero or tiny. Else none is.")
    one_signed: bool = trait(True, "Rows may have elements that are all of one sign. Else none is.")
    can_gather: bool = trait(False, "There is `gather(layer, slots)`.", method="gather")
