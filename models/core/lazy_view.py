"""A lockstep model that looks at the reference only when its view is asked for."""

from __future__ import annotations

from typing import Any, TypeVar

from kvlockstep.models.core.calls import call_target
from kvlockstep.models.core.lockstep import LockstepModel
from kvlockstep.models.core.model import Scope
from kvlockstep.models.core.op import Op

S = TypeVar("S", bound=Scope)


class LazyViewModel(LockstepModel[S]):
    """For a view that is costly: most redone steps ask for none of it.

    `holds_after` must not need the view from before the operation, which a redone step has not looked at.
    """

    _view: Any = None

    @property
    def view(self) -> Any:
        """What the reference shows."""
        if self._view is None:
            self._view = self.observe(self.reference)
        return self._view

    @view.setter
    def view(self, view: Any) -> None:
        self._view = view

    def step(self, op: Op) -> Any:
        self._view = self.view
        return super().step(op)

    def redo(self, op: Op) -> None:
        outcome = call_target(self.perform, self.reference, op)
        call_target(self.perform, self.target, op)
        self.held = self.holds_after(self.held, op, outcome)
        self._view = None
