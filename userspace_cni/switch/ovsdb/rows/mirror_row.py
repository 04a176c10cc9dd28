"""The columns of table Mirror, and what a port's own row says of the mirrors of which it is a source.

ovs-vswitchd logs an error for a Mirror without an output, each time it is configured. So the row comes and goes with the port
that is the output, and carries that port's marks. What a source asks for stands in external_ids of its Port row, a key for each
column: the output finds it there whenever it comes, and `ovs-vsctl list Port` shows it while there is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from userspace_cni.attachment.steps import MirrorOutput
from userspace_cni.base.mirrors import MirrorSource
from userspace_cni.switch.ovsdb.rows.desired import DesiredBridge, DesiredRows, MirrorPart

FROM_POD: Final = "mirror-from/"
"""What the key of a source begins with whose frames from the pod are desired; the mirror's name follows."""
TO_POD: Final = "mirror-to/"
"""The same for frames to the pod."""
COLUMNS: Final[Mapping[str, str]] = {"select_src_port": FROM_POD, "select_dst_port": TO_POD}
"""The columns that hold sources: a frame from the pod comes from the port into the switch."""
DESIRED: Final = "true"


@dataclass(frozen=True)
class MirrorRow:
    """A Mirror of a port's bridge, as seen from the port: whether it is the output, and a source.

    `ours`: its external_ids have an owner mark of ours. `everything`: it shows every frame of the bridge.
    """

    name: str
    ours: bool
    is_output: bool
    from_pod: bool
    to_pod: bool
    everything: bool = False


def encode_specs(mirrors: Iterable[MirrorSource]) -> dict[str, str]:
    """The external_ids of a Port that is a source of these mirrors."""
    keys = [(FROM_POD + each.name, each.from_pod) for each in mirrors] + [(TO_POD + each.name, each.to_pod) for each in mirrors]
    return {key: DESIRED for key, is_desired in keys if is_desired}


def read_desired_names(external_ids: Mapping[str, str]) -> frozenset[str]:
    """The mirrors of which a Port with these external_ids specs to be a source."""
    return frozenset(key.removeprefix(start) for key in external_ids for start in (FROM_POD, TO_POD) if key.startswith(start))


def find_withdrawn(external_ids: Mapping[str, str], mirrors: Iterable[MirrorSource]) -> dict[str, None]:
    """The keys of specs in external_ids that are not of these mirrors, as `find_changed_columns` removes them."""
    kept = encode_specs(mirrors)
    return {key: None for key in external_ids if key.startswith((FROM_POD, TO_POD)) and key not in kept}


def mirror_columns(name: str, output: Any, sources: Mapping[str, list[Any]], marks: Mapping[str, str]) -> dict[str, Any]:
    """Columns of a Mirror: references to its output and, by column, to its sources; `marks` are those of the output's port."""
    return {"name": name, "output_port": [output], "external_ids": dict(marks), **{key: sources[key] for key in COLUMNS}}


def desired_mirror(step: MirrorOutput, marks: Mapping[str, str]) -> DesiredRows:
    """The row of a mirror whose output is a port of others, which stays as it is."""
    missing = f"mirror {step.name}: port {step.port} is not on bridge {step.bridge} any more", "ovs-vsctl show"
    part = MirrorPart(outputs=step.mirror_outputs, shows=step.shows)
    bridge = DesiredBridge(step.bridge, missing=missing)
    return DesiredRows(marks, bridge, output=step.port, mirrors=part, called=f"mirror {step.name}: ")
