"""Two small data sets of the TU collection's form, and the command line in this process."""

from __future__ import annotations

import io
import random
import shutil
import urllib.error
import zipfile
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from flgraph.cli import main as cli
from flgraph.data.graphs import tu_files

Texts = dict[str, list[str]]


def make_texts(graphs: int, classes: int, labels: int, seed: int) -> Texts:
    """Trees of random sizes and labels; every other one has an edge more."""
    draw = random.Random(seed)
    texts: Texts = {"A": [], "graph_indicator": [], "graph_labels": [], "node_labels": []}
    for graph in range(graphs):
        first, size = len(texts["graph_indicator"]) + 1, draw.randint(3, 6)
        pairs = [(first + node, first + draw.randrange(node)) for node in range(1, size)]
        pairs += [(first, first + size - 1)] if graph % 2 else []
        texts["A"] += [f"{a}, {b}" for pair in pairs for a, b in (pair, pair[::-1])]
        texts["graph_indicator"] += [str(graph + 1)] * size
        texts["node_labels"] += [str(draw.randrange(labels)) for _ in range(size)]
        texts["graph_labels"].append(str(graph % classes))
    return texts


def write_zip(root: Path, name: str, texts: Texts) -> None:
    with zipfile.ZipFile(root / f"{name}.zip", "w") as archive:
        for key, lines in texts.items():
            archive.writestr(f"{name}/{name}_{key}.txt", "\n".join(lines) + "\n")


ALPHA = make_texts(graphs=40, classes=2, labels=3, seed=1)
BETA = make_texts(graphs=30, classes=3, labels=4, seed=2)


@pytest.fixture(scope="session")
def tu_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``ALPHA.zip`` and ``BETA.zip``."""
    root = tmp_path_factory.mktemp("tu")
    write_zip(root, "ALPHA", ALPHA)
    write_zip(root, "BETA", BETA)
    return root


@pytest.fixture
def broken(tmp_path: Path) -> Callable[..., Path]:
    """Makes a folder with ``ALPHA.zip`` in which some files' lines are others, or (``None``) left out."""

    def make(**changes: list[str] | None) -> Path:
        root = tmp_path / "broken"
        root.mkdir()
        texts = {**ALPHA, **changes}
        write_zip(root, "ALPHA", {key: lines for key, lines in texts.items() if lines is not None})
        return root

    return make


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(url: str, folder: str) -> str:
        raise urllib.error.URLError("no route to host")

    monkeypatch.setattr(tu_files, "download_url", refuse)


def small_run(data: Path, runs: Path) -> list[str]:
    """Options of a run that takes no time."""
    return [
        *("--data.datasets", "[ALPHA, BETA]", "--data.root", str(data)),
        *("--trainer.default_root_dir", str(runs), "--trainer.accelerator", "cpu"),
        *("--trainer.rounds", "2"),
    ]


@pytest.fixture
def small(tu_root: Path, tmp_path: Path) -> list[str]:
    """Options of a run that takes no time, into ``runs`` of the test's folder."""
    return small_run(tu_root, tmp_path / "runs")


Trained = Callable[[str], Path]


@pytest.fixture(scope="session")
def trained_once(tu_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The folder of a method's run of two rounds, trained when first asked for."""
    runs = tmp_path_factory.mktemp("trained")

    @cache
    def train(method: str) -> Path:
        with redirect_stdout(io.StringIO()):
            cli.main(["fit", "-c", f"configs/method/{method}.yaml", *small_run(tu_root, runs)])
        return runs / f"{method}-alpha-beta" / "version_0"

    return train


@pytest.fixture
def trained(trained_once: Trained, tmp_path: Path) -> Trained:
    """A copy of such a run, where a run with the options ``small`` would lie."""

    def copy(method: str) -> Path:
        done = trained_once(method)
        target = tmp_path / "runs" / done.parent.name / done.name
        return Path(shutil.copytree(done, target, symlinks=True))

    return copy


class Done(NamedTuple):
    """What a call of the command line left."""

    code: int | str | None
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """The one line with which it refused its input."""
        assert self.code == 2, self
        assert self.err.count("\n") == 1, self
        assert self.err.startswith("flgraph: error: "), self
        assert "Traceback" not in self.out
        return self.err.removeprefix("flgraph: error: ").strip()


Call = Callable[..., Done]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Runs ``flgraph`` with some arguments, in this process."""

    def run(*args: str) -> Done:
        capsys.readouterr()
        code: int | str | None = 0
        try:
            cli.main(args)
        except SystemExit as exit:
            code = exit.code
        return Done(code, *capsys.readouterr())

    return run


@pytest.fixture
def done(call: Call) -> Call:
    """The same, for what must succeed without a word on standard error."""

    def run(*args: str) -> Done:
        result = call(*args)
        assert result.code in (0, None), result
        assert result.err == ""
        return result

    return run
