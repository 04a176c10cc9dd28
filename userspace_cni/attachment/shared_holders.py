"""What attachments share in one place, as the store has it: who holds what, and what we made. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from userspace_cni.attachment.records import step_from_json
from userspace_cni.attachment.steps import Step
from userspace_cni.attachment.stored_form import MalformedRecord


@dataclass(frozen=True)
class SharedHolders:
    """What attachments share in one place: the keys of the things that we made, and the steps of each holder by record key."""

    made: frozenset[str] = frozenset()
    holders: Mapping[str, tuple[Step, ...]] = field(default_factory=dict)

    def with_holder(self, key: str, steps: tuple[Step, ...], made: Iterable[str]) -> SharedHolders:
        """This place with the attachment `key` as a further holder, and these things as made by us."""
        return SharedHolders(self.made.union(made), {**self.holders, key: steps})

    def without_holder(self, key: str) -> SharedHolders:
        """This place without the holder `key`; things without a holder are no longer listed as made by us."""
        holders = {other: steps for other, steps in self.holders.items() if other != key}
        return SharedHolders(self.made & things_of(holders), holders)

    def find_holders(self) -> Mapping[str, str]:
        """The first holder of each thing that one holds, by the thing's key."""
        held = [(thing, key) for key, steps in self.holders.items() for thing in keys_of(steps)]
        return dict(reversed(held))


def read_made(raw: Mapping[str, Any]) -> frozenset[str]:
    made = raw.get("made")
    if not (isinstance(made, list) and all(isinstance(thing, str) for thing in made)):
        raise MalformedRecord("'made' is not a list of names")
    return frozenset(made)


def read_shared(raw: Mapping[str, Any]) -> SharedHolders:
    """The inverse of `write_shared`, which never stores a place without holders, nor a holder without steps."""
    made, holders = read_made(raw), raw.get("holders")
    if not (isinstance(holders, dict) and holders and all(isinstance(steps, list) and steps for steps in holders.values())):
        raise MalformedRecord("'holders' are not lists of steps by attachment")
    return SharedHolders(made, {key: tuple(map(step_from_json, steps)) for key, steps in holders.items()})


def things_of(holders: Mapping[str, tuple[Step, ...]]) -> frozenset[str]:
    return frozenset(thing for steps in holders.values() for thing in keys_of(steps))


def keys_of(steps: Iterable[Step]) -> set[str]:
    return {step.resource.key for step in steps if step.resource}
