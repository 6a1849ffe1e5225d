"""Every code block of README and documentation works: Python runs, commands run or are parsed, YAML is accepted.

A comment in the line before a block, which readers do not see, says what else to do with it:

- ``<!-- run -->``: commands of ``flgraph`` and ``cd`` are run, a round of each ``fit``. Without it they are parsed:
  options, classes, files.
- ``<!-- not run: WHY -->``: Python is compiled only, commands of the shell are not looked at. Those of ``flgraph`` are
  parsed all the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import textwrap
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from flgraph.cli import fit, flare, parser
from flgraph.cli.main import main
from flgraph.reproduce.study import load_study

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(
    r"^(?:[ ]*<!-- (?P<mark>run|not run: [^\n]*) -->\n)?"
    r"(?P<indent>[ ]*)```(?P<language>\w+)[^\n]*\n(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
LINK = re.compile(r"\]\(([^)\s#:]+)(?:#[^)\s]*)?\)")
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "benchmarks" / "README.md"]
)
OTHER_TOOLS = {".", "cd", "echo", "export", "git", "jupyter", "mkdocs", "mypy", "ruff", "source", "tensorboard"}


@dataclass(frozen=True)
class Block:
    language: str
    code: str
    mark: str

    @property
    def run(self) -> bool:
        return self.mark == "run"

    @property
    def left_out(self) -> bool:
        return self.mark.startswith("not run")


def blocks(page: str) -> list[Block]:
    found = BLOCK.finditer((ROOT / page).read_text())
    return [Block(match["language"], textwrap.dedent(match["code"]), match["mark"] or "") for match in found]


class ParsedError(Exception):
    """In place of what a command would do."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in that has what a checkout has to offer."""
    for name in ("examples", "configs"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")  # else the command line sets a variable for its process
    return tmp_path


@contextlib.contextmanager
def parsing_only() -> Iterator[None]:
    """Commands of flgraph raise :class:`ParsedError` when their arguments are accepted."""

    def stop(*args: Any, **kwargs: Any) -> None:
        raise ParsedError

    def parse(self: Any, args: Any = None, *more: Any, **kwargs: Any) -> None:
        super(parser.CommandParser, self).parse_args(args, *more, **kwargs)
        raise ParsedError

    def check(given: Any, rest: Sequence[str]) -> None:
        if rest:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(fit.FederatedCLI, "before_instantiate_classes", before)
                flare.configuration(rest)
        raise ParsedError

    whole, before = flare._parser, fit.FederatedCLI.before_instantiate_classes

    def flare_parser() -> Any:
        made, commands = whole()
        return made, dict.fromkeys(commands, check)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit.FederatedCLI, "before_instantiate_classes", stop)
        patch.setattr(parser.CommandParser, "parse_args", parse)
        patch.setattr(flare, "_parser", flare_parser)
        yield


def commands(code: str) -> Iterator[list[str]]:
    for line in code.replace("\\\n", " ").splitlines():
        for part in re.split(r"\s(?:&&|\|)\s", line):
            words = shlex.split(part.removesuffix("&"), comments=True)
            while words and re.fullmatch(r"\w+=.*", words[0]):  # variables before a command
                words = words[1:]
            if words and words[0] != "&":
                yield words


def own_files(words: Sequence[str]) -> list[str]:
    """The reader's own files, and three dots, stand for the configuration of the first run."""
    result: list[str] = []
    for word in words:
        own = result[-1:] in (["-c"], ["--config"]) and not word.startswith(("configs/", "examples/"))
        result += ["-c", "configs/quickstart.yaml"] if word == "..." else ["configs/quickstart.yaml" if own else word]
    return result


def check_flgraph(words: Sequence[str], run: bool) -> None:
    if run:
        few = ["--trainer.rounds", "1", "--trainer.enable_progress_bar", "false"] if words[0] == "fit" else []
        with contextlib.ExitStack() as stack:
            if "--help" in words or "--version" in words:
                stack.enter_context(pytest.raises(SystemExit, match=r"^0$"))
            main([*words, *few])
        return
    with parsing_only(), pytest.raises((ParsedError, SystemExit)) as ended:
        main(own_files(words))
    assert not getattr(ended.value, "code", 0), words


