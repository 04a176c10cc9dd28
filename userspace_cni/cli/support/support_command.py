"""`support`: one archive with what a maintainer needs to know of this node, without its secrets."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from typing import Any, Final

import click

from userspace_cni.base.host_paths import as_host_names
from userspace_cni.cli import view
from userspace_cni.cli.exit_codes import USAGE
from userspace_cni.cli.name_completion import file_names
from userspace_cni.cli.site import CommandRefused, NodeCommand, Site, open_site
from userspace_cni.cli.support.archive_file import STDOUT, require_writable, write_archive
from userspace_cni.cli.support.collecting import ITEM_MAX, TOTAL_MAX, Collected, CommandItem, SupportCollector, SupportItem
from userspace_cni.cli.support.known_keys import known_only
from userspace_cni.cli.support.node_files import named_kubeconfigs
from userspace_cni.cli.support.own_secrets import learn_environment, learn_secrets
from userspace_cni.cli.support.redaction import REDACTED, Redactor
from userspace_cni.cli.support.support_items import STEPS_IN, list_commands, list_items

_MIB: Final = 1 << 20
_FORM: Final = 1
_SAID_MAX: Final = 12
_README: Final = """\
What `userspace-cni support` collected on node {node} at {time}.

index.json   what is in each file, how long it took, and why something is missing or cut
commands/    the answers of our own commands, as JSON
agent/       the agent's pages, metrics, process and log
switch/      Open vSwitch: answers of ovs-vswitchd, tables of OVSDB, process, logs
kernel/      links, addresses, routes, policy rules, our tables of nftables
node/        records, spool, quarantine, mounts

