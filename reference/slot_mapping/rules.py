"""The rules of slot_mapping. `kvlockstep explain "rule 2"` prints the second."""

from __future__ import annotations

RULES = {
    1: (
        "A row is the block table of one request. Its block number i has the tokens from i x block_size on. The slot "
        "of a token is block x block_size + its place in the block, and takes 64 bits."
    ),
    2: "What is done to rows counts from the next commit on. A batch that is mapped before sees the last commit.",
    3: (
        "The buffer of slots is filled to its end with every batch, since a captured graph reads all of it. So are the "
        "rows behind a gathered batch. A gathered row has no defined content behind its own blocks."
    ),
    4: (
        "With `shard` a block stands for block_size tokens of each worker. Tokens are dealt out, `interleave` to each "
        "worker in turn; a worker puts those that it keeps into the block one after the other. `interleave` divides "
        "block_size."
    ),
    5: (
        "Nothing is refused, since kernels check nothing: the caller names rows that exist, blocks that fit into them, "
        "each row at most once in a batch, and positions that the row covers."
    ),
}
