"""The base class of drivers. Each driver knows one type of step, and implements at least `apply`, `undo` and `check`.

The other methods have defaults for types that need nothing special.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from userspace_cni.attachment.steps.step import Step
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import Unavailable, UserspaceError

if TYPE_CHECKING:
    from userspace_cni.attachment.drift import Drift

S = TypeVar("S", bound=Step)
T = TypeVar("T")
Rest = Callable[[], None]
"""What remains to be awaited of a step that was begun. Raises as `apply` does."""


class StillTaken(Unavailable):
    """Raised by an undo: what the step took is still taken, so nothing that its attachment made before it can be undone now."""


class SharedReads:
    """What one look at the node shows, shared by all drivers that are asked in it: each thing is read once.

    `ports`: the marks of all ports of ours, by name; None while the switch cannot be asked. For one thread.
    """

    def __init__(self, ports: Mapping[str, Mapping[str, str]] | None = None) -> None:
        self.ports = ports
        self._seen: dict[object, Any] = {}
        self._failed: dict[object, UserspaceError] = {}
        self._reasons: set[int] = set()
        self.failures = 0
        """How many steps could not be looked at so far."""

    def is_new(self, error: UserspaceError) -> bool:
        """Whether no step failed for this reason before in this look."""
        self.failures += 1
        reason = hash((type(error), str(error)))
        new = reason not in self._reasons
        self._reasons.add(reason)
        return new

    def once(self, read: Callable[..., T], *given: object) -> T:
        """The result of `read`, to which `given` is given; it is called once in a look for all steps, also when it fails."""
        asked = (read, given) if given else read
        if asked in self._failed:
            raise self._failed[asked]
        if asked not in self._seen:
            try:
                self._seen[asked] = read(*given)
            except UserspaceError as error:
                self._failed[asked] = error
                raise
        seen: T = self._seen[asked]
        return seen


class Driver(ABC, Generic[S]):
    """Knows one type of step. Every method is idempotent, and safe to call again after the process died inside it.

    All raise only errors of `userspace_cni.base.errors`.
    """

    def prepare(self) -> None:
        """Import what `check` and `undo` need, before their time begins: on a node whose cores all poll that takes seconds."""

    @abstractmethod
    def apply(self, step: S, deadline: Deadline) -> Rest | None:
        """Make the step true, or begin to and return what remains: steps that do not depend on it go on meanwhile.

        Raises Unavailable for a failure that may pass by itself, StepFailed for any other.
        """

    def make_again(self, step: S, deadline: Deadline) -> Rest | None:
        """As `apply`, of a thing that was lost. It hardly waits for what another program is to make: a later look tries again."""
        return self.apply(step, deadline)

    @abstractmethod
    def undo(self, step: S, deadline: Deadline) -> None:
        """Remove what `apply` made, and nothing else. What is already absent is fine.

        Raises StillTaken where undoing the earlier steps would do harm before this one is undone.
        """

    @abstractmethod
    def check(self, step: S, deadline: Deadline) -> list[Drift]:
        """Every difference between the step and reality. Changes nothing."""

    def describe_effects(self, step: S) -> tuple[Sequence[str], Sequence[str]]:  # noqa: ARG002 - the interface
        """What `apply` does and what `undo` does, in lines for people; beyond the step's summary, where that says too little."""
        return (), ()

    def is_present(self, step: S) -> bool:  # noqa: ARG002 - the interface
        """Whether the thing of a shared step exists before an attachment of ours holds it (then we must not remove it)."""
        return False

    def is_lost(self, step: S, seen: SharedReads, deadline: Deadline) -> bool:  # noqa: ARG002 - the interface
        """Whether the thing is gone, closed or dead, and must be made again. What differs is for `find_changes`."""
        return False

    def find_changes(self, step: S, seen: SharedReads, deadline: Deadline) -> list[Drift]:  # noqa: ARG002 - the interface
        """What of `check` differs of a thing that is there, and `put_back` puts right: what another program has changed.

        Every pass asks it of every step, so it must cost little. Not in it is what lies in the pod, where others change it on
        purpose: docs/operations.md has the table.
        """
        return []

    @property
    def finds(self) -> bool:
        """Whether `is_lost` or `find_changes` can find anything."""
        return (type(self).is_lost, type(self).find_changes) != (Driver.is_lost, Driver.find_changes)

    def signs(self, step: S, seen: SharedReads, before: object) -> object:  # noqa: ARG002 - the interface
        """What changes before `is_lost` or `find_changes` could find something that they did not find when it was the same.

        It costs much less than they do. `before`: what it was when they found nothing, or None. None where only they can tell.
        """
        return None

    def put_back(self, step: S, deadline: Deadline) -> Rest | None:
        """Make what `find_changes` has told as the step says, and nothing else. Raises as `apply`."""
        return self.apply(step, deadline)

    def is_mounted(self, step: S, seen: SharedReads) -> bool:  # noqa: ARG002 - the interface
        """Whether a mount of the step exists, which keeps the kubelet from removing the directory of a pod that is gone."""
        return False

    def find_unseen(self, step: S, netns_inode: int, deadline: Deadline) -> list[Drift]:  # noqa: ARG002 - the interface
        """What processes in the pod's network namespace do not see of the thing. ADD did not make that, so CHECK does not ask."""
        return []
