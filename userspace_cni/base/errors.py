"""The error tree, and the one place that knows CNI error codes.

    UserspaceError                      what we tried: what happened; what to look at
    ├── BadRequest                      the caller's input; nothing was changed
    │   ├── UnsupportedVersion      1
    │   ├── UnsupportedField        2   understood, but not possible here
    │   ├── BadEnvironment          4   a CNI_* variable
    │   ├── UnreadableInput         5   stdin could not be read
    │   ├── Undecodable             6   not JSON, or a field of the wrong JSON type
    │   ├── InvalidConfig           7   decodes, but is not valid
    │   │   ├── BridgeRefused       7   the administrator's rules do not allow the bridge or its VLANs
    │   │   ├── MirrorRefused       7   nor the part in a mirror
    │   │   ├── LogicalPortRefused  7   nor the logical port of OVN
    │   │   └── LinkNameTaken       7   a link where the switch makes its own has the name, or OVS keeps the name for itself
    │   └── HostNamespace           8   CNI_NETNS is the host's own
    ├── ContainerGone               3   the sandbox vanished before anything was done
    ├── Unavailable                11   transient: a lock, OVS, the API server, threads or descriptors; try again later
    │   └── Interrupted            11   SIGTERM or SIGINT
    ├── NotServing             50, 51   STATUS only
    ├── ObjectRefused             100   the API server took or gave no object: not allowed, not valid, no such resource
    │   ├── NoSuchObject          100   there is none
    │   ├── NotAllowed            100   for this account
    │   └── Conflict              100   another writer was first: read it again
    ├── StepFailed               100…   one step of an attachment could not be applied or undone
    │   ├── AlreadyAttached       101
    │   ├── NotAttached           102
    │   ├── Drifted               103   CHECK found something else than what was made
    │   ├── RowsRefused           104   ovsdb-server rejected what was written
    │   │   └── SwitchRefused     104   or OVS took the rows and reports an error
    │   ├── NameTaken             105   the port is not this container's
    │   ├── DirectoryRefused      106   a directory, mount, socket or file of the pod
    │   │   └── VolumeMissing     106   the pod has no place in which it would see its socket
    │   ├── NoteRefused           107   the pod's annotations
    │   ├── DelegateBroken        108   the IPAM plugin gave no usable answer
    │   ├── RecordRefused         109   our own store cannot be written
    │   └── Incomplete            110   several steps failed while undoing; each in `details`
    ├── UnknownProtocol           111   caller and agent do not speak the same protocol
    └── DelegateFailed            any   the IPAM plugin's own error, passed on unchanged

CNI SPEC 1.1.0, section "Error": 0 to 99 are the specification's, 100+ the plugin's own. Code 8 is skel's. Anything that is not
in this tree is a bug and is answered with 999.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from typing import ClassVar, Final

from userspace_cni.base.host_paths import as_host_names

UNEXPECTED = 999
PASSING: Final = frozenset(
    {
        errno.EAGAIN,
        errno.EINTR,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOBUFS,
        errno.ENOLCK,
        errno.ENOMEM,
        errno.ETIMEDOUT,
    }
)
"""Errors that pass: the kernel lacks a resource now and will have it again. What was tried is Unavailable meanwhile."""
_SHOWN_MAX = 4096
_QUOTED_MAX = 200


class UserspaceError(Exception):
    """An error with a CNI code.

    `message` says what was tried and what happened; `details` says what to look at. `code` overrides the class's own. Paths
    in both are the host's (`host_paths`).
    """

    default_code: ClassVar[int] = 100

    def __init__(self, message: str, details: str = "", *, code: int | None = None) -> None:
        self.message = as_host_names(message)
        self.details = as_host_names(details)
        super().__init__(self.message)
        self.code = self.default_code if code is None else code

    def __str__(self) -> str:
        return f"{self.message}; {self.details}" if self.details else self.message


class BadRequest(UserspaceError):
    """The caller's input cannot be used; raised before any effect."""

    default_code = 7


class UnsupportedVersion(BadRequest):
    """cniVersion, or the verb at that version, is not supported."""

    default_code = 1


class UnsupportedField(BadRequest):
    """An option that is understood but cannot be served; the message names key and value."""

    default_code = 2


class BadEnvironment(BadRequest):
    """A CNI_* variable is missing or malformed; the message names it."""

    default_code = 4


class UnreadableInput(BadRequest):
    """Standard input could not be read."""

    default_code = 5


class Undecodable(BadRequest):
    """Input that is not JSON, or a field of the wrong JSON type."""

    default_code = 6


class InvalidConfig(BadRequest):
    """Input that decodes but fails validation."""

    default_code = 7


class BridgeRefused(InvalidConfig):
    """The administrator's rules do not allow the pod this port on this bridge."""


