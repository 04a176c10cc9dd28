"""What a storm of calls and faults must leave: computed from the answers alone, and compared with what is found.

Pure: it makes no call and reads no state, so that its own tests can show that it finds a leaked port, a lost attachment and a
lying answer. What belongs to an attachment is a set of sentences ("port p on br-a"); what is found on the node is another one.

An answer commits the system. ADD: success means attached, an error that nothing of it stays. DEL: success means that nothing
stays. After an error of DEL, and after a call that was killed before it answered, either may be so until the next DEL, but never
a half. All of this holds once things have settled: faults are over, and the agent has had its passes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Final, Literal

Presence = Literal["attached", "absent"]
Presences = frozenset[Presence]
ATTACHED: Final[Presences] = frozenset({"attached"})
ABSENT: Final[Presences] = frozenset({"absent"})
EITHER: Final[Presences] = ATTACHED | ABSENT
IMPOSSIBLE: Final[Presences] = frozenset()
KILLED: Final = -1
"""Takes the place of the code of an answer that never came."""
ATTACHED_ALREADY: Final = 101
A_BUG: Final = 999
BEFORE_S: Final = 3.0
"""Seconds: faults that ended this long before the first call shown are shown with it, and all later ones."""
LAST: Final = 30
"""Calls that a history shows."""


@dataclass(frozen=True, order=True)
class Name:
    """An attachment: container ID and interface name."""

    container: str
    ifname: str

    def __str__(self) -> str:
        return f"{self.container[:12]}-{self.ifname}"


@dataclass(frozen=True)
class Call:
    """A call and its answer. `code`: 0 for success, the CNI error's, or KILLED. Times are seconds of the storm."""

    verb: Literal["ADD", "DEL", "CHECK", "GC"]
    code: int
    began: float
    ended: float
    told: str = ""
    """How the call was made and its text, for people."""

    def __str__(self) -> str:
        answer = {0: "success", KILLED: "killed"}.get(self.code, f"error {self.code}")
        return f"{self.began:9.3f} {self.ended:9.3f}  {self.verb:5} {answer}  {self.told}"


@dataclass
class Event:
    """A fault, or another event beside calls; it is recorded when it begins, and changed when it ends."""

    what: str
    began: float
    ended: float = math.inf

    def __str__(self) -> str:
        return f"{self.began:9.3f} {self.ended:9.3f}  *** {self.what}"


@dataclass(frozen=True)
class Belongings:
    """Parts of an attachment: those that must be there while it is attached, and those that may be there too."""

    required: frozenset[str]
    optional: frozenset[str] = frozenset()

    @property
    def all(self) -> frozenset[str]:
        return self.required | self.optional


@dataclass(frozen=True)
class Violation:
    """A broken promise. `names`: the attachments concerned, as far as known."""

    what: str
    names: tuple[Name, ...] = ()
    history: str = ""

    def __str__(self) -> str:
        return f"{self.what}\n{self.history}".rstrip()


@dataclass
class _Known:
    presences: Presences = ABSENT
    unheard: bool = False
    """An ADD was killed since the last DEL that succeeded: its server may still finish or undo it, at any time."""
    vanished: bool = False
    story: list[Call | Event] = field(default_factory=list)


