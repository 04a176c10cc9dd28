"""Commits the transactions of several callers as one, because a daemon may go through all of its rows after each commit.

A group is what queued while the previous commit ran, and a moment longer where callers have announced that they come
(`Client.announce`): a single caller never waits. Each caller keeps:
- its own deadline: when it passes the caller is answered, and the group goes on for the others;
- its own error: a command that cannot be run is left out, and when the server refuses the group, or one member writes what
  another has verified, the members run one by one;
- its own view: no command sees what another one of the group is about to write. A Draft collects what they change together.
"""

from __future__ import annotations

import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import Unavailable, UserspaceError
from userspace_cni.ovsdb.database import Clause
from userspace_cni.ovsdb.draft import Draft
from userspace_cni.ovsdb.replica import CLOSED, SILENT, SLACK_SECONDS, LockNotHeld, Replica, SessionLost

S = TypeVar("S")

HUNG_SECONDS = 0.5
"""A session is given up when the server has been silent for so long and all callers have run out of time. A shorter silence
proves nothing; the probe of a session that lives long finds a hung server."""


class RefusedCommand(Exception):
    """ovsdb-server rejected the transaction; `error` and `details` are its own words (RFC 7047, 4.1.3)."""

    def __init__(self, error: str, details: str) -> None:
        super().__init__(f"{error}: {details}")
        self.error = error
        self.details = details


class Command(ABC, Generic[S]):
    """One action of a transaction, in a session of type S; its methods have the names of ovsdbapp's commands."""

    target: str = ""
    """The name of what it writes: two commands with one target never share a transaction."""

    def __init__(self, api: S) -> None:
        self.api = api

    def needs(self) -> frozenset[Clause]:
        """The rows that `run_idl` looks at; may depend on what is already replicated."""
        return frozenset()

    @abstractmethod
    def run_idl(self, txn: Draft) -> None:
        """Write to the draft; again when the database has changed meanwhile. Raises errors of ours only before it writes."""

    def post_commit(self, txn: Draft) -> None:
        """Called when the server has committed it."""

    def should_retry(self, refused: RefusedCommand) -> bool:  # noqa: ARG002 - for subclasses
        """Whether to run the command once more after the server rejected it alone."""
        return False


class Member:
    """One caller's commands, and its wait for them."""

    def __init__(self, commands: Iterable[Command[Any]], deadline: Deadline) -> None:
        self.commands: Sequence[Command[Any]] = tuple(commands)
        self.deadline = deadline
        self.certain = False
        self.begun = False
        self._answered = threading.Event()
        self._error: BaseException | None = None

    @property
    def targets(self) -> frozenset[str]:
        """Names of what the commands write."""
        return frozenset(each.target for each in self.commands if each.target)

    @property
    def answered(self) -> bool:
        return self._answered.is_set()

    def answer(self, error: BaseException | None = None) -> None:
        """Give the caller its answer, `error` or success; only the first call counts."""
        if not self.answered:
            self._error = error
            self._answered.set()

    def wait(self, remote: str) -> None:
        """Wait for the answer; raises its error."""
        if not self._answered.wait(self.deadline.remaining() + SLACK_SECONDS):
            begun = "; whether the transaction was done is unknown" if self.begun else ""
            raise Unavailable(f"OVSDB is busy with other transactions{begun}", f"is ovsdb-server at {remote} overloaded?")
        if self._error is not None:
            raise self._error


class CommitConnection(Protocol):
    """The connection, as a commit needs it. `on_group` is told how many of the members that were written change rows.

    `patience_s`: how long the server may say nothing while a commit waits for it, None where there is no other server to ask;
    `served`: whether there was a commit.
    """

    replica: Replica[Any]
    is_running: bool
    patience_s: float | None
    served: bool
    on_group: Callable[[int], None]

    def await_message(self, seconds: float) -> None:
        """Release the lock, and wait until the connection has something to read or write, `seconds` at most."""


