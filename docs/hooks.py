"""MkDocs hooks: pages made from the code, links out of docs/, and llms.txt."""

import dataclasses
import inspect
import posixpath
import re
import typing
from pathlib import Path
from typing import Any

from matplotlib import font_manager
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from PIL import Image, ImageDraw, ImageFont

import bert_tf
from bert_tf.cli import COMMANDS, command_named, usage
from bert_tf.options import choices_of, is_required, option_helps, titled_fields

ROOT = Path(__file__).parents[1]
# Files outside docs/ that are pages, too.
SHOWN = {"README.md": "index.md", "saved_models/README.md": "saved-models.md"}
COMMAND_OF = {
    "learn_vocabulary": "vocab",
    "make_shards": "shards",
    "export_model": "export",
    "list_tasks": "tasks",
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Lists a page for each command in the navigation."""
    (reference,) = (part["Reference"] for part in config.nav if "Reference" in part)
    pages = ["commands/overview.md", *map(page_of, COMMANDS)]
    reference[0] = {"Commands": pages}
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are made from the code."""
    pages = {page_of(name): command_page(name) for name in COMMANDS}
    pages["commands/overview.md"] = commands_page()
    pages["python-api.md"] = python_page()
    for source, page in SHOWN.items():
        pages[page] = (ROOT / source).read_text(encoding="utf-8")
    for uri, content in pages.items():
        files.append(File.generated(config, uri, content=content))
    return files


def page_of(command: str) -> str:
    """A command's page; index.md would be the page of the folder."""
    return f"commands/{command}.md"


def commands_page() -> str:
    """All commands, each with its summary."""
    rows = [
        f"| [`bert-tf {name}`]({posixpath.basename(page_of(name))}) | {text} |"
        for name, text in COMMANDS.items()
    ]
    return "\n".join(
        [
            "# Commands",
            "",
            "`bert-tf COMMAND --help` shows the same in a terminal; where options are many, those "
            "that most people need, and `--help_all` all. Every command takes "
            "`--config FILE.yaml`, a YAML file with the names of the options below; an option on "
            "the command line takes precedence.",
            "",
            "| command | |",
            "|---|---|",
            *rows,
            "",
            "Exit codes: 0 done; 2 the input or the options cannot be used, and a line on standard "
            "error says why and what to do; 75 stopped by SIGTERM after a checkpoint: run the same "
            "command again; 130 interrupted.",
        ]
    )


def command_page(name: str) -> str:
    """A command's help with a heading for each option, so that search finds it."""
    command = command_named(name)
    options: Any = command.options
    summary, _, rest = inspect.cleandoc(command.help or "").partition("\n")
    lines = [f"# bert-tf {name}", "", summary, "", "```", usage(name, options), "```", ""]
    lines += _paragraphs(rest)
    helps, hints = option_helps(options), typing.get_type_hints(options)
    title = None
    for group, field in titled_fields(options):
        if field.metadata.get("python"):
            continue
        if group != title:
            title = group
            lines += [f"## {group}", ""]
        given = field.name.upper() if field.metadata.get("positional") else f"--{field.name}"
        lines += [f"### `{given}` {{#{field.name}}}", ""]
        lines += [_sentence(helps.get(field.name, "")), "", f"*{_values(field, hints)}*", ""]
    return "\n".join(lines)


def _paragraphs(text: str) -> list[str]:
    """A module's docstring as Markdown: lines that are indented are commands."""
    lines: list[str] = []
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        if block.startswith("  "):
            lines += ["```", inspect.cleandoc("\n" + block), "```", ""]
        else:
            lines += [_linked(" ".join(block.split())), ""]
    return lines


def _linked(text: str) -> str:
    """Names of pages as links from commands/, options and paths as code."""
    text = re.sub(r"(?<![\w/`])docs/([\w-]+)\.md", r"[\1](../\1.md)", text)
    return re.sub(r"(?<![\w`-])(--\w+)", r"`\1`", text)


def _sentence(text: str) -> str:
    return _linked(text[:1].upper() + text[1:]).replace("<", "&lt;")


def _values(field: dataclasses.Field, hints: dict[str, Any]) -> str:
    """What an option takes, and its default."""
    hint = hints[field.name]
    choices = [str(choice) for choice in choices_of(hint) if choice is not None]
    inner = [each for each in typing.get_args(hint) if each is not type(None)]
    kind = inner[0] if inner and not choices else hint
    names = {int: "whole number", float: "number", bool: "switch", str: "text"}
    parts = [f"one of {', '.join(choices)}" if choices else names.get(kind, "text")]
    if typing.get_origin(hint) is list:
        parts[0] += "s, several"
    if hint is bool:
        parts.append(f"--no_{field.name} is its opposite")
    bounds = field.metadata.get("bounds", {})
    parts += [f"{bound.replace('_', ' ')} {value:g}" for bound, value in bounds.items()]
    if is_required(field):
        parts.append("required")
    elif field.default_factory is not dataclasses.MISSING:
        parts.append(f"default: {' '.join(map(str, field.default_factory())) or 'none'}")
    elif field.default is not None:
        parts.append(f"default: {field.default}")
    return "; ".join(parts)


def python_page() -> str:
    """The public names, from their docstrings."""
    names = [name for name in bert_tf.__all__ if not name.startswith("_")]
    functions = [name for name in names if name[0].islower()]
    classes = [name for name in names if name[0].isupper()]
    lines = [
        "# Python",
        "",
        "Everything below is imported from `bert_tf`. Functions that have a command take its "
        "options as keyword arguments: the command's page has their names, meaning and defaults.",
        "",
    ]
    for name in functions:
        command = COMMAND_OF.get(name, name)
        if command in COMMANDS:  # made when it is imported, of the command's `run`
            lines += [f"::: {command_named(command).run.__module__}.run", "    options:"]
            lines += [f"      heading: {name}", f"      toc_label: {name}"]
            lines += ["      show_signature: false", "      separate_signature: false", ""]
            lines += [f"Keyword arguments: [bert-tf {command}]({page_of(command)})."]
        else:
            lines += [f"::: bert_tf.{name}"]
        lines.append("")
    for name in classes:
        lines += [f"::: bert_tf.{name}", ""]
    return "\n".join(lines)


_FONT = font_manager.findfont("DejaVu Sans")  # comes with Matplotlib
_SUBTITLE = (60, 176, 1180, 250)  # its place in docs/card.png, in pixels
_WIDTH = _SUBTITLE[2] - _SUBTITLE[0]

_texts: dict[str, str] = {}  # page -> its Markdown, for llms.txt
_LINK = re.compile(r"\[([^\]]*)\]\(((?!\w+:)[^)#\s]+)(#[^)]*)?\)")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turns links that leave docs/ into links to the page that shows the file, or into its name."""
    uri = page.file.src_uri
    sources = {shown: source for source, shown in SHOWN.items()}
    folder = posixpath.dirname(sources.get(uri, f"docs/{uri}"))

    def link(found: re.Match) -> str:
        text, path, anchor = found[1], found[2], found[3] or ""
        target = posixpath.normpath(posixpath.join(folder, path))
        target = re.sub(r"^notebooks/(.*)\.ipynb$", r"docs/notebooks/\1.md", target)
        place = SHOWN.get(target, target.removeprefix("docs/"))
        if target in SHOWN or target.startswith("docs/"):
            return f"[{text}]({posixpath.relpath(place, posixpath.dirname(uri) or '.')}{anchor})"
        return text if text.startswith("`") else f"{text} (`{target}`)"

    _texts[uri] = _LINK.sub(link, markdown)
    return _texts[uri]


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Makes empty header cells plain cells, which screen readers do not announce as headers."""
    return html.replace("<th></th>", "<td></td>")


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Draws the picture that links to the page show: docs/card.png with the page's title."""
    if config.site_url:  # links to pictures must be whole
        with Image.open(ROOT / "docs" / "card.png") as card:
            draw = ImageDraw.Draw(card)
            draw.rectangle(_SUBTITLE, fill="white")
            name = str(page.title)
            size = 44
            while draw.textlength(name, font := ImageFont.truetype(_FONT, size)) > _WIDTH:
                size -= 1
            draw.text(_SUBTITLE[:2], name, fill="#2b2b2b", font=font)
            path = Path(config.site_dir, "cards", page.url).with_suffix(".png")
            path.parent.mkdir(parents=True, exist_ok=True)
            card.save(path)
    return output


def on_post_build(config: MkDocsConfig) -> None:
    """Writes llms.txt, a list of the pages for language models, and llms-full.txt, their text."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    for part, uris in _pages(config.nav):
        lines += [f"## {part}", ""]
        for uri in uris:
            heading = re.search(r"^# (.+)$", _texts[uri], re.MULTILINE)
            title = heading[1] if heading else uri
            lines.append(f"- [{title}]({uri.removesuffix('.md')}.html)")
        lines.append("")
    site = Path(config.site_dir)
    (site / "llms.txt").write_text("\n".join(lines), encoding="utf-8")
    (site / "llms-full.txt").write_text("\n\n".join(_texts.values()), encoding="utf-8")


def _pages(nav: Any) -> list[tuple[str, list[str]]]:
    """The parts of the site, each with its pages."""

    def uris(node: Any) -> list[str]:
        if isinstance(node, str):
            return [node] if node.endswith(".md") else []
        values = node.values() if isinstance(node, dict) else node
        return [uri for value in values for uri in uris(value)]

    return [(title, uris(part)) for each in nav for title, part in each.items()]
