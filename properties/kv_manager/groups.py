"""Laws of a kv_manager with groups. Those of laws.py beside this file hold as well, for each group or each pool."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kvlockstep.properties.law import law


@law("kv_manager", needs=("groups",), answers=("vllm#53142", "Megatron-LM#6416 (b)"))
def state_soundness(position: int, block: int | None, got: str, want: str) -> str | None:
    """A step continues from the state after exactly the computed tokens, no matter who saved it."""
    if got == want:
        return None
    if block is None:
        return f"goes on at position {position} from no state"
    return f"goes on at position {position} from block {block}, which holds {got}, not {want}"


@law("kv_manager", needs=("groups",), answers=("sglang#25805",))
def one_group(held: Mapping[str, Collection[int]]) -> str | None:
    """No block serves two groups at once."""
    seen: dict[int, str] = {}
    for group, blocks in held.items():
        for block in sorted(blocks):
            if (other := seen.setdefault(block, group)) != group:
                return f"block {block} serves {other} and {group}"
    return None


@law("kv_manager", needs=("frees_window",), answers=("sglang#34823",))
def window_freed(first: int, block_size: int, table: Mapping[int, int]) -> str | None:
    """A commit frees the blocks whose positions lie before everything that is still read."""
    # `table`: the block at each place of the table; `first`: the first position that is still read.
    for place, block in table.items():
        if (place + 1) * block_size <= first:
            return f"still has block {block} for positions before {first}, which nothing reads any more"
    return None