class Model:
    """Knowledge of every attachment. One thread at a time reports the calls for one attachment."""

    def __init__(self) -> None:
        self._known: dict[Name, _Known] = {}
        self.events: list[Event] = []
        """Events of the node as a whole."""

    def called(self, name: Name, *calls: Call) -> list[Violation]:
        """Record calls for an attachment, several if made at the same time; return violations in their answers."""
        known = self._known.setdefault(name, _Known())
        known.story += calls
        found = [self._violation("a bug by its own word, code 999", name) for call in calls if call.code == A_BUG]
        presences = possible_after(known, calls)
        if presences == IMPOSSIBLE:
            answers = " and ".join(f"{call.verb} with {call.code}" for call in calls)
            before = _words(known.presences)
            found.append(self._violation(f"{answers} cannot be true of an attachment that is {before}", name))
            presences = EITHER
        known.presences = presences
        if any(call.verb == "ADD" and call.code == KILLED for call in calls):
            known.unheard = True
        elif any(call.verb == "DEL" and call.code == 0 for call in calls):
            known.unheard = False
        return found

    def vanished(self, name: Name, at: float) -> None:
        """Record that its sandbox has gone without a DEL: nothing of it may stay."""
        known = self._known.setdefault(name, _Known())
        known.story.append(Event("its sandbox vanished", at, at))
        known.presences, known.vanished = ABSENT, True

    def collected(self, name: Name, call: Call) -> None:
        """Record that GC left it out while no call worked on it: nothing of it may stay."""
        known = self._known.setdefault(name, _Known())
        known.story.append(call)
        known.presences, known.unheard = ABSENT, False

    def happens(self, what: str, began: float) -> Event:
        """Record an event that concerns all attachments; the caller records its end, too."""
        event = Event(what, began)
        self.events.append(event)
        return event

    def presences(self, name: Name) -> Presences:
        """Presences that are possible for the attachment."""
        return self._known.get(name, _Known()).presences

    def names(self, presences: Presences) -> list[Name]:
        """The attachments with exactly these presences."""
        return sorted(name for name, known in list(self._known.items()) if known.presences == presences)

    def history(self, name: Name) -> str:
        """The calls of an attachment, with the faults around them, in lines."""
        story = self._known.get(name, _Known()).story[-LAST:]
        since = story[0].began - BEFORE_S if story else 0.0
        lines = sorted([*story, *(event for event in list(self.events) if event.ended > since)], key=lambda entry: entry.began)
        return "\n".join([f"  {name}: {_words(self.presences(name))}", *(f"    {entry}" for entry in lines)])

    def _violation(self, what: str, name: Name) -> Violation:
        return Violation(f"{name}: {what}", (name,), self.history(name))

    def judge(
        self, belongings: Mapping[Name, Belongings], status: frozenset[str], found: frozenset[str], why: Mapping[str, str]
    ) -> list[Violation]:
        """List every difference between what is found and what must be there once things have settled, by attachments.

        `belongings`: of every attachment so far; `status`: sentences without attachments; `why`: details of a sentence.
        """
        things: dict[tuple[Name, ...], list[str]] = {}
        for thing in differences(self._wanted(belongings, ATTACHED), self._wanted(belongings, EITHER), status, found):
            detail = f" ({why[thing]})" if thing in why else ""
            things.setdefault(concerned(thing, belongings), []).append(
                f"{'found' if thing in found else 'missing'}: {thing}{detail}"
            )
        for name in self.names(EITHER):
            mine = belongings[name].required.difference(*(each.all for other, each in belongings.items() if other != name))
            if half := mine & found:
                told = [f"half of it is left: {', '.join(sorted(half))}", f"and not: {', '.join(sorted(mine - found))}"]
                if half != mine:
                    things.setdefault((name,), []).extend(told)
        return [
            Violation("\n  ".join(told), names, "\n".join(self.history(name) for name in names)) for names, told in things.items()
        ]

    def _wanted(self, belongings: Mapping[Name, Belongings], presences: Presences) -> list[Belongings]:
        return [belongings[name] for name in self.names(presences)]


def possible_after(known: _Known, calls: Sequence[Call]) -> Presences:
    """Presences that are possible after calls that overlapped, in every order that their times allow."""
    after: set[Presence] = set()
    doubtful = known.unheard or known.presences == EITHER or any(_leaves_doubt(call) for call in calls)
    for order in permutations(calls):
        if any(later.ended < earlier.began for place, earlier in enumerate(order) for later in order[place + 1 :]):
            continue
        presences = known.presences
        for call in order:
            presences = frozenset(end for start in presences for end in effect(start, call, doubtful=doubtful))
        after |= presences
    return frozenset(after)


def _leaves_doubt(call: Call) -> bool:
    return (call.verb == "ADD" and call.code == KILLED) or (call.verb == "DEL" and call.code != 0)


def effect(start: Presence, call: Call, *, doubtful: bool) -> Presences:
    """Presences after a call with this answer to an attachment that is `start`; IMPOSSIBLE if the answer is not possible.

    `doubtful`: an earlier call may have attached it without an answer, or may have begun to undo it.
    """
    is_attached = start == "attached"
    match call.verb, call.code:
        case "ADD", 0:
            return IMPOSSIBLE if is_attached else ATTACHED
        case "ADD", code if code == ATTACHED_ALREADY:
            return EITHER if doubtful else ATTACHED if is_attached else IMPOSSIBLE
        case "ADD", code if code == KILLED and not is_attached:
            return EITHER
        case "DEL", 0:
            return ABSENT
        case (("DEL" | "GC"), _):  # GC leaves alone what another call works on, and need not tell
            return EITHER if is_attached else ABSENT
        case _:
            return ATTACHED if is_attached else ABSENT


def differences(
    attached: Iterable[Belongings], doubtful: Iterable[Belongings], status: frozenset[str], found: frozenset[str]
) -> list[str]:
    """The sentences of which either reality or the model knows nothing; `doubtful`: of what may be there or not."""
    required: set[str] = set(status)
    allowed: set[str] = set(status)
    for each in attached:
        required |= each.required
        allowed |= each.all
    for each in doubtful:
        allowed |= each.all
    return sorted((required - found) | (found - allowed))


def concerned(thing: str, belongings: Mapping[Name, Belongings]) -> tuple[Name, ...]:
    """The attachments that a sentence is about: those that it names, else those that it belongs to."""
    named = sorted(name for name in belongings if name.container[:12] in thing)
    exactly = [name for name in named if name.ifname in thing]
    return tuple(exactly or named or sorted(name for name, each in belongings.items() if thing in each.all))[:4]


def _words(presences: Presences) -> str:
    return " or ".join(sorted(presences)) or "impossible"
