"""The network that the agent puts in place for the node's runtimes: the file of a setting, or the one given to `install`.

A runtime that has it gives it to the next pod. So it comes when the agent takes calls and the switch can take ports, and not
before. Once there it stays while the agent is away: runtimes need it to delete pods, too, and a call to an agent that is away is
answered "try again later". What ADD would refuse is never put in place, and takes nothing away that is there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from userspace_cni.attachment.records import Record
from userspace_cni.attachment.specs import Plan, Spec
from userspace_cni.attachment.steps import RuntimeNetwork, Step, Steps
from userspace_cni.base.deadline import Deadline
from userspace_cni.base.errors import InvalidConfig, NotServing, Unavailable, Undecodable, UserspaceError
from userspace_cni.base.log import say
from userspace_cni.cni.conflist import LARGEST, OUR_TYPE, mark, plugins_of, read_list, require_name
from userspace_cni.host.files.whole_files import read_of_root
from userspace_cni.host.runtimes.runtime_networks import look_at, require_ours
from userspace_cni.network.spec_list import INSTALL, RUNTIME_NETWORK, SETTINGS
from userspace_cni.node.belongings import RUNTIME_NETWORK_COPY
from userspace_cni.node.remarks import remarks_on

if TYPE_CHECKING:
    from userspace_cni.base.settings import Settings
    from userspace_cni.node.local_node import LocalNode

NAME: Final = "runtimes"
"""Name of the one spec of its kind."""
_READY_S: Final = 5.0


@dataclass(frozen=True)
class PluginList:
    """A list of plugins: the `name` of its file, its `text`, and for people where it is from."""

    name: str
    text: bytes
    said_by: str


def specs(settings: Settings, node: LocalNode, serving: Callable[[], bool]) -> tuple[Sequence[Spec], frozenset[str]]:
    """The spec, if there is one, and whether INSTALL is complete. The setting goes before what `install` was given.

    `serving`: whether calls are taken.
    """
    path = settings.cni_conf_file
    if path:
        try:
            given = read(path)
        except UserspaceError as error:
            return [Spec(RUNTIME_NETWORK, NAME, SETTINGS, path, _refused(error), content=str(error))], frozenset()
        return [_spec(SETTINGS, path, given, node, serving)], frozenset()
    try:
        kept = read_installed(node.installation.root.path(node.installation.settings.state_dir))
    except UserspaceError as error:
        say("warning", "the network that install was given cannot be read", error=error)
        return [], frozenset()
    if kept is None:
        return [], frozenset({INSTALL})
    return [_spec(INSTALL, kept.said_by, kept, node, serving)], frozenset({INSTALL})


def _spec(source: str, said_by: str, given: PluginList, node: LocalNode, serving: Callable[[], bool]) -> Spec:
    """The spec, which is tried at once when calls are taken."""
    return Spec(RUNTIME_NETWORK, NAME, source, said_by, _plan(given, node, serving), content=(given, serving()))


def read(path: str) -> PluginList:
    """The list in the file, a path of this process. Raises Unavailable while it is away, InvalidConfig for another's."""
    what = f"network file {path}"
    name = require_name(Path(path).name, what)
    text = read_of_root(path, what, LARGEST.octets + 1)
    if text is None:
        raise Unavailable(f"{what}: it does not exist", "see the setting cni_conf_file, and option --network of install")
    return PluginList(name, text, path)


def require_usable(given: PluginList) -> dict[str, object]:
    """The list, if ADD would take it: our plugin is in it, and is configured as ADD reads it. Raises UserspaceError."""
    where = f"network file {given.said_by}"
    config = read_list(given.text, where)
    ours = [(number, plugin) for number, plugin in plugins_of(config, {}) if plugin["type"] == OUR_TYPE]
    if not ours:
        raise InvalidConfig(
            f"{where}: no plugin of it is of type '{OUR_TYPE}'", "the agent puts only networks of its own in place"
        )
    for number, plugin in ours:
        refusal = next((remark for remark in remarks_on(plugin) if remark.code), None)
        if refusal:
            raise InvalidConfig(f"{where}: plugins[{number}]: {refusal.message}", refusal.remedy)
    return config


def read_installed(state_dir: str) -> PluginList | None:
    """What `install` was given, by this process's path of the state directory; None for nothing. Raises UserspaceError."""
    path = Path(state_dir) / RUNTIME_NETWORK_COPY
    try:
        found = json.loads(path.read_bytes())
        name, text = found["name"], found["text"].encode()
        return PluginList(require_name(name, str(path)), text, f"install --network {name}")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unavailable(f"reading {path}: {error.strerror}", "give install the network again") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Undecodable(f"{path} is not what install writes: {error!r:.100}", "give install the network again") from error


def copy_of(given: PluginList) -> bytes:
    """What `install` writes for `read_installed`."""
    return json.dumps({"name": given.name, "text": given.text.decode()}).encode()


def _refused(error: UserspaceError) -> Plan:
    def steps(_: Record | None) -> tuple[Step, ...]:
        raise error

    return steps


def former_names(record: Record | None, given: PluginList) -> tuple[str, ...]:
    """The names of the files of the record that may be there and are not this one's; during a change, those before, too."""
    steps = record.runtime_networks if record else ()
    unfinished = [name for each in steps for name in each.instead_of] if record and record.state != "ready" else []
    return tuple(sorted({*(each.name for each in steps), *unfinished} - {given.name}))


def _status(record: Record | None, given: PluginList, node: LocalNode) -> tuple[RuntimeNetwork, ...]:
    """The file of the record that is there, if one is: after a crash during a change it may be the new one alone."""
    if record is None:
        return ()
    files = Steps((*(record.complete or ()), *record.steps)).runtime_networks
    found = [(each, look) for each in files if (look := look_at(each, node.installation.root))]
    first = next(iter([*(each for each, look in found if look.store == each.store), *(each for each, _ in found)]), None)
    if first and record.state != "ready":
        first = replace(first, instead_of=former_names(record, replace(given, name=first.name)))
    return (first,) if first else ()


def _plan(given: PluginList, node: LocalNode, serving: Callable[[], bool]) -> Plan:
    def steps(record: Record | None) -> tuple[Step, ...]:
        config, store = require_usable(given), node.store.journal.identity()
        step = RuntimeNetwork(
            node.installation.settings.cni_conf_dir, given.name, mark(config, store), store, former_names(record, given)
        )
        found = look_at(step, node.installation.root)
        require_ours(step, found)
        former = next(iter(Steps((record.complete or ()) if record else ()).runtime_networks), None)
        if not serving():  # what is there stays, and nothing comes
            there = _status(record, given, node)
            if not there:
                raise Unavailable(f"file {step.path}: it waits until this agent takes calls", "they begin in a moment")
            return there
        is_placed = record and record.state == "ready" and record.boot_id == node.store.boot_id()
        if found and former and is_placed and replace(former, instead_of=step.instead_of) == step:
            return (former,)
        deadline = Deadline.after(_READY_S)
        try:
            node.switch.ports.connect(deadline)
            node.switch.ready(deadline)
        except (NotServing, Unavailable) as error:
            raise Unavailable(f"file {step.path}: it waits until pods can be attached: {error.message}", error.details) from error
        return (step,)

    return steps
