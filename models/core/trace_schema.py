"""The check of a trace against its contract: scopes and operations, of values that anybody may have written.

Every function raises ValueError with a sentence that names the parameter or the argument.
"""

from __future__ import annotations

import math
import types
from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import Any, NotRequired, Union, get_args, get_origin

from kvlockstep.models.core.model import Model, Scope
from kvlockstep.models.core.op import Op
from kvlockstep.models.core.operations import MOST_MADE, Size
from kvlockstep.models.core.safe_text import safe_text

# Tensors and arrays of targets hold 64 bits.
MOST = 2**63 - 1
# A larger size in a header would only use up the memory and the time of the replay. Recorded engines have
# large pools, though of fewer blocks than slots.
MOST_SLOTS = 2**14
MOST_SLOTS_OF = {"kv_manager": 2**22, "kv_scheduler": 2**22}
MOST_BLOCKS = 2**20
# What memory is made of: the product is bounded as well as each of them.
SIZES = frozenset(
    (
        "slots",
        "units",
        "positions",
        "blocks",
        "block_size",
        "pages",
        "page_size",
        "layers",
        "heads",
        "head_dim",
        "rows",
        "width",
    )
)
NAMES = {
    int: "a whole number",
    Size: f"a whole number up to {MOST_MADE:,}",
    float: "a number",
    str: "a text",
    bool: "true or false",
    types.NoneType: "null",
    list: "a list",
    dict: "an object",
}
LONGEST_SHOWN = 60
OPTIONAL: Any = NotRequired


def fits(value: Any, kind: Any) -> bool:
    """Tells whether a value has a type, as JSON has it: numbers are whole, of 64 bits, and no bool."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return any(fits(value, one) for one in get_args(kind))
    if origin is list:
        return isinstance(value, list) and all(fits(element, get_args(kind)[0]) for element in value)
    if origin is tuple:
        return isinstance(value, (list, tuple)) and _fits_tuple(value, get_args(kind))
    if origin is dict:
        key_kind, value_kind = get_args(kind)
        return isinstance(value, dict) and all(fits(k, key_kind) and fits(v, value_kind) for k, v in value.items())
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and -MOST <= value <= MOST
    if kind is Size:
        return fits(value, int) and -MOST_MADE <= value <= MOST_MADE
    if kind is float:
        return isinstance(value, float) and math.isfinite(value)
    return kind is Any or isinstance(value, kind)


def _fits_tuple(values: Sequence[Any], kinds: tuple[Any, ...]) -> bool:
    if len(kinds) == 2 and kinds[1] is ...:
        return all(fits(value, kinds[0]) for value in values)
    return len(values) == len(kinds) and all(map(fits, values, kinds))


def shown_kind(kind: Any) -> str:
    """A type in the words of a message."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(map(shown_kind, args))
    if origin is tuple and args[1:] != (...,):
        return f"a list of {', '.join(map(shown_kind, args))}"
    if origin in (list, tuple):
        return f"a list, each {shown_kind(args[0])}"
    if origin is dict:
        return f"an object, each value {shown_kind(args[1])}"
    return NAMES.get(kind, str(kind))


def shown(value: Any) -> str:
    """A value in a message, cut if it is long."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # too deep, or a number with too many digits
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "..."


def require_kind(name: str, value: Any, kind: Any) -> None:
    """Raises ValueError unless the value named so has this type."""
    if not fits(value, kind):
        raise ValueError(f"{name} is {shown(value)}, not {shown_kind(kind)}")


def op_of(model_type: type[Model[Any]], name: Any, args: Any) -> Op:
    """The operation of a model, with lists inside of lists as tuples, which is how models propose them."""
    known = model_type.operations
    if not isinstance(name, str) or name not in known:
        raise ValueError(f"{model_type.contract} has no operation {shown(name)}; it has {', '.join(known)}")
    require_kind(f"args of {name}", args, dict)
    kinds = known[name]
    if unknown := [argument for argument in args if argument not in kinds]:
        raise ValueError(f"{name} has no argument {shown(unknown[0])}; it has {', '.join(kinds) or 'none'}")
    taken = {argument: _as_proposed(value) for argument, value in args.items()}
    for argument, kind in kinds.items():
        optional = get_origin(kind) is OPTIONAL
        if argument in taken:
            require_kind(f"{argument} of {name}", taken[argument], get_args(kind)[0] if optional else kind)
        elif not optional:
            raise ValueError(f"{name} lacks the argument {argument}")
        if not _printable(taken.get(argument)):
            raise ValueError(f"{argument} of {name} is {shown(taken[argument])}, which has characters that do harm")
    return Op(name, **taken)


def _printable(value: Any) -> bool:
    """Tells whether the texts in a value are fit to be names; made fit, two different ones could become the same."""
    if isinstance(value, (list, tuple)):
        return all(map(_printable, value))
    if isinstance(value, dict):
        return all(map(_printable, (*value, *value.values())))
    return not isinstance(value, str) or safe_text(value) == value


def _as_proposed(value: Any) -> Any:
    return [_tuples(element) for element in value] if isinstance(value, list) else value


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def scope_of(model_type: type[Model[Any]], values: Any) -> Scope:
    """The scope of a model with these parameters, each of a type and a size that a model can be made with."""
    require_kind("the scope", values, dict)
    kinds = model_type.scope_type.parameters()
    if unknown := [name for name in values if name not in kinds]:
        raise ValueError(f"the scope has an unknown parameter {shown(unknown[0])}; known: {', '.join(kinds)}")
    if missing := [f.name for f in fields(model_type.scope_type) if f.default is MISSING and f.name not in values]:
        raise ValueError(f"the scope lacks {', '.join(missing)}")
    for name, value in values.items():
        require_kind(f"{name} of the scope", value, kinds[name])
    scope = model_type.scope_type.from_json(values)
    _require_size(model_type, scope)
    return scope


def _require_size(model_type: type[Model[Any]], scope: Scope) -> None:
    """Raises ValueError for sizes and choices that no scope of the model is like, and for a memory that is too large.

    A size is at least 1, or 0 where the model itself proposes 0; a choice is one that the model proposes. None of
    the model's own scopes is too large.
    """
    own = (*model_type.scopes, *model_type.small_scopes)
    most = max(MOST_SLOTS_OF.get(model_type.contract, MOST_SLOTS), *map(_slots_of, own))
    for name, kind in model_type.scope_type.parameters().items():
        if kind is bool:
            continue
        value = getattr(scope, name)
        if kind is str or name == "shape":
            known = _proposed(model_type, name)
            if value not in known:
                raise ValueError(f"{name} of the scope is {shown(value)}, not one of {', '.join(map(str, known))}")
        elif kind is int:
            least = min(1, *_proposed(model_type, name))
            limit = min(most, MOST_BLOCKS) if name in SIZES else most
            if not least <= value <= limit:
                raise ValueError(f"{name} of the scope is {value}; it must be from {least} to {limit:,}")
    if (total := _slots_of(scope)) > most:
        raise ValueError(f"the scope asks for {total:,} slots; at most {most:,} are played")


def _slots_of(scope: Scope) -> int:
    return math.prod(max(1, getattr(scope, name)) for name in scope.parameters() if name in SIZES)


def _proposed(model_type: type[Model[Any]], name: str) -> tuple[Any, ...]:
    """The values of a parameter in the scopes of a model."""
    return tuple(dict.fromkeys(getattr(scope, name) for scope in (*model_type.scopes, *model_type.small_scopes)))