class Commit:
    """The commit of one group. Runs on the connection's thread, which holds the lock."""

    def __init__(self, link: CommitConnection, members: Sequence[Member]) -> None:
        self._link = link
        self._replica = link.replica
        self._members = list(members)
        self._began = time.monotonic()

    def run(self) -> None:
        """Commit until every member is answered."""
        try:
            while self._in_time():
                self._replicate()
                draft, written = self._compose()
                seen = self._replica.change_seqno
                if all(each.answered for each in self._members):
                    draft.abort()
                elif self._commit(draft):
                    self._done(draft, written)
                elif self._replica.change_seqno == seen and len(self._members) > 1:
                    # updates come before the answer: so no other session has changed a verified row, but a member of this group
                    self._run_alone()
                else:  # a verified row has changed: its update must be on the way
                    while self._replica.change_seqno == seen:
                        self._await_message()
        except RefusedCommand as refused:
            self._retry_alone(refused)
        except Exception as error:  # noqa: BLE001 - every caller must be answered, and the thread goes on
            if self._replica.txn is not None:
                self._replica.txn.abort()
            for each in self._members:
                each.answer(error)
            if not isinstance(error, UserspaceError):
                self._replica.lose(f"a bug here: {error!r}")

    def _in_time(self) -> bool:
        """Whether a member is left. Members without time are answered and left out: their caller may have gone."""
        self._members = [each for each in self._members if not each.answered]
        for each in self._members:
            if not each.deadline.remaining():
                each.answer(each.deadline.passed("a transaction with OVSDB"))
        self._members = [each for each in self._members if not each.answered]
        for each in self._members:
            each.begun = True
        return bool(self._members)

    def _compose(self, left_out: tuple[Member, ...] = ()) -> tuple[Draft, list[Member]]:
        """A transaction of all members whose commands can be run, but those `left_out`, and these members."""
        draft, written = Draft(self._replica), []
        for member in (each for each in self._members if each not in left_out):
            ran = 0
            try:
                for each in member.commands:
                    each.run_idl(draft)
                    ran += 1
                written.append(member)
            except UserspaceError as error:
                if member.certain:
                    member.answer(error)
                if ran:  # its commands before that one have written, also into parts, which others write to
                    draft.abort()
                    return self._compose((*left_out, member))
            except Exception as error:  # noqa: BLE001 - a bug in one must not fail the others
                draft.abort()
                member.answer(error)
                self._members.remove(member)
                return self._compose(left_out)
        draft.complete()
        return draft, written

    def _done(self, draft: Draft, written: list[Member]) -> None:
        self._link.served = True
        writers = sum(bool(each.targets) for each in written)
        if writers:
            self._link.on_group(writers)
        for member in written:
            for each in member.commands:
                each.post_commit(draft)
            member.answer()
        # The errors of the others may come from an outdated replica; it is up to date now, so they run once more.
        for member in self._members:
            member.certain = True

    def _retry_alone(self, refused: RefusedCommand) -> None:
        """Run the members one by one: the server does not say whose command it refused. A single member gets the refusal."""
        waiting = [each for each in self._members if not each.answered]
        if len(waiting) == 1 and not any(each.should_retry(refused) for each in waiting[0].commands):
            waiting[0].answer(refused)
        self._run_alone()

    def _run_alone(self) -> None:
        for each in self._members:
            if not each.answered:
                Commit(self._link, [each]).run()

    def _commit(self, draft: Draft) -> bool:
        """Send the transaction and wait for the outcome; False if it is to be composed anew. Raises Refused."""
        while (status := draft.commit()) == draft.INCOMPLETE:
            self._await_message()
        self._replica.require()
        if status == draft.NOT_LOCKED:
            raise self._not_locked()
        if status == draft.ERROR:
            raise _refused(draft.get_error())
        return bool(status == draft.SUCCESS)

    def _replicate(self) -> None:
        """Fetch the rows that the commands need. Repeats, because a row may show that more are needed."""
        replica = self._replica
        while True:
            replica.require()
            if replica.everything:
                return
            replica.choose(frozenset().union(*(each.needs() for member in self._members for each in member.commands)))
            if replica.chosen:
                return
            while not replica.chosen:
                replica.run()
                replica.require()
                if not replica.chosen:
                    self._await_message()

    def _await_message(self) -> None:
        """Wait for a message of the server, and answer members that run out of time. Without members the session is given up."""
        waiting = [each for each in self._members if not each.answered]
        for each in waiting:
            if not each.deadline.remaining():
                each.answer(self._no_answer())
        waiting = [each for each in waiting if not each.answered]
        if not waiting:
            if not self._replica.everything or time.monotonic() - self._began >= HUNG_SECONDS:
                self._replica.lose(SILENT)
            raise self._no_answer()
        if not self._link.is_running:
            raise SessionLost(CLOSED)
        patience_s = self._link.patience_s
        if patience_s is not None and self._replica.is_silent(self._began, patience_s):
            self._replica.lose(SILENT)
        self._replica.require()
        self._link.await_message(min(SLACK_SECONDS, *(each.deadline.remaining() for each in waiting)))
        self._replica.run()
        self._replica.require()

    def _not_locked(self) -> LockNotHeld:
        lock = self._replica.database.lock
        message = f"OVSDB at {self._replica.session_name()}: another session has lock {lock.name if lock else ''!r}"
        return LockNotHeld(message, "one program writes at a time; this one waits for the lock")

    def _no_answer(self) -> Unavailable:
        message = f"OVSDB at {self._replica.session_name()} does not answer; whether the transaction was done is unknown"
        return Unavailable(message, "is ovsdb-server stopped or overloaded?")


def split_by_target(members: Sequence[Member]) -> tuple[list[Member], list[Member]]:
    """The members that can share a transaction, in order, and those that must wait, because a target is written once only."""
    group: list[Member] = []
    later: list[Member] = []
    taken: set[str] = set()
    for each in members:
        (later if taken & each.targets else group).append(each)
        taken |= each.targets
    return group, later


def _refused(error: str) -> RefusedCommand:
    try:
        answer = json.loads(error)
        return RefusedCommand(str(answer.get("error", "error")), str(answer.get("details", "")))
    except (ValueError, AttributeError):
        return RefusedCommand("error", error)
