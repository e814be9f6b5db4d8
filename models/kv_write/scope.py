"""Scopes of kv_write, and the geometry that a target gets in one: as the scope has it, if its traits allow."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kvlockstep.models.core.model import Divergence, Scope
from kvlockstep.properties.law import ERROR_CONTRACT
from kvlockstep.reference.errors import InvalidArgument
from kvlockstep.reference.kv_write.contract import WriteTraits
from kvlockstep.reference.kv_write.geometry import LAYOUTS, SCALES, Geometry
from kvlockstep.reference.kv_write.numbers import ELEMENT_BYTES, MOST, in_one_byte

# Bits are moved whatever they mean, so that they may be of any dtype. What is quantised are numbers.
GIVEN = ("float32", "float16", "bfloat16")
KNOWN = {"layouts": LAYOUTS, "given": GIVEN, "kept": ("same", *ELEMENT_BYTES)}


@dataclass(frozen=True)
class KVWriteScope(Scope):
    """A cache of these sizes. `variant` chooses from the layouts and the dtypes that the target has, in turn."""

    blocks: int
    block_size: int
    layers: int
    heads: int
    key_dim: int
    value_dim: int
    key_gap: int
    value_gap: int
    variant: int
    exhaustive: bool = False

    def shown(self) -> dict[str, Any]:
        return {name: value for name, value in self.to_json().items() if name != "exhaustive"}


def scopes() -> Iterator[KVWriteScope]:
    """Sizes that are powers of two and others, with gaps and without."""
    sizes = (
        (3, 2, 2, 2, 4, 4, 0, 0),
        (2, 4, 1, 3, 5, 3, 3, 1),
        (4, 1, 2, 1, 8, 8, 2, 2),
        (2, 3, 1, 2, 6, 6, 0, 5),
        (1, 8, 2, 1, 16, 4, 1, 0),
        (5, 2, 1, 5, 2, 2, 4, 3),
    )
    # Coprime to the number of sizes, so that each of them meets each variant.
    for number, size in zip(range(210), itertools.cycle(sizes), strict=False):
        yield KVWriteScope(*size, variant=number % 35)


def geometry_of(scope: KVWriteScope, traits: WriteTraits) -> Geometry:
    """The geometry of a scope as the traits allow it. Raises Divergence for a name in the traits that nobody knows."""
    layouts, dtypes, codes = (_names(traits, name) for name in ("layouts", "given", "kept"))
    rest, layout = divmod(scope.variant, len(layouts))
    rest, given = divmod(rest, len(dtypes))
    kept = codes[rest % len(codes)]
    # The elements of a row of one are all equal, and have one sign.
    varied = traits.scale != "none" and not (traits.narrow_rows and traits.one_signed)
    least = max(2 if varied else 1, traits.least_dim)
    dims = [max(least, _power(dim) if traits.power_of_two else dim) for dim in (scope.key_dim, scope.value_dim)]
    if traits.value_kept not in ("", *KNOWN["kept"]):
        raise Divergence(ERROR_CONTRACT.id, f"the trait value_kept is {traits.value_kept!r}")
    share = max(in_one_byte(kept), in_one_byte(traits.value_kept))
    dims = [-(-dim // share) * share for dim in dims]
    size = _power(scope.block_size) if traits.power_of_two else scope.block_size
    own = traits.own_dims and layouts[layout] != "paired"
    return Geometry(
        blocks=scope.blocks * size if traits.latent else scope.blocks,
        block_size=1 if traits.latent else size,
        layers=scope.layers,
        heads=1 if traits.latent else scope.heads,
        key_dim=dims[0],
        value_dim=dims[1] if own else dims[0],
        given=dtypes[given],
        kept=dtypes[given] if kept == "same" else kept,
        layout=layouts[layout],
        key_gap=scope.key_gap,
        value_gap=scope.value_gap if traits.own_strides else scope.key_gap,
        pack=2 if layouts[layout] == "packed" and dims[0] % (2 * share) == 0 else 1,
        scale=traits.scale,
        scale_dtype=dtypes[given] if traits.scale_dtype == "given" else traits.scale_dtype,
        nibbles=traits.nibbles,
        value_kept=dtypes[given] if traits.value_kept == "same" else traits.value_kept,
        value_scale=traits.value_scale,
    )


def unfit(geometry: Geometry, traits: WriteTraits) -> str | None:
    """Says which traits do not go together, if any: no target could keep rows as this geometry of theirs has it."""
    both = [(name, geometry.scale_of(plane)) for plane, name in enumerate(("scale", "value_scale"))]
    (_, keys), (_, values) = both
    for name, scale in both:
        if SCALES[scale] and not traits.keeps_scales:
            return f"the target declares {name} = {scale!r} without keeps_scales"
    if keys == "none" != values:
        return f"the target declares value_scale = {values!r} with scale = 'none': V is quantised only where K is"
    if keys == "tensor" and values not in ("tensor", "none"):
        return f"the target declares value_scale = {values!r} with scale = 'tensor', which goes with 'none' alone"
    if traits.power_scales != "no" and (keys != "row" or values not in ("row", "none")):
        return f"the target declares power_scales = {traits.power_scales!r} without a scale of each row"
    if geometry.scale_dtype == "float8_e8m0fnu" and traits.power_scales == "no":
        return "the target declares scale_dtype = 'float8_e8m0fnu', which has powers of two alone, without power_scales"
    for plane, (name, scale) in enumerate(both):
        kept = geometry.kept_of(plane)
        if scale == "residual" and kept != "uint4":
            return f"the target declares {name} = 'residual' for {'KV'[plane]} in {kept}, not in uint4"
        if scale != "none" and kept not in MOST:
            return f"the target declares {name} = {scale!r} for {'KV'[plane]} in {kept}, which is no dtype of codes"
        if scale == "none" and kept != geometry.given:
            return f"the target keeps {'KV'[plane]} in {kept}, not as given, with {name} = 'none'"
    try:
        geometry.check()
    except InvalidArgument as error:
        return f"the traits ask for what cannot be: {error}"
    return None


def _names(traits: WriteTraits, trait: str) -> list[str]:
    names = str(getattr(traits, trait)).split()
    unknown = [name for name in names if name not in KNOWN[trait]]
    if unknown or not names:
        known = " ".join(KNOWN[trait])
        raise Divergence(ERROR_CONTRACT.id, f"the trait {trait} names {unknown or 'nothing'}; known: {known}")
    return names


def _power(number: int) -> int:
    return 1 << (number - 1).bit_length()
