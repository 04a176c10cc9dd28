"""An account of the API server that is in no file."""

from __future__ import annotations

from collections.abc import Callable

from userspace_cni.base.errors import InvalidConfig, UserspaceError
from userspace_cni.kube.kubeconfig import LoadedKubeconfig, Signature


class GivenAccount:
    """What `read` says, which is asked again when the server refuses it; `said_by`: where it stands, for messages."""

    def __init__(self, said_by: str, read: Callable[[], LoadedKubeconfig]) -> None:
        self._said_by = said_by
        self._read = read

    def __str__(self) -> str:
        return self._said_by

    def unusable(self, message: str) -> UserspaceError:
        """The error for an account that cannot be used; `message` says why."""
        return InvalidConfig(message, f"look at {self._said_by}")

    def signature(self) -> Signature:
        """No file is looked at before a request."""
        return ()

    def load(self) -> LoadedKubeconfig:
        """Raises the errors of `read`."""
        return self._read()
