"""The rules of kv_write. `kvlockstep explain "rule 2"` prints the second."""

from __future__ import annotations

RULES = {
    1: (
        "A write changes the elements of the slots that it names in one layer, and the scales of their rows. No other "
        "byte of the flat buffer changes: no other slot, layer or plane, no gap between rows or blocks, no guard."
    ),
    2: "Where nothing is quantised, rows are bits: NaNs keep their payload, and zeros their sign.",
    3: (
        "A slot comes once in a call, unless the target declares `repeats`. Then each element of that slot is one of "
        "the writers', and K and V may be of different writers: nothing orders the programs of a kernel."
    ),
    4: (
        "A scale depends on its own row of one head alone. Kernels may keep scales of nearly 0 at a floor of at most "
        "1e-5, so that nothing is divided by 0, and add up to 1e-4 to the length of a row. A scale that hides a zero "
        "point may be that of a range with 0 in it. One that has to be a power of two is the first that is not less "
        "than the exact scale, or the nearest one, as `power_scales` says."
    ),
    5: (
        "A code is the quotient by the scale as it is stored, rounded to the nearest one, or towards 0 with `rounding` "
        '"down". It counts from the low end or the zero point that is stored. What is out of range saturates. On a tie '
        "either code is right."
    ),
    6: (
        "Whatever the row is, a reader decodes finite numbers. Rows may be all zeros or all equal, of one sign, tiny "
        "or huge, or have one outlier at any position."
    ),
}