Secrets are left out: "(redacted)" stands for what looks like one or is one that this node has, "(left out)" for what others wrote
under a key that we do not know. Left in, because nothing can be understood without: names of nodes, pods, namespaces and VMs,
IP and MAC addresses, paths. Look at the logs (agent/agent.log, switch/ovs.log) before you send it: they quote other programs.
"""


@click.command(
    "support",
    cls=NodeCommand,
    examples=(
        "userspace-cni support --list",
        "userspace-cni support --output node-1.tar.gz",
    ),
)
@click.option(
    "--output",
    metavar="FILE",
    default="",
    shell_complete=file_names,
    help="The archive; - for stdout. By default a dated name in this directory.",
)
@click.option("--log-mib", type=click.IntRange(1, 64), default=4, show_default=True, help="MiB of each log, its end.")
@click.option("--list", "only_list", is_flag=True, help="Only list what would be collected.")
@click.option("--json", "as_json", is_flag=True, help="The summary, or the list, as a JSON object.")
@click.pass_context
def support_command(ctx: click.Context, output: str, log_mib: int, only_list: bool, as_json: bool) -> None:
    """Collect what a maintainer needs to know of this node into one archive (tar.gz), without secrets.

    It has the answers of our own commands, the agent's pages, metrics and log, records, what Open vSwitch and the kernel say, and
    an index of all that. Each thing has its own time: what does not answer is named in the index, and the archive is made without
    it. Nothing of the node is changed.

    Only what is on the list is collected (--list); keys of others, as of an IPAM plugin, only if they are known; and every text
    is searched for what looks like a secret, and for the secrets of this node. Names and addresses stay. The file has mode 0600,
    is written whole or not at all, and replaces none.

    Exit code: 0 when the archive was written, also where things are missing in it, 1 when it cannot be written, 2 for a mistake
    in the call and for a file that exists, 3 for another user than root.
    """
    site = open_site(ctx)
    site.require_root("collecting what root alone may read")
    if as_json and output == STDOUT and not only_list:
        raise CommandRefused("--json needs --output FILE: stdout has the archive", USAGE)
    redactor = Redactor()
    commands = list_commands(ctx.find_root().command, site)
    items = list(list_items(site, redactor, log_mib * _MIB))
    if only_list:
        _list(items, commands, as_json=as_json)
        return
    began = time.time()
    node = re.sub(r"[^\w.-]", "_", site.drivers.installation.name)[:80]
    name = f"userspace-cni-support-{node}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(began))}"
    output = output or f"{name}.tar.gz"
    require_writable(output)
    with view.progress("collecting") as tell:
        _learn(redactor, site)
        found = SupportCollector(site.environ, tell).collect(items, commands)
        tell("leaving out secrets")
        index, files = _cleaned(found, redactor)
        about = {"form": _FORM, "node": node, "made": began, "seconds": round(time.time() - began, 3), "items": index}
        readme = _README.format(node=node, time=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began)))
        head = [("README.txt", readme.encode()), ("index.json", json.dumps(about, indent=1).encode())]
        tell("writing the archive")
        written = write_archive(output, name, [*head, *files])
    _say(output, written, index, as_json=as_json)


def _learn(redactor: Redactor, site: Site) -> None:
    networks = named_kubeconfigs(site.map_path(site.settings.state_dir))
    learn_secrets(redactor, site.settings, site.environ, site.map_path, networks)
    pid = site.client.process()
    if pid:
        learn_environment(redactor, pid, site.map_path)


def _cleaned(found: Sequence[Collected], redactor: Redactor) -> tuple[list[dict[str, Any]], list[tuple[str, bytes]]]:
    """The index, and the files without secrets: each thing by itself first, then all without what was learnt of any."""
    texts = [_text(each, redactor) for each in found]
    index, files, total = [], [], 0
    for each, text in zip(found, texts, strict=True):
        content = redactor.strike(as_host_names(text)).encode("utf-8", "replace")
        cut = each.cut or len(content) > 2 * ITEM_MAX or total + len(content) > TOTAL_MAX
        content = content[: max(0, min(2 * ITEM_MAX, TOTAL_MAX - total))]
        total += len(content)
        problem = redactor.strike(as_host_names(redactor.clean(each.problem)))
        index.append(
            {
                "path": each.path if content else "",
                "what": each.what,
                "bytes": len(content),
                "seconds": round(each.seconds, 3),
                "problem": problem,
                "cut": cut,
                "redacted": content.count(REDACTED.encode()),
            }
        )
        if content:
            files.append((each.path, content))
    return index, files


def _text(each: Collected, redactor: Redactor) -> str:
    if each.value is None:
        return ""
    for attachment in each.value.get("answer") or () if each.path == STEPS_IN else ():
        if isinstance(attachment, dict):  # what others wrote is in its steps and in the answer of its IPAM plugin
            attachment |= {key: known_only(attachment.get(key), redactor) for key in ("steps", "result")}
    if each.path.endswith(".jsonl"):  # `known_keys` has cleaned each text in it
        return str(each.value)
    if isinstance(each.value, str):
        try:
            value = json.loads(each.value) if each.path.endswith(".json") else None
        except ValueError:
            value = None
        if value is None:
            return redactor.clean(each.value)
        each.value = value
    return json.dumps(redactor.clean_value(each.value), indent=1) + "\n"


def _list(items: Sequence[SupportItem], commands: Sequence[CommandItem], *, as_json: bool) -> None:
    listed = [*((each.path, each.what) for each in items), *((each.path, each.what) for each in commands)]
    if as_json:
        view.show_json({"items": [{"path": path, "what": what} for path, what in listed]})
    else:
        view.show_table(("FILE", "WHAT"), [list(each) for each in listed])


def _say(output: str, written: int, index: Sequence[dict[str, Any]], *, as_json: bool) -> None:
    """What is in it, what is missing, and what to look at before it is sent."""
    missing = [each for each in index if each["problem"]]
    if as_json:
        view.show_json({"file": output, "bytes": written, "items": list(index)})
        return
    for each in missing[:_SAID_MAX]:
        view.note(f"missing: {each['what']}: {each['problem']}")
    if len(missing) > _SAID_MAX:
        view.note(f"missing: {len(missing) - _SAID_MAX} more, see index.json in it")
    redacted = sum(each["redacted"] for each in index)
    where = "on stdout" if output == STDOUT else output
    view.note(
        f"archive {where}: {view.format_count(len(index) - len(missing), 'thing')} in {written / 1024:,.0f} KiB, "
        f"{view.format_count(redacted, 'secret')} left out; README.txt says what is in it"
    )
    view.note("names and addresses are in it: look at agent/agent.log and switch/ovs.log before you send it")
