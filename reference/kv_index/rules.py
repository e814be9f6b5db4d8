"""The rules of kv_index. `kvlockstep explain "rule 5"` prints the fifth."""

from __future__ import annotations

RULES = {
    1: (
        "A block is its prefix: the extra key of its sequence, and all tokens from the start of the sequence to the "
        "end of the block. Equal tokens behind different prefixes are different blocks."
    ),
    2: (
        "A key names one prefix for as long as its worker lives, from its first event or a `remove` to the next "
        "`remove`. Without `shared_keys` another worker may use the same key for another prefix."
    ),
    3: (
        "The events of a worker are numbered from 0. They arrive in order, unless one is lost; events of different "
        "workers arrive in any order. A number more than one above the last is a gap. Any number may be the first."
    ),
    4: (
        "Without a gap the index knows exactly what the events say. Two things it may leave out: a block that was "
        "stored behind a parent that is not stored, until it is stored again behind one that is; and, if orphans are "
        "dropped, what lies below a removed block."
    ),
    5: (
        "Behind a gap the index may know less, and never a block that no event announced or whose removal arrived. "
        "A clear event, a `resync` or a `remove` ends the gap."
    ),
    6: "An event that arrives behind its successor is old, whether or not it arrived before.",
    7: (
        "A removal of a key that is not known changes nothing, and the other keys of its event are removed all the "
        "same. A set index may hear a block removed twice; a counting index may not, unless events were lost."
    ),
    8: (
        "The events of a snapshot are stores with parents first, and removals of the parents that are not stored "
        "themselves. The extra key stands in the first event of a path, and may be left out behind a parent."
    ),
}
