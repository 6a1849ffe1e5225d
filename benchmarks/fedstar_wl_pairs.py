"""FedStar-WL beside FedStar, pair by pair: of one seed, one partition and one initialisation.

FedStar-WL is trained as FedStar, to the bit; they differ in what is asked after training. So its run is FedStar's, too:
the models of its last round, asked without the kernel's scores, are FedStar's of that seed. Pairs of which both runs
are recorded come from the records. Of the others the last round is asked twice; the answer with scores must be what
the run recorded. The runs are made with

    flgraph reproduce own/graphs --methods FedStar-WL --keep_checkpoints
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from scipy.special import stdtrit

from flgraph import data as data_classes
from flgraph.models import FedStarWL
from flgraph.reproduce import Study, load_study
from flgraph.reproduce.index import RunIndex, index_file, read_index, recorded
from flgraph.reproduce.runner import find_results
from flgraph.runs.checkpoint import CheckpointStore

FEDSTAR, KERNEL = "FedStar", "FedStar-WL"
Pair = tuple[str, int, float, float, str]
"""Setting, seed, accuracy in percent without and with the kernel's scores, and where both are from."""


def pairs(study: Study, index: RunIndex, runs: Path) -> Iterator[Pair]:
    """Every pair that there is, in the study's order."""
    for setting in study.settings:
        for seed in study.seeds:
            digests = [study.run(setting, method, seed).digest for method in (FEDSTAR, KERNEL)]
            both = [recorded(index, digest, seed, study.rounds) for digest in digests]
            if all(both):
                without, with_scores = (100 * one["final"]["mean"]["test/accuracy"] for one in both if one)
                yield setting, seed, without, with_scores, "two runs"
                continue
            if (results := find_results(study, study.run(setting, KERNEL, seed), runs)) is not None:
                last = CheckpointStore(Path(results["folder"]) / "checkpoints").last()
                if last is not None:
                    yield setting, seed, *asked_twice(results, last), "one run, asked twice"


@torch.no_grad()
def asked_twice(results: Mapping[str, Any], checkpoint: Path) -> tuple[float, float]:
    """Test accuracy in percent without and with scores, mean over clients.

    Raises:
        ValueError: with scores it is not what the run recorded.
    """
    config = yaml.safe_load((Path(results["folder"]) / "config.yaml").read_text())["data"]
    federation = getattr(data_classes, config["class_path"].rpartition(".")[2])(**config["init_args"])
    federation.setup()
    found: dict[bool, list[float]] = {False: [], True: []}
    for client in federation.clients:
        model = FedStarWL.load_from_checkpoint(checkpoint / "clients" / f"{client}.ckpt", map_location="cpu").eval()
        batches, trust = list(federation.client(client).test_dataloader()), model.trust
        for scores, accuracies in found.items():
            model.trust = trust if scores else 0.0
            right = sum(int((model(batch).argmax(1) == batch.y).sum()) for batch in batches)
            accuracies.append(100 * right / sum(len(batch.y) for batch in batches))
    without, with_scores = (statistics.fmean(accuracies) for accuracies in found.values())
    told = 100 * results["final"]["mean"]["test/accuracy"]
    if not math.isclose(with_scores, told, abs_tol=1e-4):
        raise ValueError(f"{checkpoint}: recorded {told}, found {with_scores}")
    return without, with_scores


def earlier(file: Path | None) -> Iterator[Pair]:
    """The pairs of a file that :func:`main` wrote before; runs take more room than their results."""
    lines = file.read_text().splitlines() if file is not None and file.is_file() else []
    for line in lines:
        if parts := re.fullmatch(r"(\S+) +(\d+) +([\d.]+) +([\d.]+) +[-+][\d.]+  (\w.*)", line):
            yield parts[1], int(parts[2]), float(parts[3]), float(parts[4]), parts[5]


def interval(values: Sequence[float]) -> str:
    """Mean, and of two values or more the 95 % confidence interval of Student's t."""
    mean, count = statistics.fmean(values), len(values)
    if count < 2:
        return f"{mean:+.2f}"
    half = float(stdtrit(count - 1, 0.975)) * statistics.stdev(values) / math.sqrt(count)
    return f"{mean:+.2f} [{mean - half:+.2f}, {mean + half:+.2f}]"


def report(found: Sequence[Pair]) -> Iterator[str]:
    """A line for each pair, for each setting, and for the mean over settings."""
    yield f"{'setting':12} seed  FedStar  FedStar-WL  difference"
    for setting, seed, without, with_scores, source in found:
        yield f"{setting:12} {seed:4} {without:8.2f} {with_scores:11.2f} {with_scores - without:+11.2f}  {source}"
    yield ""
    means = []
    for setting in dict.fromkeys(setting for setting, *_ in found):
        gains = [with_scores - without for where, _, without, with_scores, _ in found if where == setting]
        means.append(statistics.fmean(gains))
        yield f"{setting:12} {interval(gains)}, {len(gains)} seeds"
    yield f"mean over {len(means)} settings {statistics.fmean(means):+.2f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/reproduce"), help="where run folders are")
    parser.add_argument("--records", type=Path, default=Path("reproduction"), help="where records are")
    parser.add_argument("--out", type=Path, help="also write the lines to this file, whose pairs stay")
    options = parser.parse_args(arguments)
    study = load_study("own/graphs")
    found = {pair[:2]: pair for pair in earlier(options.out)}
    found |= {pair[:2]: pair for pair in pairs(study, read_index(index_file(study, options.records)), options.runs)}
    order = [(setting, seed) for setting in study.settings for seed in study.seeds]
    text = "\n".join(
        ["$ python benchmarks/fedstar_wl_pairs.py", *report([found[key] for key in order if key in found])]
    )
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
