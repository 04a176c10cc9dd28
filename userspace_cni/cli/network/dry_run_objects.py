"""Objects of the API for a dry run: those that the server has, with those of files in their places. Nothing is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from kubevirt.lint.linted_documents import flatten
from userspace_cni.cli import view
from userspace_cni.cli.exit_codes import FOUND
from userspace_cni.cli.manifest_files import name_of, read_file
from userspace_cni.cli.site import CommandRefused, Site
from userspace_cni.node.objects import SPECS, KeptObject, KnownObjects, OwnNode, look, read_object

_NETWORK, _VLAN, _SUBNET = _KINDS = tuple(each.kind for each in SPECS)
_VERSION: Final = SPECS[0].api_version


def objects_for(site: Site, files: Sequence[str]) -> KnownObjects | None:
    """What this node would see of the objects, were those of the files applied; None where it reads no objects.

    Raises Refused for a file that has none, and UserspaceError where the server cannot be asked.
    """
    node = site.drivers
    if not files and not node.installation.settings.network_objects:
        return None
    given = _given(files)
    if not node.installation.settings.network_objects:
        view.note("this node reads no objects of the API, for network_objects is false: this is what it would do if it did")
    if node.installation.has_account:
        seen = look(node.installation.clients.of("").session, node.installation.name)
    elif files:
        view.note(
            "there are no credentials for the API server: only the objects of the files are known, and no label of the node"
        )
        seen = KnownObjects(node.installation.name, OwnNode({}, {}, ()), {}, {}, {})
    else:
        return None
    return replace(
        seen,
        provider_networks={**(seen.provider_networks or {}), **given[_NETWORK]},
        vlans={**(seen.vlans or {}), **given[_VLAN]},
        subnets={**(seen.subnets or {}), **given[_SUBNET]},
    )


def _given(files: Iterable[str]) -> Mapping[str, Mapping[str, KeptObject]]:
    found: dict[str, dict[str, KeptObject]] = {kind: {} for kind in _KINDS}
    for file in files:
        documents, findings = read_file(file)
        if findings:
            raise CommandRefused(f"{name_of(file)}: {findings[0].message}", FOUND)
        things = [thing for document in documents for _, thing in flatten(document.content) if isinstance(thing, dict)]
        ours = [thing for thing in things if thing.get("apiVersion") == _VERSION and thing.get("kind") in _KINDS]
        if not ours:
            raise CommandRefused(f"{name_of(file)} has no ProviderNetwork, Vlan or Subnet of {_VERSION}", FOUND)
        for thing in ours:
            metadata = thing.get("metadata")
            name = metadata.get("name") if isinstance(metadata, dict) else None
            if not isinstance(name, str):
                raise CommandRefused(f"{name_of(file)}: a {thing['kind']} has no metadata.name", FOUND)
            found[thing["kind"]][name] = read_object(thing)
    return found