def check_command(words: list[str], block: Block) -> None:
    """Fails where a command names what is not there."""
    if "flgraph" in words[:1] or words[:3] == ["python", "-m", "flgraph"] or "-m flgraph" in " ".join(words):
        check_flgraph(words[words.index("flgraph") + 1 :], block.run)
    elif block.left_out:
        return
    elif words[0] == "cd" and block.run:
        os.chdir(words[1])
    elif words[0] == "make":
        verbs = re.findall(r"(?m)^([a-z]+):.*## ", (ROOT / "Makefile").read_text())
        assert {word for word in words[1:] if "=" not in word} <= set(verbs)
    elif words[:2] == ["pip", "install"]:
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        for named in re.findall(r"(?:flgraph|\.)\[([\w,]+)\]", " ".join(words)):
            assert set(named.split(",")) <= set(extras)
    elif words[0] == "pytest":
        for test in (word for word in words[1:] if word.startswith("tests")):
            path, _, name = test.partition("::")
            assert (ROOT / path).exists()
            assert f"def {name.partition('[')[0]}" in (ROOT / path).read_text() if name else True
    elif words[0] == "python" and words[1].endswith(".py"):
        assert (ROOT / words[1]).is_file(), words
    else:
        assert words[0] in OTHER_TOOLS or words[0] == "torchrun", words


def check_yaml(code: str) -> None:
    """The sections of a run's configuration, or of a site's settings, are accepted by the parser, and so is a study."""
    content = yaml.safe_load(code)
    if "methods" in content:
        Path("study.yaml").write_text(code)
        assert list(load_study("study.yaml").runs())
    sections = {name: content[name] for name in ("data", "model", "trainer") if name in content}
    if "policy" in content:
        sections.setdefault("trainer", {})["policy"] = content["policy"]
    if not sections:
        return
    nodes = sections.get("data", {}).get("class_path", "").endswith(("NodeClients", "NodeFederation"))
    rest = "configs/method/gcn_fedavg.yaml" if nodes else "configs/quickstart.yaml"  # what goes with such data
    with parsing_only(), pytest.raises(ParsedError):
        main(["fit", "-c", rest, "-c", json.dumps(sections)])


@pytest.mark.parametrize("page", [page for page in PAGES if any(b.language == "python" for b in blocks(page))])
def test_python(page: str, folder: Path) -> None:
    """The blocks of a page run one after the other in one namespace."""
    namespace: dict[str, Any] = {"__name__": "docs"}
    for block in (block for block in blocks(page) if block.language == "python"):
        code = compile(block.code, page, "exec")
        if not block.left_out:
            exec(code, namespace)


@pytest.mark.parametrize("page", [page for page in PAGES if any(b.language == "bash" for b in blocks(page))])
def test_commands(page: str, folder: Path) -> None:
    for block in (block for block in blocks(page) if block.language == "bash"):
        for words in commands(block.code):
            check_command(words, block)


@pytest.mark.parametrize("page", [page for page in PAGES if any(b.language == "yaml" for b in blocks(page))])
def test_yaml(page: str, folder: Path) -> None:
    for block in (block for block in blocks(page) if block.language == "yaml"):
        check_yaml(block.code)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page: str) -> None:
    """Those of pages that the site leaves out, too; anchors are the site's to check."""
    text = BLOCK.sub("", (ROOT / page).read_text())
    dead = [link for link in LINK.findall(text) if not (ROOT / page).parent.joinpath(link).exists()]
    assert not dead


@pytest.mark.parametrize(
    "command",
    ["flgraph fit -c configs/quickstart.yaml --trainer.round 3", "flgraph report runs --latexx", "make tests", "rm x"],
)
def test_a_mistake_in_a_command_is_found(command: str, folder: Path) -> None:
    with pytest.raises((AssertionError, SystemExit)):
        check_command(shlex.split(command), Block("bash", command, ""))
