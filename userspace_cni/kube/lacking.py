"""Decides when a thing that a list lacks is gone.

Pure, except for the clock that it is given. One list proves no absence: a server that was just restored, a proxy or a cache may
answer 200 and leave out some or all things. So a thing counts as gone when a second list lacks it, too. That list must be
requested at least `CONFIRM_S` after the first one came, and have a later version of the collection: the same version is the
same answer again. This holds for one thing and for all, and for things that were there before this process: until two such
lists have come, other things may exist.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from typing import Final

from userspace_cni.base.back_off import BackOff
from userspace_cni.kube.versions import is_later

CONFIRM_S: Final = 10.0
"""Seconds between two lists that prove together that a thing is gone."""
_PAUSE_MAX: Final = 6.0
"""A list that proves nothing, for its version is no later one, is asked for again after so many times these seconds at most."""


@dataclass(frozen=True)
class _Witness:
    """A list, as far as it can prove something: when it had come, and its version."""

    at: float
    version: str

    def is_borne_out(self, asked_at: float, version: str, confirm_s: float) -> bool:
        """Whether a list that was asked for then, of this version, proves with it that both are right."""
        return asked_at - self.at >= confirm_s and is_later(version, self.version)


class MissingObjects:
    """What lists have lacked of a collection, of which things are known by key. For one thread. `clock`: as time.monotonic."""

    def __init__(self, confirm_s: float = CONFIRM_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._confirm_s = confirm_s
        self._clock = clock
        self._lacked: dict[Hashable, _Witness] = {}
        self._first: _Witness | None = None
        self._pause_s = 0.0
        self.due = math.inf
        """When the next list is to be asked for, on the clock, so that it can prove something; infinity for never."""
        self.confirmed = False
        """Whether two lists have told what there is: then what is not known does not exist. Once true it stays so."""

    def note_list(self, known: Collection[Hashable], keys: Collection[Hashable], version: str, asked_at: float) -> set[Hashable]:
        """Take a complete list over, which was asked for at `asked_at`; which of the `known` things are gone by it."""
        witness = _Witness(self._clock(), version)
        lacked = {key: self._lacked.get(key) for key in known if key not in keys}
        gone = {key for key, had in lacked.items() if had and had.is_borne_out(asked_at, version, self._confirm_s)}
        self._lacked = {key: _older(had, witness) for key, had in lacked.items() if key not in gone}
        if not self.confirmed:
            self.confirmed = bool(self._first and self._first.is_borne_out(asked_at, version, self._confirm_s))
            self._first = _older(self._first, witness)
        self._set_due()
        return gone

    def note_event(self, key: Hashable) -> None:
        """An event has told of this thing, so it is known whether it is there."""
        self._lacked.pop(key, None)

    def put_off(self) -> None:
        """The list that is due could not be had."""
        self._pause_s = BackOff(self._confirm_s, _PAUSE_MAX * self._confirm_s).after(self._pause_s)
        self.due = self._clock() + self._pause_s

    @property
    def is_due(self) -> bool:
        """Whether it is time for the next list."""
        return self._clock() >= self.due

    def _set_due(self) -> None:
        open_since = [each.at for each in self._lacked.values()]
        if self._first and not self.confirmed:
            open_since.append(self._first.at)
        due = min(open_since, default=math.inf) + self._confirm_s
        if due > self._clock():
            self.due, self._pause_s = due, 0.0
        else:
            self.put_off()


def _older(had: _Witness | None, now: _Witness) -> _Witness:
    """Which of two lists is to be borne out: the first, unless the server has gone back behind it."""
    return had if had and (had.version == now.version or is_later(now.version, had.version)) else now
