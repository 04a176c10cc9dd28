"""`kubevirt define`: prints what the sidecar would make of a VM's definition. It reads files only, and needs no cluster.

Only the definition goes to stdout, so that it can be piped into `virsh define /dev/stdin`; where the sidecar would refuse, stdout
is empty.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from kubevirt.domain import Policy, mutate
from kubevirt.lint.linted_documents import DOMAIN, kind_of
from kubevirt.patience import Patience
from kubevirt.sidecar_errors import DefinitionRefused, KubevirtError
from kubevirt.socket_search import SidecarPlaces, resolve
from kubevirt.vmi import VirtualMachine, read_vmi
from userspace_cni.cli import view
from userspace_cni.cli.command_line import ProgramCommand
from userspace_cni.cli.exit_codes import FOUND
from userspace_cni.cli.manifest_files import read_file
from userspace_cni.cli.view import Cell

_BINDING: Final = "vhostuser"
_MTU: Final = ("off", "element", "override", "auto")
_VERSION: Final = re.compile(r"[0-9]{1,4}(\.[0-9]{1,4}){1,2}", re.ASCII)
_STYLES: Final = {"+": "green", "-": "red", "@": "cyan"}
_FILE: Final = click.Path(exists=True, dir_okay=False, allow_dash=True)


def _version(_: click.Context, __: click.Parameter, text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    if not _VERSION.fullmatch(text):
        raise click.BadParameter(f"{text!r} is not a version, such as 11.10 or 11.10.0")
    return tuple(map(int, text.split(".")))


@click.command(
    "define",
    cls=ProgramCommand,
    examples=(
        "userspace-cni kubevirt define vmi.yaml domain.xml",
        "userspace-cni kubevirt define vmi.yaml - --diff < domain.xml",
    ),
)
@click.argument("vmi", type=_FILE, metavar="VMI")
@click.argument("domain", type=_FILE, metavar="DOMAIN")
@click.option("--binding", default=_BINDING, show_default=True, metavar="NAME", help="Name of the binding in KubeVirt.")
@click.option(
    "--network-info",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="What the downward API tells the sidecar, /etc/podinfo/network-info; else nothing.",
)
@click.option("--mtu", type=click.Choice(_MTU), default="off", show_default=True, help="How the guest learns its MTU.")
@click.option("--libvirt", callback=_version, metavar="X.Y", help="Version of libvirt that gets the domain; else unknown.")
@click.option("--diff", "as_diff", is_flag=True, help="Show what is different instead.")
def define_command(vmi: str, domain: str, as_diff: bool, **options: Any) -> None:
    """Print what the sidecar would make of a domain: the same libvirt XML with the VM's vhost-user interfaces in it.

    VMI is a VirtualMachineInstance, or a VirtualMachine whose template counts, in YAML or JSON; without a namespace it is of
    `default`. DOMAIN is the XML of a libvirt domain. One of them may be - for stdin. The reasons for each interface go to
    stderr. Exit code: 0 for a definition, 1 where the sidecar would refuse, 2 for a file that is none of these.

    \b
    For example:
      userspace-cni kubevirt define vm.yaml domain.xml | virsh define /dev/stdin
      virsh dumpxml vm | userspace-cni kubevirt define --diff vm.yaml -
    """
    if vmi == domain == "-":
        raise click.UsageError("VMI and DOMAIN are both -: stdin can be one of them")
    instance, before = _instance(vmi), _domain(domain)
    try:
        after = _define(instance, before, **options)
    except KubevirtError as error:
        view.note(f"error  {error.name}: {error.message}")
        view.note(f"  do   {error.remedy}")
        raise click.exceptions.Exit(FOUND) from error
    if after == before:
        view.note("nothing to change: all of it is in the domain already")
    if as_diff:
        _show_diff(before, after, "stdin" if domain == "-" else domain)
    else:
        click.echo(after.encode(), nl=not after.endswith("\n"))


def _define(
    instance: Mapping[str, Any], before: str, binding: str, network_info: str | None, mtu: Any, libvirt: tuple[int, ...]
) -> str:
    """The new XML; a line on stderr for each network. Raises KubevirtError."""
    machine = read_vmi(instance)
    _require_bound(machine, binding)
    places = SidecarPlaces(podinfo=network_info or "", patience=Patience(0))
    return mutate(before, machine, resolve(machine, binding, places, 0, view.note), Policy(mtu, libvirt))


def _require_bound(machine: VirtualMachine, binding: str) -> None:
    """Raise Refused where no interface of the VM has the binding: KubeVirt would not ask this sidecar."""
    found = {each.binding for each in machine.interfaces if each.binding}
    if binding in found:
        return
    message = f"no interface of VM {machine} has the binding {binding!r}, but: {view.join(sorted(found), 'none')}"
    raise DefinitionRefused(
        "other-binding", message, "give one `binding: {name: " + binding + "}`, or name another with --binding"
    )


def _instance(path: str) -> Mapping[str, Any]:
    """The VMI in a file, made of the template for a VirtualMachine. Raises UsageError when there is not exactly one."""
    machines = [(kind_of(each), each) for each in _contents(path) if kind_of(each).startswith("VirtualMachine")]
    if len(machines) != 1:
        raise click.UsageError(
            f"file {_named(path)} has {len(machines)} objects of kind VirtualMachine or VirtualMachineInstance: it must have one"
        )
    kind, content = machines[0]
    own = _object(content.get("metadata"))
    metadata = {"namespace": "default", **{key: value for key, value in own.items() if value is not None}}
    if kind != "VirtualMachine":
        return {**content, "metadata": metadata}
    template = _object(_object(content.get("spec")).get("template"))
    annotations = _object(template.get("metadata")).get("annotations")
    names = {key: metadata[key] for key in ("namespace", "name") if key in metadata}
    return {"metadata": {**names, "annotations": annotations}, "spec": template.get("spec")}


def _domain(path: str) -> str:
    contents = _contents(path)
    if len(contents) != 1 or kind_of(contents[0]) != DOMAIN:
        raise click.UsageError(f"file {_named(path)} is not XML: it must be the definition of a libvirt domain")
    return str(contents[0])


def _contents(path: str) -> list[Any]:
    """The documents of a file. Raises UsageError when it cannot be read."""
    documents, findings = read_file(path)
    if findings:
        raise click.UsageError(f"file {_named(path)}: {findings[0].message}; {findings[0].remedy}")
    return [each.content for each in documents]


def _named(path: str) -> str:
    return "stdin" if path == "-" else path


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _show_diff(before: str, after: str, name: str) -> None:
    """Unified, in colours on a terminal."""
    for line in difflib.unified_diff(
        before.splitlines(), after.splitlines(), name, f"{Path(name).name} with its interfaces", lineterm=""
    ):
        style = "bold" if line.startswith(("---", "+++")) else _STYLES.get(line[0], "")
        view.say(Cell(line.expandtabs(), style))
