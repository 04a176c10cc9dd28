"""How many ports a bridge has room for, and who has them: claims (DRA), and the pods to which the kubelet gave devices.

Scheduler and kubelet count for themselves, each its own kind, by what this node tells them: so each is told of less when the
other kind has more. Between a decision of one and the news for the other, both may give the last room away. Then what comes
second is refused here.

The kubelet alone knows which devices it has given. It is asked from time to time, and what it was just told to take counts
meanwhile. While it has not answered, a claim is not kept waiting for its word. Where no devices are offered there is nothing to
compare with, and the kubelet is not asked.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from userspace_cni.base.errors import Unavailable, UserspaceError
from userspace_cni.host.files.device_directories import number_of, resource_of

GIVEN_S: Final = 30.0
"""Seconds for which the kubelet's word about devices is believed, and in which a device just given has to appear in it."""


@dataclass(frozen=True)
class ClaimedPort:
    """A port that a claim has: the claim's UID, and which device of the slices it is."""

    uid: str
    bridge: str
    device: str = ""


Given = Mapping[str, tuple[str, ...]]
"""IDs of devices by resource, as `podresources.given_devices` has them."""


class BridgeRoom:
    """The room of each bridge, `size` ports. Safe to use from any thread.

    `claims` lists the ports of prepared claims; `ask` asks the kubelet for the devices that it has given, None where none are
    offered. It may raise Unavailable.
    """

    def __init__(self, size: int, claims: Callable[[], Iterable[ClaimedPort]], ask: Callable[[], Given] | None) -> None:
        self.size = size
        self._claims = claims
        self._ask = ask
        self._lock = threading.Lock()
        self._deciding = threading.Lock()
        """Held while it is decided who has room: neither a question to the kubelet nor a step is made meanwhile."""
        self._given: Given | None = None if ask else {}
        self._asked = 0.0
        self._lately: dict[tuple[str, str], float] = {}
        """When devices were given that the kubelet may not tell of yet, by resource and device."""
        self._begun: dict[str, tuple[ClaimedPort, ...]] = {}
        """The ports of claims that are being prepared, by UID; under `_deciding`."""
        self._claimed: Mapping[str, tuple[str, ...]] = {}
        self._changes = 0
        self._listed_changes, self._listed_at = -1, 0.0
        """Which changes the last list of claims has, and when it was made."""

    def refresh(self) -> None:
        """Ask the kubelet, if its word is old. Raises Unavailable; then what was known stays."""
        if self._ask is None or (self._given is not None and time.monotonic() - self._asked < GIVEN_S):
            return
        asked = time.monotonic()
        given = self._ask()
        with self._lock:
            self._given, self._asked = given, asked
            self._lately = {
                key: at for key, at in self._lately.items() if key[1] not in given.get(key[0], ()) and asked - at < GIVEN_S
            }

    def given(self, bridge: str) -> frozenset[str] | None:
        """The bridge's devices that pods have by the device plugin; None while the kubelet has not said it."""
        resource = resource_of(bridge)
        with self._lock:
            if self._given is None:
                return None
            lately = {device for of, device in self._lately if of == resource}
            listed = (each for each in self._given.get(resource, ()) if number_of(bridge, each) is not None)
        return frozenset(listed) | lately

    def claimed(self) -> Mapping[str, tuple[str, ...]]:
        """The devices of ports that claims have, by bridge, each as often as it is claimed. Listed anew after `forget_claims`; as
        they were while the records cannot be read.
        """
        with self._lock:
            known, changes, listed = self._claimed, self._changes, self._listed_at
        if changes == self._listed_changes and time.monotonic() - listed < GIVEN_S:
            return known
        found: dict[str, list[str]] = {}
        at = time.monotonic()
        try:
            for each in self._claims():
                found.setdefault(each.bridge, []).append(each.device)
        except UserspaceError:
            return known
        known = {bridge: tuple(sorted(devices)) for bridge, devices in found.items()}
        with self._lock:
            self._claimed, self._listed_at, self._listed_changes = known, at, changes
        return known

    def forget_claims(self) -> None:
        """Claims have been prepared or unprepared. Never waits."""
        with self._lock:
            self._changes += 1

    def closed(self, bridge: str, offered: Sequence[str]) -> frozenset[str]:
        """Those of the offered devices that no pod may get now, because claims have their room; none that a pod has."""
        over = len(self.claimed().get(bridge, ())) + len(offered) - self.size
        if over <= 0:
            return frozenset()
        given = self.given(bridge) or frozenset()
        return frozenset([each for each in reversed(offered) if each not in given][:over])

    @contextmanager
    def admit(self, uid: str, ports: Iterable[ClaimedPort]) -> Iterator[None]:
        """Let a claim have these ports, which it records meanwhile. Raises Unavailable for a bridge without room."""
        wanted = tuple(ports)
        if self._ask is not None:
            with suppress(UserspaceError):  # what was known counts: a claim must not wait for the kubelet that waits for it
                self.refresh()
            with self._deciding:
                self._require_all(uid, wanted)
                self._begun[uid] = wanted
        try:
            yield
        finally:
            with self._deciding:
                self._begun.pop(uid, None)
            self.forget_claims()

    def give(self, bridge: str, devices: Iterable[str]) -> None:
        """Let a pod have these devices, of which the kubelet has decided. Raises Unavailable where claims have the room."""
        asked = set(devices)
        with self._deciding:
            others = (self.given(bridge) or frozenset()) - asked
            self._require(bridge, len(asked), self._count_claimed("")[bridge], len(others))
            with self._lock:
                self._lately |= {(resource_of(bridge), device): time.monotonic() for device in asked}

    def _require_all(self, uid: str, wanted: Sequence[ClaimedPort]) -> None:
        """Raises Unavailable, unless the claim has as many ports of the bridge already: they are there, room or not."""
        claimed = self._count_claimed(uid)
        own = Counter(each.bridge for each in self._claims() if each.uid == uid)
        for bridge, number in Counter(each.bridge for each in wanted).items():
            if number > own[bridge]:
                self._require(bridge, number, claimed[bridge], len(self.given(bridge) or ()))

    def _count_claimed(self, uid: str) -> Counter[str]:
        """How many ports of each bridge claims have, or are about to get, but for the claim `uid`."""
        recorded = [each for each in self._claims() if each.uid not in self._begun]
        begun = [each for ports in self._begun.values() for each in ports]
        return Counter(each.bridge for each in (*recorded, *begun) if each.uid != uid)

    def _require(self, bridge: str, wanted: int, claimed: int, given: int) -> None:
        if claimed + given + wanted > self.size:
            taken = f"of its {self.size} ports claims have {claimed}, and pods {given} as devices"
            raise Unavailable(
                f"bridge {bridge} has no room for {wanted} more: {taken}",
                "it becomes free with a pod that ends; settings ports_per_bridge and devices_per_bridge",
            )
