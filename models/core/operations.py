"""What may stand in a trace: the operations of each contract, with the types of their arguments.

Operations are what a model executes. Several commands may propose the same one, and some of a model's operations are
more than one call of the target.
"""

from __future__ import annotations

from typing import Any, NotRequired

from kvlockstep.reference.block_pool.contract import ExtraKey


class Size(int):
    """The type of an argument that says how many things a model makes, at most MOST_MADE."""


MOST_MADE = 1_000
Arguments = dict[str, Any]
Ints = list[int]
Pairs = list[tuple[int, int]]

# A running engine may have other extra keys than our numbers; a recorded trace has them as they were.
_ANY_KEY = int | str | None
_TREE_CALL: Arguments = {"tokens": Ints, "handle": str | None, "spoil": NotRequired[str | None]}
_KEYS_OF_REQUEST: Arguments = {"request": int, "tokens": Ints, "extra_keys": list[ExtraKey]}
_MOVES: Arguments = {"pairs": Pairs}

OPERATIONS: dict[str, dict[str, Arguments]] = {
    "slot_pool": {"alloc": {}, "free": {"slot": int}, "occupy": {"slot": int}},
    "slot_prefix_cache": {
        "insert": {"tokens": Ints, "slot": int, "version": int, "pinned": NotRequired[bool | None]},
        "find": {"tokens": Ints},
        "pin": {"tokens": Ints},
        "release": {"tokens": Ints},
        "reuse": {"slot": int, "length": int},
        "copy_kv": {"tokens": Ints, "target": int},
    },
    "block_stack": {"acquire": {"n": int}, "release": {"blocks": Ints}, "begin_capture": {}, "end_capture": {}},
    "radix_cache": {
        "serve": {"tokens": Ints, "handle": str, "hold": NotRequired[bool | None]},
        "match_prefix": {"tokens": Ints, "handle": str},
        "match_request": {"tokens": Ints, "handle": str},
        "lock": {"handle": str},
        "unlock": {"handle": str},
        "allocate": {"n": int},
        "evict": {"n": int},
        "free": {"pages": int, "spoil": NotRequired[str | None]},
        "insert_prefix": _TREE_CALL,
        "cache_finished": _TREE_CALL,
        "cache_unfinished": _TREE_CALL | {"into": NotRequired[str | None]},
        "reset": {},
    },
    "block_pool": {
        "allocate": {"n": int},
        "touch": {"blocks": Ints},
        "free": {"blocks": Ints},
        "cache_full_blocks": _KEYS_OF_REQUEST | {"table": Ints, "cached": int, "full": int},
        "find_longest_prefix": _KEYS_OF_REQUEST | {"limit": int | None},
        "reset": {},
    },
    "paged_cache": {
        "allocate": {"sequence": int, "tokens": Ints, "keys": Size},
        "append": {"sequence": int, "tokens": Ints},
        "truncate": {"sequence": int, "tokens": int},
        "fork": {"sequence": int, "child": int, "tokens": int | None},
        "free": {"sequence": int},
        "finish": {"sequence": int},
        "register": {"sequence": int, "first": int, "blocks": Size},
        "register_as": {"sequence": int, "first": int, "keys": Ints},
        "lookup": {"tokens": Ints, "skip": int},
        "evict": {"blocks": int},
        "ref_count": {"block": int},
        "reset": {},
    },
    "kv_store": {
        "write": {"layer": int | None, "slots": Ints, "stamps": Ints},
        "gather": {"layer": int, "slots": Ints},
        "gather_host": {"layer": int, "slots": Ints},
        "copy_prefix": {"source": Ints, "target": Ints, "tokens": int},
        "copy_blocks": _MOVES,
        "swap_out": _MOVES,
        "swap_in": _MOVES,
        "blocks_within": {"budget": int},
    },
    "decode_graphs": {
        "admit": {"row": int, "stamps": Ints},
        "release": {"row": int},
        "widen": {"width": Size},
        "capture": {"lanes": int, "tried": list[str]},
        "begin_capture": {"lanes": int},
        "end_capture": {},
        "replay": {"lanes": int, "rows": Ints, "stamps": Ints},
        "collect": {},
    },
    "kv_streams": {
        "alloc": {},
        "free": {"block": int},
        "write": {"block": int, "stamp": int},
        "read": {"block": int},
        "copy": _MOVES,
        "swap_out": _MOVES,
        "swap_in": _MOVES,
        "hold": {"stream": str},
        "let_go": {"stream": str},
        "synchronize": {},
    },
    "kv_manager": {
        "admit": {"request": str, "tokens": Ints, "extra_key": _ANY_KEY, "n": int},
        "resume": {"request": str, "n": int},
        "chunk": {"request": str, "n": int},
        "decode": {"request": str, "token": int, "drafts": Ints},
        "withdraw": {"request": str},
        "preempt": {"request": str},
        "forward": {"accept": int | dict[str, int] | None, "abort": list[str], "reverse": bool | None},
        "finish": {"request": str},
        "abort": {"request": str},
        "fork": {"request": str, "child": str},
        "evict_all": {},
        "reset": {},
    },
    "kv_scheduler": {
        "add": {"request": str, "tokens": Ints, "extra_key": _ANY_KEY, "max_tokens": int, "priority": int | None},
        "schedule": {"tokens": Ints, "accept": NotRequired[int], "drafts": NotRequired[Ints]},
        "update": {},
        "abort": {"request": str},
        "draft": {"request": str, "tokens": Ints},
        "reset": {},
        "drain": {"tokens": Ints},
    },
}
