"""What commands about routes share: the name of a pod, the agent, the look into pods, and how each of them is refused."""

from __future__ import annotations

from typing import Any, Final

import click

from userspace_cni.base.errors import Unavailable, shorten
from userspace_cni.cli import view
from userspace_cni.cli.agent_client import DeadAgent, NoAgent, RoutesOff
from userspace_cni.cli.exit_codes import UNREACHABLE, USAGE
from userspace_cni.cli.site import CommandRefused, Site
from userspace_cni.routes.inspection import Inspector

OFF: Final = "routes in pods are off on this node: the setting routes turns them on (docs/routes.md)"


def pod_name(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str:
    """The check of an argument or option that names a pod; "" where it is left out."""
    if not value:
        return ""
    if not all(value.split("/")) or value.count("/") > 1 or value.startswith("-"):
        what = "it must be NAMESPACE/NAME, for a container outside of a cluster its NAME, or the beginning of a sandbox's id"
        raise click.BadParameter(f"{shorten(value)!r} is not a pod: {what}")
    return value


def require_on(site: Site) -> None:
    """Refuse, with exit code 2, where the setting is off."""
    if not site.settings.routes:
        raise CommandRefused(OFF, USAGE)


def inspector(site: Site, what: str) -> Inspector:
    """What looks into the pods of this node; `what` it is for, for the message to a user who is not root. Raises Refused."""
    site.require_root(what)
    return Inspector(site.drivers.installation, site.drivers.store)


def ask(site: Site, *, look: bool = False) -> dict[str, Any]:
    """What the agent says of routes. Raises Refused, with exit code 2 where they are off; Unavailable."""
    try:
        return site.client.routes(look=look)
    except RoutesOff as error:
        raise CommandRefused(OFF, USAGE) from error
    except (NoAgent, DeadAgent) as error:
        if not site.settings.routes:
            raise CommandRefused(f"no agent runs here, and {OFF}", USAGE) from error
        raise CommandRefused(
            f"{error}. Without an agent `userspace-cni routes check` tells what pods have", UNREACHABLE
        ) from error


def is_kept(site: Site) -> bool:
    """Whether an agent keeps routes here; an agent that does not answer counts as one that keeps routes."""
    try:
        site.client.routes()
    except (NoAgent, DeadAgent, RoutesOff):
        return False
    except Unavailable:
        return True
    return True


def tell_problems(problems: object) -> None:
    """A note for each source that cannot be read now."""
    for source, problem in problems.items() if isinstance(problems, dict) else ():
        view.note(f"{source}: {problem}")
