"""What knows one type of step. Every driver is one of these, and answers at least for `apply`, `undo` and `check`.

The rest has an answer for types of which nothing special is true.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from userspace_cni.attachment.steps.step import Step
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import UserspaceError

if TYPE_CHECKING:
    from userspace_cni.attachment.drift import Drift

S = TypeVar("S", bound=Step)
T = TypeVar("T")
Rest = Callable[[], None]
"""What remains to be awaited of a step that was begun. Raises as `apply` does."""


class Seen:
    """What one look at the node shows, to all drivers that are asked in it: what one of them reads is read once.

    `ports`: the marks of all ports of ours, by name; None while the switch cannot be asked. For one thread.
    """

    def __init__(self, ports: Mapping[str, Mapping[str, str]] | None = None) -> None:
        self.ports = ports
        self._seen: dict[Callable[[], Any], Any] = {}
        self._failed: dict[Callable[[], Any], UserspaceError] = {}
        self._told: list[UserspaceError] = []

    def is_news(self, error: UserspaceError) -> bool:
        """Whether it is the first time that a step fails for this very reason."""
        news = error not in self._told
        self._told.append(error)
        return news

    def once(self, read: Callable[[], T]) -> T:
        """What `read` gives, which is the same for every step; it is called once in a look, also when it fails."""
        if read in self._failed:
            raise self._failed[read]
        if read not in self._seen:
            try:
                self._seen[read] = read()
            except UserspaceError as error:
                self._failed[read] = error
                raise
        seen: T = self._seen[read]
        return seen


class Driver(ABC, Generic[S]):
    """Knows one type of step. Every method is idempotent, and safe to call again after the process died inside it.

    All raise only errors of `userspace_cni.base.errors`.
    """

    @abstractmethod
    def apply(self, step: S, deadline: Deadline) -> Rest | None:
        """Make it true, or begin to and return what remains: steps that do not depend on it go on meanwhile.

        Raises Unavailable for what may pass by itself, a StepFailed otherwise.
        """

    @abstractmethod
    def undo(self, step: S, deadline: Deadline) -> None:
        """Remove what `apply` made, and nothing else. What is already absent is fine."""

    @abstractmethod
    def check(self, step: S, deadline: Deadline) -> list[Drift]:
        """Every difference between the step and reality. Changes nothing."""

    def present(self, step: S) -> bool:  # noqa: ARG002 - the interface
        """Whether the thing behind a shared step exists before an attachment of ours holds it (then it is not ours to remove)."""
        return False

    def lost(self, step: S, seen: Seen, deadline: Deadline) -> bool:  # noqa: ARG002 - the interface
        """Whether it is gone, closed or dead, and is to be made again; what is there and not as it was made, `check` tells."""
        return False

    def mounted(self, step: S, seen: Seen) -> bool:  # noqa: ARG002 - the interface
        """Whether it has a mount there, which keeps the kubelet from removing the directory of a pod that is gone."""
        return False

    def unseen(self, step: S, netns_inode: int, deadline: Deadline) -> list[Drift]:  # noqa: ARG002 - the interface
        """What of it the processes in the pod's network namespace do not see. No ADD made that, so CHECK does not ask."""
        return []
