"""What a group of commands does to one bridge: its ports, its mirrors, and whether it is made or deleted, decided once."""

from __future__ import annotations

import uuid
from typing import Any

from userspace_cni.base.errors import Unavailable
from userspace_cni.ovsdb.column_values import Json, as_json, by_uuid, count, read_references
from userspace_cni.ovsdb.columns import Columns, make_columns
from userspace_cni.ovsdb.draft import Draft
from userspace_cni.switch.ovsdb.mirror_drafts import MirrorDraft


def draft_bridge(txn: Draft, name: str, row: Any) -> BridgeDraft:
    """The changes of the transaction to this bridge; `row` is None while the bridge does not exist."""
    return txn.share_part(BridgeDraft, name, lambda: BridgeDraft(name, row))


class BridgeDraft:
    """One bridge in a Draft: all that the group does with its ports and mirrors. Whether it is deleted is decided once, here."""

    def __init__(self, name: str, row: Any) -> None:
        self.name = name
        self.row = row
        self._mirrors: dict[str, MirrorDraft] = {}
        self._made: tuple[Columns, Columns] | None = None
        self._seen: set[str] = set()
        self._changes: Columns = {}
        self._added: list[Json] = []
        self._removed: list[uuid.UUID] = []
        self._ours = False
        self._given_up = False
        self.deleted = False

    def make(self, bridge: Columns, local: Columns) -> None:
        """Make the bridge, which does not exist, with these columns; `local`: of the Interface of its local port."""
        self._made = bridge, local

    def verify(self, *columns: str) -> None:
        """Commit only if these columns of the bridge are what the replica shows."""
        self._seen |= set(columns)

    def change(self, columns: Columns) -> None:
        """Write these columns of the bridge."""
        self._changes |= columns

    def require_maker(self, columns: Columns) -> None:
        """Raise Unavailable if another member of the group makes the bridge with other columns than these: for another kind of
        owner, or with another datapath."""
        if self._made is not None and self._made[0] != columns:
            raise Unavailable(f"bridge {self.name} is being made by another attachment", "try again: then it shows whose it is")

    def give_up(self) -> None:
        """Delete the bridge, unless the group adds a port: `deleted` says so after the commit."""
        self._given_up = True

    def add(self, port: Json) -> None:
        self._added.append(port)

    def draft_mirror(self, name: str, row: Any) -> MirrorDraft:
        """The changes to this mirror; `row` is None while the bridge has none of that name."""
        if name not in self._mirrors:
            self._mirrors[name] = MirrorDraft(name, row)
        return self._mirrors[name]

    def remove(self, port: Any, *, ours: bool) -> None:
        """Remove the row `port` (None: none); a bridge of ours is deleted when no port is left."""
        self._ours = ours
        if port is not None:
            self._removed.append(port.uuid)

    def write(self, draft: Draft) -> None:
        replica = draft.idl
        if self._made is not None:
            self._insert(draft, replica.root())
            return
        local = replica.names("Port").get(self.name)
        kept = [as_json(local.uuid)] if local is not None else []
        if not self._added and (self._given_up or (self._ours and self._is_last(kept))):
            self.deleted = True
            draft.verify(self.row, "ports", "external_ids")
            draft.mutate(replica.root(), "bridges", "delete", [as_json(self.row.uuid)])
            return
        if self._seen:
            draft.verify(self.row, *sorted(self._seen))
        if self._changes:
            draft.update(self.row, self._changes)
        if self._added:
            draft.mutate(self.row, "ports", "insert", self._added)
        self._write_mirrors(draft)
        if self._removed:
            draft.mutate(self.row, "ports", "delete", [as_json(port) for port in self._removed])
            if self._ours:
                # Two sessions may each remove one of the last two ports: the later one must notice that no port is left.
                draft.expect("Bridge", by_uuid(self.row), [{"ports": ("set", kept)}], until="!=")

    def _write_mirrors(self, draft: Draft) -> None:
        changed = [mirror for mirror in self._mirrors.values() if mirror.is_changed]
        if changed:
            draft.verify(self.row, "mirrors")
        for mirror in changed:
            made, gone = mirror.write(draft, self.row)
            if gone is not None:
                draft.mutate(self.row, "mirrors", "delete", [gone])
            if made is not None:
                draft.mutate(self.row, "mirrors", "insert", [made])

    def _is_last(self, kept: list[Json]) -> bool:
        return count(self.row, "ports") <= len(kept) + len(self._removed) and not (
            read_references(self.row, "ports") - set(self._removed) - {uuid.UUID(reference[1]) for reference in kept}
        )

    def _insert(self, draft: Draft, root: Any) -> None:
        assert self._made is not None  # noqa: S101 - for the type checker
        bridge, local_interface = self._made
        interface = draft.write("Interface", make_columns(local_interface))
        local = draft.write("Port", {"name": self.name, "interfaces": interface})
        mirrors = [made for each in self._mirrors.values() if each.is_changed and (made := each.write(draft, None)[0])]
        made = draft.write(
            "Bridge", make_columns(bridge) | {"ports": ("set", [local, *self._added]), "mirrors": ("set", mirrors)}
        )
        draft.mutate(root, "bridges", "insert", [made])
