"""``flgraph`` and ``python -m flgraph`` as processes of their own."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

import flgraph
from flgraph.cli import main as cli
from flgraph.console import Console

Flgraph = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def process(tmp_path: Path) -> Flgraph:
    """Runs a command in an empty folder."""
    # The package as this process sees it, installed or not; -P keeps the current folder out of the path.
    environment = {**os.environ, "PYTHONPATH": str(Path(flgraph.__file__).parents[1]), "OMP_NUM_THREADS": "1"}

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    return run


def test_module(process: Flgraph, small: list[str], tmp_path: Path) -> None:
    """Away from the checkout, with nothing on standard error."""
    done = process(
        *(sys.executable, "-P", "-m", "flgraph", "fit", "-c", "configs/method/fedstar.yaml"),
        *(*small, "--trainer.default_root_dir", "here"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for noise in ("GPU available", "TPU available", "Trainer.fit", "LeafSpec", "Warning", "litlogger", "💡"):
        assert noise not in done.stdout
    assert "round 2/2" in done.stdout
    assert done.stdout.endswith("results in here/fedstar-alpha-beta/version_0\n")
    run = tmp_path / "here" / "fedstar-alpha-beta" / "version_0"
    assert json.loads((run / "results.json").read_text())["rounds"] == 2


def test_console_script() -> None:
    """What the package declares is the same function, and what is installed (if it is) is what the package declares."""
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())["project"]
    module, _, function = project["scripts"]["flgraph"].partition(":")
    assert getattr(import_module(module), function) is cli.main
    for script in entry_points(group="console_scripts", name="flgraph"):
        assert script.value == project["scripts"]["flgraph"]


def test_console_script_runs(process: Flgraph, tmp_path: Path) -> None:
    """As the script that pip writes: the arguments come from ``sys.argv``, and the exit code is that of the command."""
    code = "import sys; from flgraph.cli.main import main; sys.argv[0] = 'flgraph'; sys.exit(main())"
    options = ("fit", "--trainer.round", "3", "--data.datasets", "[ALPHA]")
    done = process(sys.executable, "-P", "-c", code, *options)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "flgraph: error: unrecognized arguments: --trainer.round 3 (did you mean --trainer.rounds?)\n"
    assert list(tmp_path.iterdir()) == []


def test_a_warning_is_one_line(start: Callable[..., Any], small: list[str]) -> None:
    run = start("fit", "-c", "configs/method/fedavg.yaml", *small, "--data.alpha", "2")
    said = "flgraph: warning: `data.alpha` has no effect without `data.partition: dirichlet`.\n"
    assert (run.wait(), run.stderr.read_text()) == (0, said)


def test_whoever_reads_the_output_leaves(process: Flgraph) -> None:
    """As ``head`` does."""
    code = (
        "import os; from flgraph.cli.main import main; reads, writes = os.pipe()\n"
        "os.dup2(writes, 1); os.close(reads); main(['reproduce', '--list'])"
    )
    done = process(sys.executable, "-P", "-c", code)
    assert (done.returncode, done.stderr) == (1, "flgraph: error: whoever read the output has left.\n")


def test_what_rich_prints_is_no_exception() -> None:
    """Rich by itself ends the process where the reader has left, without a word."""

    class Left(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        Console(file=Left()).print("line")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_no_space_is_left_for_the_output(process: Flgraph) -> None:
    done = process("bash", "-c", f"{sys.executable} -P -m flgraph reproduce --list > /dev/full")
    assert (done.returncode, done.stderr) == (1, "flgraph: error: no space is left for the output.\n")


def test_commands_that_train_nothing_start_at_once(process: Flgraph) -> None:
    code = (
        "import sys; from importlib import import_module\n"
        "for name in sys.argv[1:]:\n"
        "    import_module(f'flgraph.{name}')\n"
        "    assert not {'pytorch_lightning', 'torch_geometric'} & set(sys.modules), name\n"
    )
    modules = ("cli.main", "cli.ledger", "cli.report", "cli.reproduce", "cli.flare", "flare.jobs", "flare.gather")
    done = process(sys.executable, "-P", "-c", code, *modules)
    assert (done.returncode, done.stderr) == (0, "")
