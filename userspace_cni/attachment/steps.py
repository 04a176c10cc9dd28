"""The step types: frozen data, each naming one thing that must be true on this node.

A step holds everything that a driver needs to make it, verify it and undo it, because DEL has only the record. To add something
to the dataplane: a step here, a driver for it, a row in `node.drivers`, and a line in `plan`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

OWNER = "userspace-cni"
"""Value of the mark `owner` on every row that we make."""
MARK_SCHEMA = "1"


@dataclass(frozen=True)
class Resource:
    """Something on the node that several attachments may need: it exists once and lists its holders.

    `place` is the directory to which it belongs: all things of one directory have one lock and one list. `key` names the thing.
    `exclusive`: a second holder is refused instead of added.
    """

    place: str
    key: str
    exclusive: bool = False


@dataclass(frozen=True)
class Step:
    """One thing that must be true on this node."""

    kind: ClassVar[str]
    after_rest: ClassVar[bool] = False
    """Whether it can only be applied when what earlier steps began has come to its end."""
    holds_others: ClassVar[bool] = False
    """Whether things of other steps of its place lie in its own: it is undone after them, and not while one of them stays."""

    @property
    def resource(self) -> Resource | None:
        """The shared thing behind this step; None when it is this attachment's alone."""
        return None


@dataclass(frozen=True)
class Lease(Step):
    """Addresses leased by the delegated plugin `plugin` with the ADD's own stdin and variables.

    `granted`: what its ADD answered; None while that is not known. What was refused needs no DEL to succeed.
    """

    kind: ClassVar[str] = "lease"
    plugin: str
    stdin: str
    variables: Mapping[str, str]
    granted: bool | None = None


@dataclass(frozen=True)
class Directory(Step):
    """The host directory in which the vhost-user socket appears and which the pod mounts.

    `trusted` is the prefix of `path` that no pod can write; what is below it is opened without following links.
    `create`: make it when missing (and then remove it with its last holder); an emptyDir or hostPath is never ours to make.
    `parents`: make what is missing between `trusted` and it, too; what is between an emptyDir and the kubelet's root is not ours.
    Owner, mode and label are set on what we made; with `own` also on what was there, where only we have a use for that name.
    """

    kind: ClassVar[str] = "directory"
    holds_others: ClassVar[bool] = True
    path: str
    trusted: str
    create: bool = False
    own: bool = False
    user: str = ""
    group: str = ""
    mode: int | None = None
    selinux_label: str = ""
    parents: bool = False

    @property
    def resource(self) -> Resource:
        """One directory, however many attachments have sockets in it."""
        return Resource(self.path, f"directory:{self.path}")


@dataclass(frozen=True)
class SocketFile(Step):
    """The name under which the pod's application will create its socket: free now, and removed with the attachment."""

    kind: ClassVar[str] = "socket-file"
    directory: str
    trusted: str
    name: str

    @property
    def resource(self) -> Resource:
        """A socket path has one owner."""
        return Resource(self.directory, f"socket:{self.directory}/{self.name}", exclusive=True)


@dataclass(frozen=True)
class PodMount(Step):
    """The pod's directory seen through a nosymfollow mount of ours: the only way in which OVS is given it."""

    kind: ClassVar[str] = "pod-mount"
    source: str
    trusted: str
    target: str

    @property
    def resource(self) -> Resource:
        """One mount for all attachments whose sockets are in the same directory."""
        return Resource(self.source, f"mount:{self.target}")


@dataclass(frozen=True)
class Port(Step):
    """A vhost-user port with its interface, on a bridge made on demand, in one OVSDB transaction.

    ovs-vswitchd.conf.db(5): `interface_type` is Interface.type, `server_path` options:vhost-server-path (client ports only),
    `tag`, `trunks` and `vlan_mode` are Port columns, `mtu` is Interface.mtu_request, `mac` goes to external_ids:attached-mac.
    `marks` are the owner marks of Interface and Port. `foreign_bridge`: the bridge was an administrator's, and is never made
    again. `legacy`: the row was made by the plugin that this one replaces, has no
    marks, and may be deleted if it is a dpdkvhostuser or dpdkvhostuserclient port.
    """

    kind: ClassVar[str] = "port"
    bridge: str
    name: str
    interface_type: Literal["dpdkvhostuserclient", "dpdkvhostuser"]
    server_path: str = ""
    tag: int | None = None
    trunks: tuple[int, ...] = ()
    vlan_mode: str = ""
    mtu: int | None = None
    mac: str = ""
    marks: Mapping[str, str] = field(default_factory=dict)
    foreign_bridge: bool = False
    legacy: bool = False


@dataclass(frozen=True)
class PlacedSocket(Step):
    """A socket that OVS made (server mode) moved to where the pod sees it.

    `source` is the path at which OVS binds. `user`, `group`, `mode` and `selinux_label` are set on the socket itself.
    """

    kind: ClassVar[str] = "placed-socket"
    after_rest: ClassVar[bool] = True
    source: str
    directory: str
    trusted: str
    name: str
    user: str = ""
    group: str = ""
    mode: int | None = None
    selinux_label: str = ""

    @property
    def resource(self) -> Resource:
        """A socket path has one owner."""
        return Resource(self.directory, f"socket:{self.directory}/{self.name}", exclusive=True)


@dataclass(frozen=True)
class DeviceInfo(Step):
    """The device-info file (device-info-spec 1.1.0) that the runtime asked for.

    `content` is the whole JSON text. `existed`: a device plugin had put one there, so that it is not ours to remove, and `before`
    is the JSON text of what it said of the socket. `trusted` is the setting `device_info_dir` at ADD, below which `path` is; a
    record of before has none and is judged by the setting in force.
    """

    kind: ClassVar[str] = "device-info"
    path: str
    content: str
    existed: bool = False
    trusted: str = ""
    before: str = ""


@dataclass(frozen=True)
class ConfigFile(Step):
    """The file in the pod's directory that tells the application what it got, where no API server is used."""

    kind: ClassVar[str] = "config-file"
    directory: str
    trusted: str
    name: str
    content: str

    @property
    def resource(self) -> Resource:
        """A file has one owner: two containers whose IDs begin alike share a directory, and must not share this."""
        return Resource(self.directory, f"file:{self.directory}/{self.name}", exclusive=True)


@dataclass(frozen=True)
class PodNote(Step):
    """This attachment's entry in the pod's annotations.

    `entry` is the JSON text of one element of userspace/configuration-data, `mapped_dir` the value of userspace/mapped-dir.
    `kubeconfig`: path of the network's credentials, "" for our own. `optional`: the attachment is usable without the note.
    """

    kind: ClassVar[str] = "pod-note"
    namespace: str
    pod: str
    uid: str
    container_id: str
    ifname: str
    entry: str
    mapped_dir: str
    kubeconfig: str = ""
    optional: bool = False


@dataclass(frozen=True)
class LegacyRecord(Step):
    """A record of the plugin that this one replaces: `local-<cid12>-<ifname>.json`. Only ever undone."""

    kind: ClassVar[str] = "legacy-record"
    path: str


STEP_TYPES: tuple[type[Step], ...] = (
    Lease,
    Directory,
    SocketFile,
    PodMount,
    Port,
    PlacedSocket,
    DeviceInfo,
    ConfigFile,
    PodNote,
    LegacyRecord,
)
