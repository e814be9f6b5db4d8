"""The errors that every contract shares."""

from __future__ import annotations


class ContractError(Exception):
    """Base of every error that a contract names. Anything else a target raises is a violation."""


class InvalidArgument(ContractError, ValueError):
    """An argument is malformed: negative, too long, of the wrong type."""


class UnknownSlot(ContractError, ValueError):
    """The slot or block number does not belong to this pool."""


class NotHeld(ContractError, ValueError):
    """The slot or block is free, so it cannot be freed or released."""


class NotFree(ContractError, ValueError):
    """The slot is held, so it cannot be occupied."""


class NotCached(ContractError, ValueError):
    """The prefix is not an entry of the cache."""


class NotPinned(ContractError, ValueError):
    """The prefix has no pin left to release."""


class Pinned(ContractError, RuntimeError):
    """A pinned entry would be lost."""


class OutOfSlots(ContractError, RuntimeError):
    """Fewer slots or blocks are free than were asked for."""


class CaptureActive(ContractError, RuntimeError):
    """The operation is not allowed while a graph is being captured."""
