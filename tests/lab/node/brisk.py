"""An agent under test with shorter pauses: a tenth of those on a node.

Only pauses that delay work are shorter. Limits on how long something may take, and those that prevent storms of requests, are
unchanged. So a test that waits for the agent's next pass sees the same result, sooner.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from userspace_cni.agent import due_looks, watchdog
from userspace_cni.attachment import last_looks
from userspace_cni.dra import claim_keeper
from userspace_cni.host.netlink import listening
from userspace_cni.kube import object_watch, watch
from userspace_cni.kube.lacking import CONFIRM_S as ON_A_NODE_S
from userspace_cni.kube.list_watch import ListWatch
from userspace_cni.network import concerns, network_keeper
from userspace_cni.node import bridge_room

CONFIRM_S = ON_A_NODE_S / 10
"""Seconds between two lists that together prove that a thing is gone."""
PAUSES: Final[tuple[tuple[Any, str], ...]] = (
    (watchdog, "BEAT_S"),
    (due_looks, "FIRST_S"),
    (network_keeper, "BEAT_S"),
    (concerns, "APART_S"),
    (listening, "AGAIN_S"),
    (claim_keeper, "LOOK_S"),
    (claim_keeper, "PROOF_S"),
    (bridge_room, "GIVEN_S"),
)


class _Sooner(ListWatch):
    def __init__(self, session: Any, collection: Any, store: Any, times: Any, *given: Any, **named: Any) -> None:
        back_off = replace(times.back_off, most_s=times.back_off.most_s / 10)
        super().__init__(session, collection, store, replace(times, confirm_s=CONFIRM_S, back_off=back_off), *given, **named)


def look_sooner() -> None:
    """Shorten the pauses in the agent's process, before it starts."""
    for module, name in PAUSES:
        vars(module)[name] /= 10
    for module in (object_watch, watch):
        vars(module)["ListWatch"] = _Sooner
    last_looks.EVERY = 1_000_000_000  # type: ignore[misc]  # what no sign tells is found by no test either
