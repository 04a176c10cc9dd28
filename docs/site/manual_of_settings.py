"""The hook that makes a page of the table of settings: each with what it can be, its default and its variables.

The page is below manual/ on the site alone, as those of manual_of_commands.py. docs/settings.md says how settings work together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from userspace_cni.base.settings import TABLE, TABLES_OF_FILE, variables_of
from userspace_cni.base.settings_schema import settings_schema

_PAGE: Final = "manual/settings.md"
_CHAPTER: Final = "Reference"
_HEAD: Final = """# Each setting

What a program of this version knows of its settings. [Settings](../settings.md) says where they are read, and tells more of each
and of the tables.
"""
_TYPES: Final = {"integer": "whole number", "boolean": "`true` or `false`", "array": "list", "object": "table"}
_SIGNS: Final = re.compile(r"`[^`]*`|[<>*_\[\]]")
"""What Markdown would read as its own, or a span of code, in which it reads nothing."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The chapter of references has the page."""
    for chapter in config.nav or ():
        if _CHAPTER in chapter:
            chapter[_CHAPTER].append({"Each setting": _PAGE})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page."""
    files.append(File.generated(config, _PAGE, content="\n".join(_parts())))
    return files


def _parts() -> Iterator[str]:
    schemas = settings_schema()["properties"]
    yield _HEAD
    for key, (default, setting) in TABLE.items():
        yield f"## `{key}`\n"
        yield f"{_plain(setting.help[0].upper() + setting.help[1:])}.\n"
        yield f"- Value: {_value(schemas[key])}"
        yield f"- Default: {_default(default)}"
        yield f"- Environment: {', else '.join(f'`{name}`' for name in variables_of(key))}"
        yield f"- Since: {setting.since}\n"
    for key in TABLES_OF_FILE:
        of_one = schemas[key]["items"]
        yield f"## `[[{key}]]`\n"
        yield "A table of the file, which can be there many times. No variable sets it.\n"
        yield "| Key | Value |\n|---|---|"
        for name, schema in of_one["properties"].items():
            yield f"| `{name}` | {_value(schema)}{'; required' if name in of_one['required'] else ''} |"
        yield ""


def _value(schema: Mapping[str, Any]) -> str:
    """What the JSON Schema of a value says, in words; of a pattern and of items nothing, which help and errors explain."""
    if "enum" in schema:
        return " or ".join(f"`{_toml(choice)}`" for choice in schema["enum"])
    either = schema.get("anyOf", [schema])
    bounds = [words for each in either if (words := _bounds(each))]
    others = ", ".join(str(each) for each in schema.get("not", {}).get("enum", ()))
    if "items" in schema:
        return "list of strings; a variable has `:` between them"
    kind = _TYPES.get(schema["type"], schema["type"])
    return f"{kind}{', ' if bounds else ''}{', or '.join(bounds)}{f', but not {others}' if others else ''}"


def _bounds(schema: Mapping[str, Any]) -> str:
    if "const" in schema:
        return str(schema["const"])
    if "minimum" in schema:
        return f"{schema['minimum']} to {schema['maximum']}"
    if "exclusiveMinimum" in schema:
        return f"greater than {schema['exclusiveMinimum']} and less than {schema['exclusiveMaximum']:.0f}"
    return ""


def _plain(text: str) -> str:
    """The text as Markdown has it as it is, apart from its spans of code."""
    return _SIGNS.sub(lambda sign: sign[0] if sign[0].startswith("`") else f"&#{ord(sign[0])};", text)


def _default(value: Any) -> str:
    return "empty" if value in ("", ()) else f"`{_toml(value)}`"


def _toml(value: Any) -> str:
    """The value as a settings file has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)
