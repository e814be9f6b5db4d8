"""The rules of kv_store. `kvlockstep explain "rule 2"` prints the second."""

from __future__ import annotations

RULES = {
    1: (
        "A copy reads all its sources before it writes any target, so that blocks may change places. A target that "
        "declares `apart` is never given a place that is both."
    ),
    2: "A target comes once in a call. What is refused for that, or for a place that there is not, changes nothing.",
    3: "Only what is named changes: nothing behind the end of a prefix, nothing for a slot of -1, no byte of a guard.",
    4: "Where nothing is quantised, rows are bits: NaNs keep their payload, and zeros their sign.",
    5: (
        "A quantised row has a scale for each head: its largest number over the largest code (127, or 448 for "
        "float8_e4m3fn), divided in float32, and 2^-64 at least."
    ),
    6: (
        "A code is the number over that scale, divided in float32 and rounded to the nearest code, on a tie to the "
        "even one; what is larger saturates. Numbers that are not finite are refused."
    ),
    7: "Scales belong to their rows: what copies or swaps a row takes its scales along, and reads return both as kept.",
}
