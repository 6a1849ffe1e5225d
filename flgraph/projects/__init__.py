"""Small projects to begin with: three partners' tables, a configuration, a script and a page to read."""

from __future__ import annotations

from pathlib import Path

import jinja2

from flgraph.errors import expect
from flgraph.projects.tables import PARTNERS, TABLES
from flgraph.runs.files import writing

TASKS = tuple(TABLES)
_FILES = {
    "federation.yaml.j2": "federation.yaml",
    "train.py.j2": "train.py",
    "README.md.j2": "README.md",
}


def create(folder: Path, task: str) -> list[Path]:
    """Writes a project that runs as it is.

    Args:
        folder: must not exist or be empty.
        task: ``"nodes"``, ``"graphs"`` or ``"hetero"``.

    Returns:
        The files.

    Raises:
        InputError: the folder or the task cannot be used.
    """
    expect(task in TASKS, "--task", f"one of {', '.join(TASKS)}", task)
    free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    expect(free, "FOLDER", "one that does not exist yet, or is empty", folder)
    texts: dict[str, str] = {}
    for number, partner in enumerate(PARTNERS):
        for name, rows in TABLES[task](number).items():
            texts[f"{partner}/{name}.csv"] = "".join(",".join(map(str, row)) + "\n" for row in rows)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    known = {"task": task, "partners": PARTNERS, "folder": folder.resolve().name, "root": str(folder.resolve())}
    for template, name in _FILES.items():
        texts[name] = environment.get_template(template).render(known)
    for partner in PARTNERS:
        texts[f"sites/{partner}.yaml"] = environment.get_template("site.yaml.j2").render(known, partner=partner)
    with writing(folder):
        for name, text in texts.items():
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    return [folder / name for name in texts]
