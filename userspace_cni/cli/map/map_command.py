"""`map`: the picture of this node's network, as SVG, as a page, or as its facts. It changes nothing."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from userspace_cni.cli import view
from userspace_cni.cli.exit_codes import FOUND, UNREACHABLE
from userspace_cni.cli.map.html_page import write_page
from userspace_cni.cli.map.looking import MapLook
from userspace_cni.cli.map.picture import draw_picture
from userspace_cni.cli.map.svg_drawing import write_svg
from userspace_cni.cli.site import NodeCommand, open_site
from userspace_cni.diagnosis.node_map import has_fault


@click.command(
    "map",
    cls=NodeCommand,
    examples=(
        "userspace-cni map > node.svg",
        "userspace-cni map --html node.html",
        "userspace-cni map --json --seconds 0",
    ),
)
@click.option(
    "--html",
    "page",
    type=click.Path(dir_okay=False, allow_dash=True),
    metavar="FILE",
    help="Write a page with search instead, which needs nothing else; - for stdout.",
)
@click.option("--json", "as_json", is_flag=True, help="The facts of the picture, as a JSON object.")
@click.option(
    "--seconds",
    type=click.FloatRange(0, 60),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between the two looks at the counters, from which rates come; 0: no rates.",
)
@click.pass_context
def map_command(ctx: click.Context, page: str | None, as_json: bool, seconds: float) -> None:
    """Draw this node's network: bridges, what leads out of them, and the pods and VMs behind their ports, with VLANs, networks,
    rates, limits, mirrors and states. It writes SVG to stdout, or with --html a page for a browser: search, everything of
    a port that is pointed at and its way out, zoom.

    It needs neither an agent nor a living switch: what could not be asked is told in the picture. Exit code: 0, 1 when the
    picture shows a fault, 3 when the switch cannot be asked.
    """
    if page and as_json:
        raise click.UsageError("--html and --json: give one of them")
    site = open_site(ctx)
    with view.progress(f"looking at the node's network, and counting frames for {seconds:g} s"):
        found = MapLook(ctx, site, seconds).look()
    if as_json:
        view.show_json(asdict(found))
    elif page:
        with click.open_file(page, "wb", atomic=_can_be_replaced(Path(page))) as file:
            file.write(write_page(draw_picture(found)).encode())
    else:
        click.echo(write_svg(draw_picture(found)).encode(), nl=False)  # UTF-8, whatever stdout has
    if not found.asked:
        ctx.exit(UNREACHABLE)
    if has_fault(found):
        ctx.exit(FOUND)


def _can_be_replaced(page: Path) -> bool:
    """Whether a new file may take its place: of a device, as /dev/null, and of what a link names, none may; these are written."""
    return str(page) != "-" and not page.is_symlink() and (page.is_file() or not page.exists())
