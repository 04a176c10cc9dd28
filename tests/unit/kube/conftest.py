"""What tests of the room `kube` share."""

from __future__ import annotations

import pytest

from tests.lab.switch.switch import FOR_EVER_S
from userspace_cni.kube import credentials, list_watch


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests have no time limit of their own: one that hangs ends at its caller's deadline, or not within a test's time."""
    for module in (credentials, list_watch):
        monkeypatch.setattr(module, "REQUEST_LIMIT_S", FOR_EVER_S)
