"""What a group of commands does to one mirror: its output, its sources, its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from userspace_cni.ovsdb.column_values import Json, read_references, refers, value_of
from userspace_cni.ovsdb.columns import find_changed_columns
from userspace_cni.ovsdb.draft import Draft
from userspace_cni.ovsdb.replica import Replica
from userspace_cni.switch.ovsdb.index import SwitchIndex
from userspace_cni.switch.ovsdb.rows.mirror_row import COLUMNS, DESIRED, mirror_columns


@dataclass(frozen=True)
class SourcePort:
    """A port that a group writes, and may be a source: its reference, the keys of its specs, whether it was there before."""

    port: Json
    specs: Mapping[str, str]
    living: bool


class MirrorDraft:
    """One mirror of a bridge in a Draft: all that the ports of a group do with it."""

    def __init__(self, name: str, row: Any) -> None:
        self.name = name
        self.has_output = False
        self._row = row
        self._output: Json | None = None
        self._marks: Mapping[str, str] = {}
        self._sources: dict[str, SourcePort] = {}
        self._shown: list[Any] = []
        self._removed = False
        self._everything = False

    @property
    def is_changed(self) -> bool:
        """Whether the group does anything with it."""
        return self.has_output or self._removed or bool(self._sources)

    def take(self, port: Json, marks: Mapping[str, str], *, everything: bool = False) -> None:
        """Make this port, with these owner marks, the output; with `everything` of all ports, whether they spec it or not."""
        self._output, self._marks, self._everything = port, marks, everything
        self.has_output = True

    def show(self, port: Any) -> None:
        """Have the port of this row as a source, of all its frames, though it specs nothing."""
        self._shown.append(port)

    def write_specs(self, name: str, source: SourcePort) -> None:
        """The port `name` is a source as its specs say, or none."""
        self._sources[name] = source

    def remove(self) -> None:
        """Remove the Mirror, whose output goes."""
        self._removed = True

    def write(self, draft: Draft, bridge: Any) -> tuple[Json | None, Json | None]:
        """Write the operations; the references that the bridge is to take in and to let go."""
        if self._output is not None:
            sources = self._all_sources(draft, bridge)
            columns = mirror_columns(self.name, self._output, sources, self._marks) | {"select_all": self._everything}
            if self._row is None:
                return draft.write("Mirror", columns), None
            draft.verify(self._row, "external_ids", "output_port")
            if not read_references(self._row, "output_port"):  # its output was deleted by hand
                return draft.write("Mirror", columns), _reference(self._row)
            found = {key: value_of(self._row, key) for key in ("name", "select_all", "external_ids")}
            found |= {key: [("uuid", str(each)) for each in read_references(self._row, key)] for key in ("output_port", *COLUMNS)}
            if changes := find_changed_columns(columns, found):
                draft.update(self._row, changes)
        elif self._removed:
            draft.verify(self._row, "external_ids", "output_port")
            return None, _reference(self._row)
        elif self._row is not None:
            for source in self._sources.values():
                for column, start in COLUMNS.items():
                    joins = start + self.name in source.specs
                    if joins or source.living:
                        draft.mutate(self._row, column, "insert" if joins else "delete", [source.port])
        return None, None

    def _all_sources(self, draft: Draft, bridge: Any) -> dict[str, list[Json]]:
        """Every port of the bridge that specs it, and those shown, by column; commit only if no others spec it."""
        sources: dict[str, list[Json]] = {}
        for row in self._shown:
            draft.verify(row, "name")
        for column, start in COLUMNS.items():
            key = start + self.name
            known = {name: row for name, row in ports_asking(draft.idl, key).items() if name not in self._sources}
            written = {name: each.port for name, each in self._sources.items() if key in each.specs}
            draft.expect(
                "Port",
                [["external_ids", "includes", ("map", [(key, DESIRED)])]],
                [{"name": name} for name in sorted({*known, *written})],
            )
            here = [("uuid", str(row.uuid)) for row in known.values() if bridge is not None and refers(bridge, "ports", row.uuid)]
            sources[column] = sorted([*here, *written.values(), *map(_reference, self._shown)])
        return sources


def ports_asking(replica: Replica[SwitchIndex], key: str) -> dict[str, Any]:
    """The replicated Port rows with this spec, of any bridge, by name."""
    rows = replica.names("Port")
    return {name: rows[name] for name, ids in replica.index.marks.items() if ids.get(key) == DESIRED}


def _reference(row: Any) -> Json:
    return "uuid", str(row.uuid)
