"""What is recorded of all studies: one page of it, and what is missing."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flgraph.cli import main as cli
from flgraph.cli.reproduce import work_off, write_study
from flgraph.errors import InputError
from flgraph.reproduce import Study, collect, leaderboard, missing
from flgraph.reproduce.index import index_file, read_index
from flgraph.reproduce.missing import Gap, dearest_first, find_gaps, told
from flgraph.reproduce.records import papers_studies, read_records
from flgraph.reproduce.study import digits_of

RECORDED = Path(__file__).parents[2] / "reproduction"


def record(study: Study, setting: str, method: str, seed: int, value: float, **further: Any) -> str:
    """A line of runs.jsonl."""
    run = study.run(setting, method, seed)
    final = {"mean": {"test/accuracy": value}}
    fields = {"run": run.name, "digest": run.digest, "seed": seed, "rounds": study.rounds, "final": final}
    measured = {"seconds_per_round": 2.0, "bytes_per_round": {"up": 1e6, "down": 5e5}, "versions": {}}
    return json.dumps({**fields, **measured, **further}) + "\n"


@pytest.fixture
def study(tiny_study: Callable[..., Study]) -> Study:
    """Two settings, of which one is printed, and methods with seeds 1 and 2."""
    tiny = tiny_study(rounds=1800)
    settings = {**tiny.settings, "OTHER": f"{tiny.settings['TINY']} --data.seed=5"}
    methods = {**tiny.methods, "FedStar (wide)": f"{tiny.methods['FedStar']} --model.hidden_channels=8"}
    printed = {"TINY": {"Local": [50.0, 1.0], "FedStar": [60.0]}, "OTHER": {"FedStar": [70.0]}}
    return replace(tiny, settings=settings, methods=methods, paper=printed, leaderboard=True)


@pytest.fixture
def out(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Local with both seeds, FedStar with one, a variant from a table older than the index."""
    folder = tmp_path / study.paper_name
    folder.mkdir()
    lines = [record(study, "TINY", "Local", seed, value) for seed, value in ((1, 0.5), (2, 0.6))]
    lines.append(record(study, "TINY", "FedStar", 1, 0.7, seconds_per_round=4.0))
    lines.append(record(study, "TINY", "FedStar", 2, 0.9, rounds=5))  # cut short
    (folder / "runs.jsonl").write_text("".join(lines))
    head = "table,setting,method,metric,protocol,paper_mean,paper_std,mean,std,seeds,rounds,which,seconds\n"
    rows = ["TINY,FedStar (wide),accuracy,final,,,80.0,2.0,2,1800,,0.5"]
    rows.append("TINY,FedStar,accuracy,best_val,,,1.0,,2,1800,,9")
    rows.append("OTHER,FedStar (wide),accuracy,final,,,99.0,,1,7,1,")  # of other rounds
    (folder / "table.csv").write_text(head + "".join(f"tiny/table,{row}\n" for row in rows))
    for module in (leaderboard, missing):
        monkeypatch.setattr(module, "papers_studies", lambda paper=None: [study])
    return tmp_path


def test_records_of_the_index_and_of_older_tables(study: Study, out: Path) -> None:
    ((_, records),) = read_records([study], out)
    assert set(records) == {("TINY", "Local"), ("TINY", "FedStar"), ("TINY", "FedStar (wide)")}
    local, alone, wide = (records["TINY", method] for method in study.methods)
    assert (local.mean, local.std, local.seeds) == (pytest.approx(55.0), pytest.approx(50**0.5), 2)
    assert (local.seconds, local.megabytes, local.rounds) == (2.0, 1.5, 1800)
    assert (alone.mean, alone.seeds, alone.seconds) == (pytest.approx(70.0), 1, 4.0)
    assert math.isnan(alone.std)
    assert (wide.mean, wide.std, wide.seeds, wide.seconds) == (80.0, 2.0, 2, 0.5)
    assert math.isnan(wide.megabytes)


