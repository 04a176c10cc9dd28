"""`uninstall`: takes the plugin and everything of it away from a node on which nothing is attached any more.

The plugin goes only when no attachment is left: without it no runtime can delete the pod of one, and a port that OVS still polls
would belong to nothing. It may be run again after a kill: it looks at what is there.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

import click

from userspace_cni.agent.singleton import AnotherAgent, Singleton
from userspace_cni.attachment import cleanup
from userspace_cni.attachment.listing import name_of
from userspace_cni.attachment.specs import SPEC_S, key_of, undo
from userspace_cni.attachment.steps import PortRef
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import UserspaceError
from userspace_cni.base.log import bind
from userspace_cni.base.root import HostRoot
from userspace_cni.cli import view
from userspace_cni.cli.exit_codes import FOUND, UNREACHABLE, USAGE
from userspace_cni.cli.node.gc import collect, look
from userspace_cni.cli.node.install import NAMES
from userspace_cni.cli.node.installed import USUAL, DirectoryName, plugins
from userspace_cni.cli.site import CommandRefused, NodeCommand, Site, open_site
from userspace_cni.network.gateway_specs import ALL
from userspace_cni.network.spec_list import TRANSLATION
from userspace_cni.node import belongings
from userspace_cni.routes.inspection import Inspector

_TEMPORARY: Final = re.compile(rf"\.({'|'.join(map(re.escape, NAMES))})\.[0-9]+")
_PAUSE_S: Final = 0.2
"""Between two looks at whether the agent has ended."""


@click.command("uninstall", cls=NodeCommand, examples=("userspace-cni uninstall --bin-dir /opt/cni/bin",))
@click.option(
    "--bin-dir",
    "bin_dirs",
    multiple=True,
    metavar="DIR",
    type=DirectoryName(),
    help="The runtime's directory of CNI plugins, as the host calls it; may be repeated. Default: the usual ones.",
)
@click.option(
    "--seccomp-dir",
    "seccomp_dirs",
    multiple=True,
    metavar="DIR",
    type=DirectoryName(),
    help="The kubelet's directory of seccomp profiles, as the host calls it; may be repeated. Default: seccomp in kubelet_dir.",
)
@click.option(
    "--wait",
    type=click.FloatRange(0),
    default=0.0,
    metavar="SECONDS",
    help="How long to wait for a running agent to end; by default not at all.",
)
@click.option("--force", is_flag=True, help="Detach everything first, also from living pods.")
@click.pass_context
def uninstall_command(
    ctx: click.Context, bin_dirs: tuple[str, ...], seccomp_dirs: tuple[str, ...], wait: float, force: bool
) -> None:
    """Remove the plugin, its records, sockets and mounts from this node, and ports and addresses that dead calls left.

    Stop the agent first, and delete the attached pods: nothing of the installation is removed while a pod is attached, while
    the switch cannot be asked for our ports, or after an undo that failed. With --force pods are detached and keep running
    without their interfaces (without the plugin the runtime cannot delete them), and the installation is removed even if
    something was not undone. The node's own network is undone: moved addresses go back to their NICs first. Our routes in pods
    are removed. Settings, another program's plugin in DIR, and files that are not ours stay and are named on stderr. A DIR
    without anything of ours is named, too; a missing DIR is refused, unless it is a usual one.

    Exit code: 0 when nothing of ours is left, 1 when something is attached or could not be removed, 2 when a DIR is missing, 3
    while an agent runs or the switch cannot be asked.
    """
    site = open_site(ctx)
    site.require_root("taking the plugin away from this node")
    usual_profiles = f"{site.settings.kubelet_dir}/seccomp"
    bin_dirs = _directories("--bin-dir", bin_dirs, USUAL, site)
    seccomp_dirs = _directories("--seccomp-dir", seccomp_dirs, (usual_profiles,), site)
    agent = Singleton()
    with view.progress("waiting for the agent to end"):
        _claim(agent, site, time.monotonic() + wait)
    try:
        with view.progress("looking at what is attached") as show:
            _collect(site, show)
            ports, away = _unrecorded(site)
            attached = _attached(ports, site)
        if away:
            view.note(f"the switch cannot be asked, so ports without a record were not looked for: {away}")
        if (attached or away) and not force:
            _show(attached)
            first = "these pods have to go first" if attached else "start the switch first"
            forced = ", which takes the network from running pods" if attached else ""
            view.note(f"nothing of the installation is removed: {first}, or give --force{forced}")
            ctx.exit(FOUND if attached else UNREACHABLE)
        failed = _detach(ports, site) + _undo_specs(site) + _take_out_routes(site)
        if not failed and not force:
            failed = belongings.unread_records(site.settings, _root(site))
        if failed and not force:
            _show(failed)
            view.note("this could not be undone, and nothing of the installation is removed: run it again, or give --force")
            ctx.exit(FOUND)
        absent = _absent(site, bin_dirs, seccomp_dirs)
        unseen, others = _remove_plugins(site, bin_dirs or USUAL)
        left, foreign = belongings.remove(site.settings, _root(site), seccomp_dirs or (usual_profiles,))
    finally:
        agent.release()
    for sentence in [*absent, *(f"left alone: {each}" for each in [*others, *foreign])]:
        view.note(sentence)
    left = [*failed, *unseen, *left]
    _show(left)
    but = ", as far as it could be asked" if away else ""
    view.note("this could not be removed" if left else f"nothing of ours is left on this node{but}")
    ctx.exit(FOUND if left else 0)


def _root(site: Site) -> HostRoot:
    return HostRoot(site.settings.host_root)


def _claim(agent: Singleton, site: Site, until: float) -> None:
    """Be the only process that works on the records as a whole. Raises Refused while an agent does, `until` that time."""
    state, run = site.node.store.journal.directory, site.settings.run_dir
    while True:
        try:
            agent.claim(state, run, "userspace-cni uninstall")
        except AnotherAgent as error:
            if time.monotonic() >= until:
                raise CommandRefused(
                    f"other work on this node's records goes on: {error.holder}; end that first", UNREACHABLE
                ) from error
            time.sleep(_PAUSE_S)
        else:
            return


def _directories(option: str, given: Iterable[str], usual: Iterable[str], site: Site) -> tuple[str, ...]:
    """Those given, absolute. Raises Refused for a missing one, because then another one was probably meant.

    The usual ones need not be there: a node that never had the plugin may lack them.
    """
    found = tuple(str(Path(each).absolute()) for each in given)
    for directory in found:
        try:
            is_one = stat.S_ISDIR(Path(site.map_path(directory)).stat().st_mode)
            problem = "" if is_one else os.strerror(errno.ENOTDIR)
        except (OSError, UserspaceError) as error:
            problem = str(error.strerror if isinstance(error, OSError) else error)
            if isinstance(error, FileNotFoundError) and directory in usual:
                continue
        if problem:
            raise CommandRefused(f"looking into {option} {directory}: {problem}; nothing was changed", USAGE)
    return found


def _absent(site: Site, bin_dirs: tuple[str, ...], seccomp_dirs: tuple[str, ...]) -> list[str]:
    """Where nothing of ours is, one sentence each: directories that were named, and the usual ones of plugins together."""
    where: list[tuple[str, ...]] = [(directory,) for directory in bin_dirs] or [USUAL]
    found = [f"no plugin of ours is in {', '.join(each)}" for each in where if not plugins(site, each)]
    for directory in seccomp_dirs:
        with suppress(OSError):  # `belongings.remove` tells of it
            if not belongings.has_profile(directory, _root(site)):
                found.append(f"no seccomp profile of ours is in {directory}")
    return found


def _collect(site: Site, show: Callable[[str], None]) -> None:
    """Finish what dead calls left, as `gc` does."""
    found = look(site)
    if found.due:
        collect(site, show)


def _unrecorded(site: Site) -> tuple[list[PortRef], UserspaceError | None]:
    """The ports of ours without a record; or why the switch cannot be asked for them."""
    try:
        return cleanup.list_unrecorded_ports(site.node.store, site.node.switch), None
    except UserspaceError as error:
        return [], error


def _attached(ports: Iterable[PortRef], site: Site) -> list[str]:
    """What is attached or may be, one sentence each; `ports`: those without a record."""
    with bind("error"):
        records = site.node.store.journal.records()
    found = [f"{name_of(record)}: attached to {record.network}" for record in records]
    found += [f"{port.name}: a port of ours without a record" for port in ports]
    return found + belongings.in_doubt(site.settings, _root(site), records)


def _detach(ports: Iterable[PortRef], site: Site) -> list[str]:
    """Undo what is attached; what could not be undone, one sentence each."""
    failed = []
    with view.progress("detaching"):
        for record, error in cleanup.give_up(ports, site.node.store, site.node.driver, site.node.sandboxes):
            if error:
                failed.append(f"{name_of(record)}: {error}")
    return failed


def _undo_specs(site: Site) -> list[str]:
    """Undo what the node itself has, the latest first; what could not be undone, one sentence each."""
    failed = []
    with view.progress("undoing the node's own network"):
        records = sorted(site.node.store.journal.node_records(), key=lambda record: record.boottime_ns, reverse=True)
        keys = dict.fromkeys(map(key_of, records))
        with suppress(UserspaceError):  # `_unrecorded` tells of a switch that cannot be asked
            keys |= dict.fromkeys(sorted(site.node.switch.specs_in_rows(Deadline.after(SPEC_S))))
        keys |= {(TRANSLATION, ALL): None}
        for key in keys:
            try:
                undo(*key, site.node)
            except UserspaceError as error:
                failed.append(f"{' '.join(key)}: {error}")
    return failed


def _take_out_routes(site: Site) -> list[str]:
    """Take our routes out of pods, where an agent may have kept any; where that failed, one sentence each.

    Only then is forgotten that there were some: a second try is to find them, too.
    """
    known = os.path.lexists(site.map_path(f"{site.settings.state_dir}/{belongings.KNOWN_ROUTES}"))
    if not known and not site.settings.routes:
        return []
    with view.progress("taking routes out of pods"):
        into = Inspector(site.drivers.installation, site.drivers.store)
        holdings = list(into.ours())
        left = into.take_out(each for each in holdings if each.routes)
    found = ((each.pod, each.problem or left.get(each.located.place.sandbox, "")) for each in holdings)
    failed = [f"pod {name}: its routes of ours: {why}" for name, why in found if why]
    failed += [
        f"pods of which {source} tells: routes of ours were not looked for: {why}" for source, why in into.problems.items()
    ]
    return failed or belongings.forget_routes(site.settings, _root(site))


def _remove_plugins(site: Site, where: Iterable[str]) -> tuple[list[str], list[str]]:
    """Remove the plugin, and what a killed `install` left beside it.

    Returns the files that may be ours but cannot be read, and those that are not ours, one sentence each. Raises Refused.
    """
    unseen, others = [], []
    for plugin in plugins(site, where):
        if plugin.kind == "other" and plugin.problem:
            unseen.append(f"{plugin.path}: {plugin.problem}")
        elif plugin.kind == "other":
            others.append(f"{plugin.path}: it is not ours")
        else:
            _unlink(Path(site.map_path(plugin.path)))
    for directory in where:
        for temporary in _temporaries(Path(site.map_path(directory))):
            _unlink(temporary)
    return unseen, others


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise CommandRefused(f"removing {path}: {error.strerror}", FOUND) from error


def _temporaries(directory: Path) -> Iterable[Path]:
    """Half-written plugins: `install` writes them beside the plugin, with its process's number. Raises Refused."""
    try:
        found = belongings.names_in(str(directory), _TEMPORARY)
    except OSError as error:
        raise CommandRefused(f"looking into {directory}: {error.strerror}", FOUND) from error
    return [directory / name for name in found]


def _show(sentences: Iterable[str]) -> None:
    for sentence in sentences:
        click.echo(view.plain(sentence))
