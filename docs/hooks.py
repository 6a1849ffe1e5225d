"""Puts files that lie beside docs/ into the site, and mends links between the two.

In the repository a page links a file by where it lies, ``../reproduction/fedstar/table1.md``. In the site that file is
``repository/reproduction/fedstar/table1.md``.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
OUTSIDE = ("reproduction/**/*", "benchmarks/README.md", "benchmarks/results/*", "examples/**/*", "*.md", "LICENSE")
SUFFIXES = {".md", ".png", ".csv", ".txt", ".py", ".yaml", ""}
LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?\)")


def in_site(path: str) -> str:
    """Where a file of the repository is in the site."""
    return path.removeprefix("docs/") if path.startswith("docs/") else f"repository/{path}"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path in sorted(path for pattern in OUTSIDE for path in ROOT.glob(pattern)):
        if path.is_file() and path.suffix in SUFFIXES and "__pycache__" not in path.parts:
            name = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, in_site(name), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    here = page.file.src_uri
    own = here.removeprefix("repository/") if here.startswith("repository/") else f"docs/{here}"

    def mended(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(own), link[2]))
        if files.get_file_from_path(in_site(target)) is None:
            return link[0]
        relative = posixpath.relpath(in_site(target), posixpath.dirname(here) or ".")
        return f"{link[1]}{relative}{link[3] or ''})"

    return LINK.sub(mended, markdown)