def test_one_slow_run_leaves_the_seconds_as_they_are(study: Study, out: Path) -> None:
    """It was paused, or shared a processor."""
    three = replace(study, seeds=[1, 2, 3])
    lines = [record(three, "TINY", "Local", seed, 0.5, seconds_per_round=9.0**seed) for seed in three.seeds]
    (out / three.paper_name / "runs.jsonl").write_text("".join(lines))
    ((_, records),) = read_records([three], out)
    assert records["TINY", "Local"].seconds == 81.0
    cell = collect(three, {("TINY", "Local"): [json.loads(line) for line in lines]})[0]
    assert cell.seconds == 81.0


def test_a_leaderboard_by_hand(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["reproduce", "--leaderboard", "--out", str(out)])
    assert capsys.readouterr().out == f"wrote {out / 'README.md'}\nwrote {out / 'leaderboard.svg'}\n"
    text = (out / "README.md").read_text()
    assert "| TINY | FedStar 70.0 (1) | Local 55.0 ± 7.1 (2) | – | 55.0 ± 7.1 | – |\n" in text  # no variant
    assert "| method | TINY |\n|---|---|\n| Local | 55.0 ± 7.1 (2) |\n| FedStar | 70.0 (1) |\n" in text
    assert "| FedStar (wide) | **80.0 ± 2.0 (2)** |\n" in text
    assert "| Local | 2 / 1.5 |\n| FedStar | 4 / 1.5 |\n| FedStar (wide) | 0.5 / – |\n" in text
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", (out / "leaderboard.svg").read_text())
    assert {"70.0", "55.0", "TINY", "A tiny study"} <= set(texts)
    assert "80.0" not in texts