class MirrorRefused(InvalidConfig):
    """The administrator's rules do not allow the pod its part in a mirror."""


class LogicalPortRefused(InvalidConfig):
    """The administrator's rules do not allow the pod this logical port, or a port of that switch of OVN's."""


class LinkNameTaken(InvalidConfig):
    """A bridge or port cannot have this name: a link in the switch's network namespace has it, or OVS keeps it for itself."""


class HostNamespace(BadRequest):
    """CNI_NETNS is the namespace the runtime itself lives in."""

    default_code = 8


class ContainerGone(UserspaceError):
    """The container's namespace vanished before anything was done; no DEL is needed."""

    default_code = 3


class Unavailable(UserspaceError):
    """Something we need does not answer now; the same call may succeed later."""

    default_code = 11


class Interrupted(Unavailable):
    """The process was asked to stop."""


class NotServing(UserspaceError):
    """STATUS: no ADD can be served (50); with `code=51` running containers suffer too."""

    default_code = 50


class ObjectRefused(UserspaceError):
    """The API server did not do what was asked about an object, and asking again does not help."""


class NoSuchResource(ObjectRefused):
    """The API server has no such resource, as where a CustomResourceDefinition is not installed."""


class NoSuchObject(ObjectRefused):
    """The API server has no such object, or no such resource."""


class NotAllowed(ObjectRefused):
    """The API server does not allow this account to do what was asked."""


class Conflict(ObjectRefused):
    """Another writer was first: the object has another version, another owner of a field, or exists already."""


class StepFailed(UserspaceError):
    """A step could not be applied, undone or verified."""

    default_code = 100


class AlreadyAttached(StepFailed):
    """The interface name is in use in this container."""

    default_code = 101


class NotAttached(StepFailed):
    """CHECK of an attachment that is not there."""

    default_code = 102


class Drifted(StepFailed):
    """CHECK found something else than what ADD made; the message has expected and found."""

    default_code = 103


class RowsRefused(StepFailed):
    """The server of an OVSDB database rejected a transaction, with its own words."""

    default_code = 104


class SwitchRefused(RowsRefused):
    """OVS rejected the rows, or accepted them but reports an error for the interface or the bridge."""


class NameTaken(StepFailed):
    """A row with the name that we need belongs to another container, or is not ours."""

    default_code = 105


class DirectoryRefused(StepFailed):
    """A directory, mount, socket or file for the pod could not be made or removed."""

    default_code = 106


class VolumeMissing(DirectoryRefused):
    """The pod has no place for its socket that its containers would see; raised before any effect."""


class NoteRefused(StepFailed):
    """The pod's annotations could not be written."""

    default_code = 107


class DelegateBroken(StepFailed):
    """A delegated plugin could not be run or answered something that is no CNI answer."""

    default_code = 108


class RecordRefused(StepFailed):
    """The local store could not be read or written."""

    default_code = 109


class Incomplete(StepFailed):
    """Several steps failed; every error is in `details`."""

    default_code = 110


class UnknownProtocol(UserspaceError):
    """A request to the agent in a protocol that it does not speak; nothing was done."""

    default_code = 111


class DelegateFailed(UserspaceError):
    """A delegated plugin's own error object: code, msg and details as it gave them."""


def shorten(text: str, most: int = _SHOWN_MAX) -> str:
    """Cut `text` for a message, to `most` characters: values in it are a tenant's, and may be as long as a configuration."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"


def on_one_line(text: str) -> str:
    """The text without what a terminal would obey, or an API server refuse: values in it are a tenant's."""
    return "".join(character if character.isprintable() else " " for character in text)


def quote(value: object) -> str:
    """A value that others wrote, as Python writes it, for a message: of a long one the beginning."""
    text = repr(value)
    return text if len(text) <= _QUOTED_MAX else f"{text[:_QUOTED_MAX]}… ({len(text)} characters)"


def combine(what: str, errors: Iterable[UserspaceError]) -> UserspaceError:
    """Combine the errors that were collected while undoing: a single one stays as it is, several become `Incomplete`."""
    collected = list(errors)
    if len(collected) == 1:
        return collected[0]
    if all(isinstance(error, Unavailable) for error in collected):
        return Unavailable(f"{what}: {len(collected)} steps could not be done now", " | ".join(map(str, collected)))
    return Incomplete(f"{what}: {len(collected)} steps failed", " | ".join(map(str, collected)))


def of_kernel(what: str, error: OSError, details: str) -> UserspaceError:
    """The error for `what` of a step that the kernel refused: Unavailable where that passes, else StepFailed with `details`."""
    said = f"{what}: {error.strerror or error}"
    return Unavailable(said, "try again later") if error.errno in PASSING else StepFailed(said, details)
