"""MkDocs hooks: pages that are not in `docs/`, links between all of them, and nothing that a
browser fetches elsewhere.

A page keeps the links that it has in the repository, which work there; here they
are resolved against its place in the repository and led to the page of the site.
A link to a file that has no page becomes its name. A link to nothing fails the
build, as all warnings do (`make docs` is strict).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs_site import api_reference, cli_reference
from suggest.distribution import VERSION

ROOT = Path(__file__).resolve().parents[1]
# Files of the repository outside of `docs/`, and where they are on the site.
ELSEWHERE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "reporting.md",
    "examples/digits/README.md": "examples/digits.md",
    "examples/cifar10/README.md": "examples/cifar10.md",
    "examples/clients/go/README.md": "examples/go-client.md",
}


def list_of_decisions() -> str:
    lines = ["# Decisions\n", "Decisions that were close, each on half a page.\n"]
    for path in sorted((ROOT / "docs" / "adr").glob("[0-9]*.md")):
        title = path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        lines.append(f"* [{title}]({path.name})")
    return "\n".join(lines) + "\n"


def keys_of_the_file() -> str:
    """The table in docs/experiment.md that `docs_site.file_reference` makes,
    on a page of its own.
    """
    text = (ROOT / "docs" / "experiment.md").read_text(encoding="utf-8")
    table = re.search(
        r"^<!-- made by docs_site.file_reference[^\n]*begin -->\n(.*?)^<!--",
        text,
        re.MULTILINE | re.DOTALL,
    )
    if table is None:
        raise PluginError("docs/experiment.md: the markers around the table of keys are missing")
    return (
        f"# Keys of experiment.yaml\n\nWhat they are for: [Write "
        f"experiment.yaml](../experiment.md).\n\n{table[1]}"
    )


GENERATED = {
    "reference/file.md": keys_of_the_file,
    "reference/cli.md": cli_reference.page,
    "reference/api.md": api_reference.page,
    "adr/index.md": list_of_decisions,
}
STANDS_FOR = {"proto/suggest/v1/suggest.proto": "reference/api.md", "docs/adr": "adr/index.md"}
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
_FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
_LOADED = re.compile(
    r"<(?:script|img|link|iframe)\b[^>]*?\b(?:src|href)=\"?(https?:)?//[^\">]*", re.IGNORECASE
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.copyright = f"Tuner {VERSION}"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, place in ELSEWHERE.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / source)))
    for place, page in GENERATED.items():
        files.append(File.generated(config, place, content=page()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    here = page.file.src_uri
    if here in GENERATED:
        return markdown
    places = (
        {f"docs/{each.src_uri}": each.src_uri for each in files if not each.generated_by}
        | STANDS_FOR
        | ELSEWHERE
    )
    source = next((source for source, place in ELSEWHERE.items() if place == here), f"docs/{here}")

    def led(found: re.Match[str]) -> str:
        picture, text, link = found.groups()
        target, mark, anchor = link.partition("#")
        if not target or re.match(r"\w+:", target):
            return found[0]
        wanted = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if wanted in places:
            path = posixpath.relpath(places[wanted], posixpath.dirname(here) or ".")
            return f"{picture}[{text}]({path}{mark}{anchor})"
        if (ROOT / wanted).exists() and not wanted.startswith("docs/"):
            return text
        return found[0]  # MkDocs reports it

    return "".join(each if fenced else _LINK.sub(led, each) for fenced, each in _parts(markdown))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Where MkDocs differs from GitHub: escaped bars in a table's code,
    and lists without an empty line before them.
    """
    if found := re.search(r"<p>[^<]*(?:<(?!/p>)[^<]*)*?\n([*-] [^<\n]*)", html):
        raise PluginError(
            f"{page.file.src_uri}: put an empty line before the list that begins with: {found[1]}"
        )
    return re.sub(r"<td.*?</td>", lambda cell: cell[0].replace("\\|", "|"), html, flags=re.DOTALL)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    if found := _LOADED.search(output.replace(' rel="canonical"', "")):
        raise PluginError(f"{page.file.src_uri} loads something from elsewhere: {found[0]}")
    return output


def _parts(markdown: str) -> Iterator[tuple[bool, str]]:
    """Text and code blocks by turns; links in code stay as they are."""
    end = 0
    for fence in _FENCE.finditer(markdown):
        yield False, markdown[end : fence.start()]
        yield True, fence[0]
        end = fence.end()
    yield False, markdown[end:]