def test_of_errors_the_least_is_the_best(study: Study, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bold, first, level and darkest is what is least, in a unit of its own."""
    errors = replace(study, metric="rmse")
    monkeypatch.setattr(leaderboard, "papers_studies", lambda paper=None: [errors])
    values = {"Local": (0.5, 0.6), "FedStar": (0.4, 0.54), "FedStar (wide)": (0.9, 0.7)}
    lines = [
        record(study, "TINY", name, seed, value).replace("accuracy", "rmse")
        for name, two in values.items()
        for seed, value in zip((1, 2), two, strict=True)
    ]
    (out / "tiny" / "runs.jsonl").write_text("".join(lines))
    (out / "tiny" / "table.csv").unlink()
    leaderboard.write_leaderboard(out)
    text = (out / "README.md").read_text()
    assert "Test rmse, less being better, mean over clients unweighted, 1800 rounds." in text
    assert "| FedStar | **0.470 ± 0.099 (2)** |\n| FedStar (wide) | 0.800 ± 0.141 (2) |\n" in text
    assert "| TINY | FedStar 0.470 ± 0.099 (2) | Local 0.550 ± 0.071 (2) | Local | 0.550 ± 0.071 | – |\n" in text
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", (out / "leaderboard.svg").read_text())
    assert {"0.470", "0.550"} <= set(texts)


def test_how_often_each_is_first(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leaderboard.write_leaderboard(out)
    assert "no ranking" not in (out / "README.md").read_text()  # of a single data set
    monkeypatch.setattr(leaderboard, "FEWEST", 1)
    leaderboard.write_leaderboard(out)
    assert "so it is no ranking:\nFedStar 1 of 1, Local 0 of 1.\n" in (out / "README.md").read_text()


def test_a_study_keeps_a_leaderboard_up_to_date(study: Study, out: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    (out / "README.md").write_text("# Something else\n")
    assert out / "README.md" not in write_study(study, runs, out)
    assert (out / "README.md").read_text() == "# Something else\n"
    leaderboard.write_leaderboard(out)
    with open(out / "tiny" / "runs.jsonl", "a") as stream:
        stream.write(record(study, "TINY", "FedStar", 2, 0.8))
    assert out / "README.md" in write_study(study, runs, out)
    assert "| FedStar | 75.0 ± 7.1 (2) |\n| FedStar (wide) | **80.0 ± 2.0 (2)** |" in (out / "README.md").read_text()


def test_what_is_missing_by_hand(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["reproduce", "--missing", "--out", str(out)])
    assert capsys.readouterr().out.splitlines() == [
        "tiny/table: TINY: FedStar 1 of 2 seeds; 2.0 core hours",  # 1800 rounds of 4 s
        "tiny/table: OTHER: FedStar 0 of 2 seeds; 4.0 core hours",  # two runs, timed in the other setting
        "2 numbers, 6.0 core hours",
    ]


def test_runs_that_tables_share_are_counted_once(study: Study, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    again = replace(study, name="tiny/other")
    monkeypatch.setattr(missing, "papers_studies", lambda paper=None: [study, again])
    lines = list(told(find_gaps(out)))
    assert lines[2:4] == [
        "tiny/other: TINY: FedStar 1 of 2 seeds; runs of tables above",
        "tiny/other: OTHER: FedStar 0 of 2 seeds; runs of tables above",
    ]
    assert lines[-1] == "4 numbers, 6.0 core hours"


def test_the_most_informative_by_the_hour_comes_first(study: Study) -> None:
    """Firsts before further seeds; 1 / 2 in 2 hours before 1 / 6 in one, 1 / 12 in 0.1 before both."""

    def gap(method: str, have: int, hours: float, data: str = "") -> Gap:
        left = tuple(study.run("TINY", method, seed) for seed in range(have + 1, 4 + 1))
        return Gap(study, "TINY", method, have, 4, hours * len(left), left, data)

    gaps = [gap("Local", 1, 2.0), gap("FedStar (wide)", 3, 0.1), gap("FedStar", 0, 9.0), gap("FedStar", 0, 1.0, "BGS")]
    shared = replace(gaps[0], left=(), hours=0.0)
    found = [(run.method, run.seed, hours) for _, run, hours in dearest_first([*gaps, shared])]
    assert found == [
        ("FedStar", 1, 9.0),
        ("FedStar (wide)", 4, 0.1),
        ("Local", 2, 2.0),
        ("Local", 3, 2.0),
        ("FedStar", 2, 9.0),
        ("Local", 4, 2.0),
        ("FedStar", 3, 9.0),
        ("FedStar", 4, 9.0),
    ]


@pytest.mark.usefixtures("in_process")
def test_all_works_off_the_list_and_does_nothing_twice(
    tiny_study: Callable[..., Study], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = replace(tiny_study(rounds=1), paper={"TINY": {"Local": [50.0], "FedStar": [60.0]}})
    monkeypatch.setattr(missing, "papers_studies", lambda paper=None: [study])
    out, runs, lines = tmp_path / "out", tmp_path / "runs", list[str]()
    work_off(None, out, runs, 1, seconds=0, report=lines.append)  # nothing is begun
    assert lines == ["4 runs, 0.0 core hours, 4 never timed"]

    def interrupting(line: str) -> None:
        lines.append(line)
        if line.startswith("[2/4]"):
            raise KeyboardInterrupt

    lines.clear()
    with pytest.raises(KeyboardInterrupt):
        work_off(None, out, runs, 1, report=interrupting)
    assert lines[1:3] == [  # a number without a run comes before another's second seed
        "[1/4] tiny/table TINY Local seed 1: done",
        "[2/4] tiny/table TINY FedStar seed 1: done",
    ]
    assert f"wrote {out}/tiny/table.md" in lines[-1].splitlines()
    shutil.rmtree(runs)  # records are enough
    before = read_index(index_file(study, out)).keys()
    assert len(before) in (2, 3)  # one was under way
    lines.clear()
    work_off(None, out, runs, 1, seconds=3600, report=lines.append)
    assert lines[0].startswith(f"{4 - len(before)} runs, ")
    assert len(list(runs.glob("tiny/*/TINY*"))) == 4 - len(before)
    index = read_index(index_file(study, out))
    found = {(record["run"], seed) for (_, seed), lengths in index.items() for record in lengths.values()}
    assert found == {(f"TINY-{method}", seed) for method in ("Local", "FedStar") for seed in (1, 2)}
    lines.clear()
    work_off(None, out, runs, 1, report=lines.append)
    assert lines == ["0 runs, 0.0 core hours, 0 never timed"]


@pytest.mark.usefixtures("in_process")
def test_all_goes_on_after_a_run_that_fails(
    tiny_study: Callable[..., Study], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = replace(tiny_study(rounds=1), paper={"TINY": {"Local": [50.0], "FedStar": [60.0]}}, seeds=[1])
    study = replace(study, methods={**study.methods, "Local": f"{study.methods['Local']} --model.lr=-1"})
    monkeypatch.setattr(missing, "papers_studies", lambda paper=None: [study])
    lines = list[str]()
    with pytest.raises(InputError, match="Expected `runs` to be done but got 1 that failed; the first's log is"):
        work_off(None, tmp_path / "out", tmp_path / "runs", 1, report=lines.append)
    assert [line.rpartition(" ")[2] for line in lines[1:3]] == ["FAILED", "done"]


@pytest.mark.parametrize(
    ("args", "said"),
    [(["--budget", "2h"], "given with --all"), (["--all", "--budget", "2"], "a number with s, m or h, such as 2h")],
)
def test_budgets_that_cannot_be_used(args: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["reproduce", *args])
    assert f"Expected `--budget` to be {said}" in capsys.readouterr().err


def test_what_was_never_timed_and_what_no_file_allows(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {**study.settings, "OTHER": "--data=flgraph.data.NodeFederation --data.dataset=WikiCS"}
    monkeypatch.setattr(missing, "papers_studies", lambda paper=None: [replace(study, settings=settings)])
    assert list(told(find_gaps(tmp_path))) == [
        "tiny/table: TINY: Local 0 of 2, FedStar 0 of 2 seeds; 2 never timed",
        "2 numbers, 2 never timed",
        "WikiCS, 1 numbers: no copy of its file could be had where these tables were made; PyG downloads it",
    ]


def test_nothing_is_missing(study: Study, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [record(study, place, "FedStar", seed, 0.7) for place in ("TINY", "OTHER") for seed in (1, 2)]
    with open(out / "tiny" / "runs.jsonl", "a") as stream:
        stream.write("".join(lines))
    cli.main(["reproduce", "--missing", "--out", str(out)])
    assert capsys.readouterr().out == "every printed number has its runs\n"


def test_a_leaderboard_of_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["reproduce", "--leaderboard", "--out", str(tmp_path)])
    assert "Expected `--leaderboard` to be given where" in capsys.readouterr().err


def test_an_unknown_paper_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["reproduce", "--missing", "nope"])
    assert "Expected `PAPER` to be one of fclg, fedego, fedhgn, fedstar" in capsys.readouterr().err


def test_every_paper_with_methods_is_in_the_picture() -> None:
    pictured = {study.paper_name for study in papers_studies() if study.leaderboard}
    assert pictured == {"fclg", "fedego", "fedhgn", "fedstar", "openfgl", "own", "synthetic", "tasks"}


def test_the_leaderboard_that_is_committed_is_what_the_records_give() -> None:
    found = leaderboard.recorded_studies(RECORDED)
    same = leaderboard.as_markdown(found) == (RECORDED / leaderboard.PAGE).read_text(encoding="utf-8")
    assert same, (
        "records changed: run `flgraph reproduce --leaderboard` and commit reproduction/README.md and its picture"
    )
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", (RECORDED / leaderboard.PICTURE).read_text(encoding="utf-8"))
    for study, records in found:
        if study.leaderboard:
            means = leaderboard.means_by_method(study, records).values()
            digits = digits_of(study.metrics[0], 1)
            shown = {f"{mean:.{digits}f}" for row in means for mean in row.values() if math.isfinite(mean)}
            assert shown <= set(texts), study.name
