"""FedAvg from the weights that FedEgo's published code begins with, and from flgraph's own draws.

A seed of that code decides its clients and, apart from them, the weights that they begin with, whose mean is the first
global model. ``PublishedNodeFederation`` has its clients; this has its weights as well, drawn again in the order
in which the code makes its layers. flgraph's own draws have matrices of the same distribution, and zero biases. Rows of
Table 2 are the best of 200 rounds; a mean over some rounds of a short run tells more about the weights.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv

from flgraph.federation import FederatedTrainer
from flgraph.models import FedEgo
from flgraph.reproduce import load_study
from flgraph.reproduce.fedego.published import PublishedFedAvg, PublishedNodeFederation
from flgraph.reproduce.settings import resolve
from flgraph.runs.history import read_records

GLOBAL, LOCAL = "global_test/accuracy", "test/accuracy"
NAMES = {
    "reduction.weight": "reduction.layers.0.weight",
    "reduction.bias": "reduction.layers.0.bias",
    **{
        f"{layer}.{part}": f"personalization.layers.{layer}.{ours}"
        for layer in (0, 1)
        for part, ours in (
            ("lin_l.weight", "lin_neighbour.weight"),
            ("lin_l.bias", "lin_neighbour.bias"),
            ("lin_r.weight", "lin_self.weight"),
        )
    },
    "classifier": "personalization.classifier.weight",
}
"""Tensors of the published code's layers, and what they are called here."""


def published_weights(seed: int, clients: int, features: int, classes: int, hidden: int = 512) -> dict[str, Tensor]:
    """The mean of the clients' first weights, by the names and in the shapes that :class:`StartedFedEgo` has.

    Args:
        seed: the code's ``--seed``; torch's default generator is left as it was.
        clients: number of clients, whose layers are drawn one after another.
        features: columns of the node features.
        classes: number of classes.
        hidden: columns of all hidden layers.
    """
    own = []
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for _ in range(clients):
            # Each layer is made and then made anew, matrices only: both draw numbers.
            reduction = _matrices(nn.Linear(features, hidden))
            convs = _matrices(nn.ModuleList(SAGEConv(hidden, hidden) for _ in range(2)))
            classifier = nn.init.kaiming_normal_(torch.empty(classes, hidden))
            tensors = {f"reduction.{name}": tensor for name, tensor in reduction.state_dict().items()}
            own.append(tensors | convs.state_dict() | {"classifier": classifier})
    means = {ours: torch.stack([tensors[name] for tensors in own]).mean(0) for name, ours in NAMES.items()}
    means["reduction.layers.0.weight"] = means["reduction.layers.0.weight"].t().contiguous()
    return means


def _matrices(module: nn.Module) -> nn.Module:
    for parameter in module.parameters():
        if parameter.dim() == 2:
            nn.init.kaiming_normal_(parameter)
    return module


class StartedFedEgo(FedEgo):
    """FedEgo's network with given first weights.

    Args:
        weights: by name; an empty dictionary: drawn as always.
        kwargs: see :class:`~flgraph.models.FedEgo`.
    """

    def __init__(self, weights: dict[str, Tensor], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if weights and not self.is_template:
            self.load_state_dict(weights)


def run(setting: str, seed: int, draw: int | None, rounds: int, folder: str) -> list[tuple[float, float]]:
    """Global and local test of every round, percent; ``draw`` is a seed, or ``None`` for the published weights."""
    arguments = resolve(load_study("fedego/table2").run(setting, "FedAvg", seed).args)
    federation = PublishedNodeFederation(**arguments["data"]["init_args"])
    federation.setup("fit")
    clients = federation.clients
    sizes = federation.client(clients[0]).model_args
    weights = {}
    if draw is None:
        weights = published_weights(seed, len(clients), sizes["in_channels"], sizes["num_classes"])
    trainer = FederatedTrainer(
        PublishedFedAvg(weighting="uniform"),
        rounds=rounds,
        local_epochs=5,
        seed=seed if draw is None else draw,
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(StartedFedEgo(weights, lr=3e-4, dropout=0.0), federation)
    assert trainer.run_dir is not None
    means = (record["mean"] for record in read_records(trainer.run_dir / "history.jsonl"))
    return [(100 * figures[GLOBAL], 100 * figures[LOCAL]) for figures in means]


def main() -> None:
    """Prints a line per run, and a table; writes it as Markdown if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--settings", nargs="+", default=["Cora", "CiteSeer"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1027, 1107, 2333, 9973])
    parser.add_argument("--draws", type=int, default=3, help="runs from other first weights, for each seed; 2 or more")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--last", type=int, default=5, help="rounds to average over")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, help="a file for the table")
    args = parser.parse_args()
    if args.draws < 2:
        parser.error(f"--draws: 2 or more are needed for a spread, not {args.draws}")
    warnings.filterwarnings("ignore", message=".*Sparse CSR.*|.*Sparse invariant.*")
    torch.set_num_threads(args.threads)
    head = "setting | seed | global test, published weights | other draws | their spread | local test | other draws"
    lines = [f"| {head} |", "|" + "---|" * (head.count("|") + 1)]
    for setting in args.settings:
        for seed in args.seeds:
            ends = []
            for draw in (None, *range(1, args.draws + 1)):
                with tempfile.TemporaryDirectory() as folder:
                    history = run(setting, seed, draw, args.rounds, folder)[-args.last :]
                ends.append([mean(column) for column in zip(*history, strict=True)])
                print(f"{setting} {seed} {draw or 'published'}: {ends[-1][0]:.1f} {ends[-1][1]:.1f}", flush=True)
            (published, local), others = ends[0], [list(column) for column in zip(*ends[1:], strict=True)]
            figures = (published, mean(others[0]), stdev(others[0]), local, mean(others[1]))
            lines.append(f"| {setting} | {seed} | " + " | ".join(f"{figure:.1f}" for figure in figures) + " |")
    print("\n".join(lines))
    if args.out:
        args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
