"""The hook with which MkDocs makes a book of the repository's pages, beside its configuration.

It brings in the pages that are outside of docs/, each by its path in the repository below repository/, and has links lead where
they lead in the repository. A link to a file that is no page of the book, such as a source, becomes its text. It fetches nothing,
and what it makes depends on the files alone.
"""

from __future__ import annotations

import logging
import posixpath
import re
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

ROOT: Final = Path(__file__).resolve().parents[2]
_OUTSIDE: Final = "repository/"
_FRONT: Final = "docs/site/front.md"
_ASSETS: Final = "docs/site/assets"
_RANKS: Final = {f"{_OUTSIDE}CHANGELOG.md": 0.1, "kubernetes-cases.md": 0.3, "cni-conformance.md": 0.3, "manual/": 0.5}
"""How much what is found on pages that begin so counts in a search, beside 1: records, and lists made of the code, come last."""
_TITLES: Final = {"index.md": "What it is", f"{_OUTSIDE}README.md": "README"}
"""What pages are named in lists that are headed with the project's name, which is a command's, too."""
_INDEX: Final = "docs/README.md"
"""The list of pages on a code-hosting page; here the front page is in its place."""
_FENCED: Final = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_COMMENT: Final = re.compile(r"^<!--.*?-->\n", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"(?P<span>`[^`]+`)|(?P<picture>!?)\[(?P<text>(?:`[^`]*`|[^\[\]`])*)\]\((?P<target>[^)\s]+)\)")
_SITEMAPS: Final = ("sitemap.xml", "sitemap.xml.gz")
_log: Final = logging.getLogger("mkdocs.hooks.book")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Anchors are those of code-hosting pages, so that one link fits both."""
    config.mdx_configs["toc"]["slugify"] = slugify(case="lower")
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the front page, what is shown with all pages, and the pages outside of docs/ that the list of chapters names."""
    files.append(_taken(config, "index.md", _FRONT))
    for asset in sorted((ROOT / _ASSETS).iterdir()):
        files.append(_taken(config, f"assets/{asset.name}", f"{_ASSETS}/{asset.name}"))
    for uri in _listed(config.nav):
        if uri.startswith(_OUTSIDE):
            files.append(_taken(config, uri, uri.removeprefix(_OUTSIDE)))
    return files


def on_page_markdown(markdown: str, /, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - as MkDocs calls it
    """The page with its links as the book has them, and without comments, and with its rank in a search and its name in lists."""
    for begin, boost in _RANKS.items():
        if page.file.src_uri.startswith(begin):
            page.meta["search"] = {"boost": boost}
    if page.file.src_uri in _TITLES:
        page.meta["title"] = _TITLES[page.file.src_uri]
    made, end = [], 0
    for fenced in _FENCED.finditer(markdown):
        made += [_prose(markdown[end : fenced.start()], page, files), fenced[0]]
        end = fenced.end()
    return "".join([*made, _prose(markdown[end:], page, files)])


def on_post_build(config: MkDocsConfig) -> None:
    """A list of addresses for search engines needs the site's own address, and has the day in it."""
    for name in _SITEMAPS:
        (Path(config.site_dir) / name).unlink(missing_ok=True)


def _taken(config: MkDocsConfig, uri: str, path: str) -> File:
    return File.generated(config, uri, abs_src_path=str(ROOT / path))


def _listed(nav: Any) -> list[str]:
    """The pages of a list of chapters, in order."""
    if isinstance(nav, str):
        return [nav]
    return [uri for each in (nav.values() if isinstance(nav, dict) else nav or ()) for uri in _listed(each)]


def _prose(text: str, page: Page, files: Files) -> str:
    return _LINK.sub(lambda link: _as_in_the_book(link, page, files), _COMMENT.sub("", text))


def _as_in_the_book(link: re.Match[str], page: Page, files: Files) -> str:
    target, text = link["target"], link["text"]
    if link["span"] or "://" in target or target.startswith(("#", "mailto:")):
        return link[0]
    path, _, anchor = target.partition("#")
    here = _in_repository(page.file.src_uri)
    there = posixpath.normpath(posixpath.join(posixpath.dirname(here), path))
    uri = _in_book(there)
    if files.get_file_from_path(uri) is None:
        if not (ROOT / there).exists():
            _log.warning("%s: the link to %s leads nowhere: mend it", here, target)
        return text
    found = posixpath.relpath(uri, posixpath.dirname(page.file.src_uri) or ".")
    return f"{link['picture']}[{text}]({found}{'#' if anchor else ''}{anchor})"


def _in_repository(uri: str) -> str:
    """Where in the repository a page of the book is."""
    if uri == "index.md":
        return _FRONT
    return uri.removeprefix(_OUTSIDE) if uri.startswith(_OUTSIDE) else f"docs/{uri}"


def _in_book(path: str) -> str:
    """Where in the book a file of the repository would be."""
    if path in (_INDEX, "docs"):
        return "index.md"
    return path.removeprefix("docs/") if path.startswith("docs/") else f"{_OUTSIDE}{path}"
