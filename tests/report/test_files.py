"""Files for a paper: charts, CSV and LaTeX."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flgraph.cli import main as cli
from flgraph.report.files import latex_text, to_csv
from flgraph.runs.reader import Round, Run


def call(*args: object) -> None:
    cli.main(["report", *map(str, args)])


def table(file: Path) -> list[dict[str, str]]:
    with open(file, newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.usefixtures("undrawn")
def test_figures(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two"):
        call(study, "--out", tmp_path / "r.html", "--figures", tmp_path / name)
    assert f"wrote 7 charts to {tmp_path / 'two'}, as svg, pdf, png" in capsys.readouterr().out
    files = sorted((tmp_path / "one").iterdir())
    assert [file.name for file in files if file.suffix == ".pdf"] == [
        "a-b-final-test-accuracy-of-every-client.pdf",
        "a-b-gain-over-local-of-every-client.pdf",
        "a-b-seconds-per-round.pdf",
        "a-b-test-accuracy-by-megabytes-sent.pdf",
        "a-b-test-accuracy-over-rounds.pdf",
        "a-b-training-loss-over-rounds.pdf",
        "a-b-validation-accuracy-over-rounds.pdf",
    ]
    assert len(files) == 21
    begins = {".svg": b"<?xml", ".pdf": b"%PDF", ".png": b"\x89PNG"}
    for file in files:
        content = file.read_bytes()
        assert content.startswith(begins[file.suffix]), file
        assert content == (tmp_path / "two" / file.name).read_bytes(), file
        assert b"/Type3" not in content
    width = files[-1].with_suffix(".png").read_bytes()[16:20]
    assert int.from_bytes(width, "big") == 1050  # a column of 3.5 inches


@pytest.mark.usefixtures("undrawn")
def test_data_of_one_name_have_files_of_their_own(
    make_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flgraph.report.files.save_figure", lambda figure, file: file.touch())
    for number, name in enumerate(("a+", "a?", "a!")):
        make_run("m", [{"A": 0.5}], data={"name": name, "datasets": [name]}, version=number)
    call(tmp_path, "--out", tmp_path / "r.html", "--figures", tmp_path / "f")
    assert len({file.name for file in (tmp_path / "f").glob("*seconds*.svg")}) == 3


@pytest.mark.usefixtures("undrawn")
def test_csv(study: Path, tmp_path: Path) -> None:
    call(study, "--out", tmp_path / "r.html", "--csv", tmp_path / "csv")
    local, fedavg = table(tmp_path / "csv" / "methods.csv")
    assert fedavg["method"] == "FedAvg"
    assert (fedavg["data"], fedavg["metric"], fedavg["unit"]) == ("A, B", "test/accuracy", "%")
    assert (fedavg["runs"], fedavg["seeds"], fedavg["rounds"], fedavg["finished"]) == ("2", "1 2", "3", "True")
    assert float(fedavg["final"]) == pytest.approx(75)
    assert float(fedavg["final_std"]) == pytest.approx(50**0.5)
    assert float(fedavg["gain"]) == pytest.approx(10)
    assert float(fedavg["bytes_up"]) == 1000
    assert local["gain"] == ""
    clients = table(tmp_path / "csv" / "clients.csv")
    assert [(row["client"], row["method"], round(float(row["final"]), 6)) for row in clients] == [
        ("A", "Local", 65.0),
        ("A", "FedAvg", 90.0),
        ("B", "Local", 65.0),
        ("B", "FedAvg", 60.0),
    ]
    rounds = table(tmp_path / "csv" / "rounds.csv")
    assert len(rounds) == 12
    assert [row["test/accuracy"] for row in rounds if (row["method"], row["seed"]) == ("FedAvg", "2")] == [
        "0.5",
        "0.9",
        "0.8",
    ]
    call(study, "--out", tmp_path / "r.html", "--csv", tmp_path / "only.csv")
    assert (tmp_path / "only.csv").read_text() == (tmp_path / "csv" / "methods.csv").read_text()


@pytest.mark.usefixtures("undrawn")
def test_latex_of_one_data_set_has_results_and_costs(study: Path, tmp_path: Path) -> None:
    call(study, "--out", tmp_path / "r.html", "--latex", tmp_path / "t" / "table.tex")
    text = (tmp_path / "t" / "table.tex").read_text()
    assert "method & final & gain over Local & best val & s / round & kB up / round & kB down / round \\\\" in text
    assert r"Local & 65.00 $\pm$ 7.07 & -- & 70.00 $\pm$ 0.00 & 0.50 $\pm$ 0.00 & 0 & 0 \\" in text
    assert r"FedAvg & \textbf{75.00} $\pm$ 7.07 & +10.00 $\pm$ 0.00 &" in text
    assert_balanced(text)


@pytest.mark.usefixtures("undrawn")
def test_latex_of_several_data_sets_has_a_column_each(study: Path, make_run: Any, tmp_path: Path) -> None:
    hostile = r"A_1 & 50% $x$ {a} \b ~ ^ #"
    make_run(hostile, [{"C": 0.5}], data={"datasets": ["data_2"]})
    call(study, "--out", tmp_path / "r.html", "--latex", tmp_path / "table.tex")
    text = (tmp_path / "table.tex").read_text()
    escaped = r"A\_1 \& 50\% \$x\$ \{a\} \textbackslash{}b \textasciitilde{} \textasciicircum{} \#"
    assert "method & data\\_2 & A, B \\\\" in text
    assert escaped + r" & 50.00 & -- \\" in text
    assert r"Local & -- & 65.00 $\pm$ 7.07 \\" in text
    assert_balanced(text)


@pytest.mark.usefixtures("undrawn")
def test_latex_is_without_methods_that_still_go_on(study: Path, make_run: Any, tmp_path: Path) -> None:
    make_run("MOON-seed1", [{"A": 1.0, "B": 1.0}], aggregator="MOON", finished=False, planned=3)
    call(study, "--out", tmp_path / "r.html", "--latex", tmp_path / "table.tex")
    text = (tmp_path / "table.tex").read_text()
    assert "FedAvg" in text
    assert "MOON" not in text
    assert "*" not in text


@pytest.mark.usefixtures("undrawn")
def test_latex_marks_what_has_other_rounds_than_most(study: Path, make_run: Any, tmp_path: Path) -> None:
    for seed in (1, 2):
        make_run(f"MOON-seed{seed}", [{"A": 1.0, "B": 1.0}], aggregator="MOON", seed=seed)
    call(study, "--out", tmp_path / "r.html", "--latex", tmp_path / "table.tex")
    text = (tmp_path / "table.tex").read_text()
    assert "over seeds. *: other seeds or rounds than most.}" in text
    assert [line.split(" & ")[0] for line in text.splitlines() if "*" in line.split(" & ")[0]][1:] == ["MOON*"]
    assert_balanced(text)


def assert_balanced(text: str) -> None:
    """Every group is closed, and every row has the cells of the head."""
    plain = re.sub(r"\\[{}]", "", text)
    assert plain.count("{") == plain.count("}")
    rows = [re.sub(r"\\&", "", line) for line in text.splitlines() if line.endswith(r"\\")]
    assert len({row.count("&") for row in rows}) == 1
    assert not set("&%#_~^") & set(re.sub(r"\\[&%#_]| & |^% needs.*$", "", text, flags=re.MULTILINE))


def test_names_from_sites_are_no_formulas() -> None:
    rows = [{"client": '=HYPERLINK("http://a.example")', "@SUM(1)": -0.5, "more": "-2+3"}, {"client": "fine"}]
    header, first, second = csv.reader(to_csv(rows).splitlines())
    assert header == ["client", "'@SUM(1)", "more"]
    assert first == ['\'=HYPERLINK("http://a.example")', "-0.5", "'-2+3"]
    assert second == ["fine", "", ""]


def test_escapes() -> None:
    assert latex_text("−1 ± 2 – <x> é") == r"$-$1 $\pm$ 2 -- \textless{}x\textgreater{} é"


@pytest.mark.usefixtures("undrawn")
def test_refuses_places_that_cannot_be_written(refused: Any, study: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    page = ("--out", tmp_path / "r.html")
    assert refused(study, "--latex", tmp_path).startswith("Expected `--latex` to be a file but got ")
    for option, what in (("--figures", "a folder"), ("--csv", "a folder or a file"), ("--latex", "a file")):
        told = refused(study, *page, option, tmp_path / "file" / "x")
        assert told.startswith(f"Expected `{option}` to be {what} that can be written but got ")


def test_neither_torch_nor_matplotlib_is_imported_for_help() -> None:
    code = "import sys\nfrom flgraph.cli.main import main\ntry:\n main(['report', '--help'])\nexcept SystemExit: pass\n"
    code += "print([name for name in ('torch', 'pytorch_lightning', 'matplotlib') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--latex LATEX" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_metric_that_decides_where_a_configuration_names_none() -> None:
    metrics = {"north": {"val/rmse": 0.5, "val/loss": 0.25}}
    record = Round(1, 1.0, 0.0, 0.0, metrics, metrics["north"], {}, {})
    assert Run(Path(), rounds=(record,)).monitor == ("val/rmse", "min")
    assert Run(Path(), rounds=(record,), results={"monitor": "val/loss"}).monitor == ("val/loss", "min")
    assert Run(Path()).monitor == ("val/accuracy", "max")
