"""A Weisfeiler-Lehman kernel without any network, on FedStar's data sets: each client alone, nothing is trained.

Prints accuracy in percent of kernel ridge regression for several numbers of steps and ridges: of training graphs, each
left out once, and of validation graphs. ``--test`` takes the library's steps and ridge alone, and adds test graphs and
means over the clients of FedStar's settings.
"""

from __future__ import annotations

import argparse
import statistics
from inspect import signature

import torch
import yaml
from torch import Tensor

from flgraph.configs import find_config
from flgraph.data import GraphDataModule, TUFederation
from flgraph.nn import leave_one_out_ridge, wl_kernel

SETTINGS = {"CHEM": "chem", "BIO-CHEM": "biochem", "BIO-CHEM-SN": "biochemsn", "BIO-SN-CV": "biosncv"}
STEPS, RIDGES = (1, 2, 3, 4), (0.01, 0.1, 1.0)


def datasets(config: str) -> list[str]:
    """Data sets of a setting, a client each."""
    content = yaml.safe_load(find_config(f"configs/data/{config}.yaml").read_text())
    names: list[str] = content["data"]["init_args"]["datasets"]
    return names


def accuracies(data: GraphDataModule, kernel: Tensor, ridge: float) -> dict[str, float]:
    """Of training, validation and test graphs, in percent."""
    y = data.graphs.y
    known = torch.full_like(y, -1).index_copy(0, data.train, y[data.train])
    right = leave_one_out_ridge(kernel, known, data.num_classes, ridge).argmax(dim=1) == y
    splits = {"train": data.train, "val": data.val, "test": data.test}
    return {name: 100 * right[index].double().mean().item() for name, index in splits.items()}


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--test", action="store_true", help="the library's steps and ridge alone, with test graphs")
    test = parser.parse_args().test
    torch.set_num_threads(1)
    steps = (signature(wl_kernel).parameters["steps"].default,) if test else STEPS
    ridges = (signature(leave_one_out_ridge).parameters["ridge"].default,) if test else RIDGES
    shown = ("train", "val", "test") if test else ("train", "val")
    found: dict[str, dict[str, float]] = {}
    for dataset in dict.fromkeys(name for config in SETTINGS.values() for name in datasets(config)):
        federation = TUFederation([dataset], structure="none")
        federation.setup()
        data = federation.client(dataset)
        graphs = data.graphs
        owner = torch.repeat_interleave(graphs.node_ptr.diff())
        for step in steps:
            kernel = wl_kernel(graphs.x, graphs._global_edges(), owner, len(graphs), step)
            for ridge in ridges:
                found[dataset] = accuracies(data, kernel, ridge)
                told = ", ".join(f"{name} {found[dataset][name]:.1f}" for name in shown)
                print(f"{dataset:12} steps {step}, ridge {ridge:<4}: {told}", flush=True)
    for setting, config in SETTINGS.items() if test else ():
        means = {name: statistics.fmean(found[dataset][name] for dataset in datasets(config)) for name in shown}
        print(f"{setting:12} mean of clients: " + ", ".join(f"{name} {means[name]:.1f}" for name in shown))


if __name__ == "__main__":
    main()
