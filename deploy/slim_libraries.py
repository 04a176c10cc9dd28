"""Takes out of an environment's libraries what is installed and never imported, and compiles the rest.

    python slim_libraries.py SITE-PACKAGES [STRIPPED]

Image and Debian package use it, in the Python that will run the program; it imports the standard library alone. Bytecode says
which source it is of by that source's hash, which is not looked at again, and not by a time: so the same files give the same
bytes, and no start compiles. `STRIPPED` is left out in front of the paths in it, if the libraries lie elsewhere now than later.

tests/runtimes imports, in the image, whatever any module imports: a name that is missing there must be taken off this list.
"""

from __future__ import annotations

import compileall
import shutil
import sys
from importlib.metadata import distributions
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Final

LEFT_OUT: Final = frozenset({
    *("aiohttp", "aiohttp-retry", "aiohappyeyeballs", "aiosignal", "attrs", "frozenlist", "multidict", "propcache", "yarl"),
    *("fixtures", "pygments", "markdown-it-py", "mdurl", "pip", "setuptools"),
})  # fmt: skip
"""Distributions: HTTP for asyncio, tests, colours for source code, and what installs others."""
OF_KUBERNETES: Final = ("aio", "client/api")
"""Of the client the project has credentials that programs give, and connections through proxies. The calls of the API, and the
same for asyncio, are 68 MB; the objects' classes, which go as well, 60 MB.
"""


def slim(site: Path) -> None:
    """Delete them, and all bytecode."""
    for found in list(distributions(path=[str(site)])):
        if found.metadata["Name"].lower().replace("_", "-") in LEFT_OUT:
            for file in found.files or ():
                Path(str(found.locate_file(file))).unlink(missing_ok=True)
    for name in OF_KUBERNETES:
        shutil.rmtree(site / "kubernetes" / name)
    for path in (site / "kubernetes" / "client" / "models").glob("*.py"):
        if path.name != "__init__.py":
            path.unlink()
    for path in (*site.glob("*/tests"), *site.rglob("__pycache__")):
        shutil.rmtree(path, ignore_errors=True)
    for path in sorted((path for path in site.rglob("*") if path.is_dir()), reverse=True):
        if not any(path.iterdir()):
            path.rmdir()


def main() -> int:
    """Do it; the exit code says whether everything that is left could be compiled."""
    site, stripped = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None
    slim(site)
    return not compileall.compile_dir(
        site,
        maxlevels=100,
        force=True,
        quiet=1,
        stripdir=stripped,
        prependdir="/" if stripped else None,
        invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
    )


if __name__ == "__main__":
    sys.exit(main())
