"""`install --network`: the network that the agent is to put in place for the node's runtimes.

It is kept in the state directory, from which the agent takes it; where calls need no agent, it is put in place here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from userspace_cni.attachment.records import node_container
from userspace_cni.attachment.specs import compare, meet, undo
from userspace_cni.base.errors import InvalidConfig, Unavailable, UserspaceError
from userspace_cni.cli.agent_client import DeadAgent, NoAgent
from userspace_cni.cli.node.install import InstallError, place_file
from userspace_cni.cli.site import Site
from userspace_cni.cni.conflist import LARGEST, require_name
from userspace_cni.network.network_service import describe_spec
from userspace_cni.network.runtime_network import NAME, PluginList, copy_of, require_usable
from userspace_cni.network.spec_list import RUNTIME_NETWORK, SETTINGS
from userspace_cni.network.spec_sources import SpecSources
from userspace_cni.node.belongings import RUNTIME_NETWORK_COPY


def keep_network(file: str, site: Site, *, standalone: bool) -> str:
    """Have the network of the file put in place; what became of it, in words. `standalone`: calls need no agent.

    Raises InstallError for a file that ADD would refuse, and for a network that cannot be put in place.
    """
    try:
        given = _given(file)
        require_usable(given)
    except OSError as error:
        raise InstallError(f"reading {file}: {error.strerror}") from error
    except UserspaceError as error:
        raise InstallError(str(error)) from error
    copy = _copy(site)
    try:
        copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InstallError(f"making {copy.parent}: {error.strerror}") from error
    place_file(copy, copy_of(given), 0o600)
    path = f"{site.settings.cni_conf_dir}/{given.name}"
    status = _reconciled(site, standalone=standalone)
    if status is None:
        return f"the agent puts {path} in place when it serves"
    if status["source"] == SETTINGS:
        raise InstallError(f"{status['said_by']} of the setting cni_conf_file takes precedence over this one: change it there")
    if not status["ready"]:
        raise InstallError(f"{path} is not in place: {status['problem']}; the agent tries it again")
    return f"{path} is in place"


def forget_network(site: Site) -> str:
    """Have what `keep_network` put in place taken away; what became of it, in words. Raises InstallError."""
    copy, was_given = _copy(site), True
    try:
        copy.unlink()
    except FileNotFoundError:
        was_given = False  # by now: what was put in place may still be there, after a death or a failure just behind this
    except OSError as error:
        raise InstallError(f"removing {copy}: {error.strerror}") from error
    if not was_given and not _is_recorded(site):
        return "no network was installed"
    try:
        found = site.client.network(reconcile=True)["specs"]
    except (NoAgent, DeadAgent):
        return _undone(site)
    except Unavailable as error:
        return f"the agent takes the network away at its next look: {error}"
    left = [each for each in found if each["kind"] == RUNTIME_NETWORK]
    if any(not each["desired"] for each in left):
        raise InstallError(f"the network is not taken away yet: {left[0]['problem']}; the agent tries it again")
    return f"{left[0]['said_by']} of the setting cni_conf_file stays in place" if left else "the network is taken away"


def _given(file: str) -> PluginList:
    """The network in the file. Raises UserspaceError and OSError."""
    path = Path(file)
    name = require_name(path.name, file)
    if not path.is_file():  # also a link to one is; another would be waited for
        path.stat()
        raise InvalidConfig(f"{file}: not a regular file", "it must be one")
    with path.open("rb") as opened:
        return PluginList(name, opened.read(LARGEST.octets + 1), file)


def _is_recorded(site: Site) -> bool:
    """Whether this node has a network of ours for the runtimes, or a part of one. Raises InstallError."""
    try:
        return site.node.store.journal.read(node_container(RUNTIME_NETWORK), NAME) is not None
    except UserspaceError as error:
        raise InstallError(str(error)) from error


def _copy(site: Site) -> Path:
    return Path(site.map_path(site.settings.state_dir)) / RUNTIME_NETWORK_COPY


def _reconciled(site: Site, *, standalone: bool) -> dict[str, Any] | None:
    """What became of the spec, as JSON; None where no agent has said so. Raises InstallError."""
    try:
        found = site.client.network(reconcile=True)["specs"]
    except (NoAgent, DeadAgent):
        return _met(site) if standalone else None
    except Unavailable:
        return None
    return next((each for each in found if each["kind"] == RUNTIME_NETWORK), None)


def _undone(site: Site) -> str:
    if site.settings.cni_conf_file:
        return f"{site.settings.cni_conf_file} of the setting cni_conf_file is for the agent to put in place"
    try:
        undo(RUNTIME_NETWORK, NAME, site.node)
    except UserspaceError as error:
        raise InstallError(str(error)) from error
    return "the network is taken away"


def _met(site: Site) -> dict[str, Any] | None:
    try:
        specs, _ = SpecSources(site.drivers, site.environ).specs()
        spec = next((each for each in specs if each.kind == RUNTIME_NETWORK), None)
        if spec is None:
            return None
        site.liveness()  # first: without it the silence of a moment is taken for a fault
        meet(spec, site.node)
        return describe_spec(compare(spec, site.node))
    except UserspaceError as error:
        raise InstallError(str(error)) from error
