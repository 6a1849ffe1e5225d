"""Clients whose data is noisy or has gaps, to see what a method stands."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.utils import coalesce

from flgraph.data import GraphDataModule, LinkDataModule, NodeDataModule
from flgraph.data.checks import require, sorted_edges
from flgraph.errors import expect
from flgraph.federation.callback import FederatedCallback, Run
from flgraph.federation.seeding import derive_seed
from flgraph.nn.sparse.adjacency import offsets
from flgraph.nn.sparse.csr import csr
from flgraph.nn.structure import structure_embedding

Draw = Callable[[str], torch.Generator]
"""A generator for each use, so that one kind of noise does not depend on the others."""

_SHARES = ("feature_missing", "label_flips", "label_missing", "edges_dropped", "edges_added")


class NoisyClients(FederatedCallback):
    r"""Some clients, or all, have noise and gaps in their data, drawn once before the first round.

    ``--trainer.callbacks '[{class_path: NoisyClients, init_args: {label_flips: 0.2}}]'`` gives a fifth of all training
    labels another class. As in OpenFGL (Li et al., VLDB 2025), features and edges are changed in all of a client's
    data, labels in its training data only; a global test set stays as it is. Of an edge between nodes of two clients
    (``data.cross_edges``) each drops what it knows of it, and none is added. What was done is in ``results.json``,
    under ``data`` and the client's name.

    Args:
        feature_noise: standard deviation of the Gaussian noise that is added to every feature.
        feature_missing: probability of each feature of each node to become 0.
        label_flips: share of the training labels that become another class, each as likely.
        label_missing: share of the training nodes (or graphs) that are not trained on; nodes stay as neighbours.
        edges_dropped: probability of each edge to be left out.
        edges_added: random edges within the same graph, as a share of its edges before; repeated ones are left out.
        clients: names of the noisy ones; all when ``None``.
        seed: of all draws, with the client's name; not the run's seed, so that runs differ in weights and batches only.

    Raises:
        InputError: an argument cannot be used, a name is none of a client, or data is of a kind that cannot be changed.
    """

    def __init__(
        self,
        feature_noise: float = 0.0,
        feature_missing: float = 0.0,
        label_flips: float = 0.0,
        label_missing: float = 0.0,
        edges_dropped: float = 0.0,
        edges_added: float = 0.0,
        clients: Sequence[str] | None = None,
        seed: int = 123,
    ) -> None:
        wanted = "a finite number, 0 or more"
        expect(0 <= feature_noise < math.inf, "NoisyClients.feature_noise", wanted, feature_noise)
        shares = dict(
            zip(_SHARES, (feature_missing, label_flips, label_missing, edges_dropped, edges_added), strict=True)
        )
        for name, share in shares.items():
            expect(0 <= share <= 1, f"NoisyClients.{name}", "between 0 and 1", share)
        expect(label_missing < 1, "NoisyClients.label_missing", "below 1", label_missing)
        some = feature_noise > 0 or any(shares.values())
        require(some, "NoisyClients", "given one number above 0 or more", "none")
        listed = clients is None or (bool(clients) and not isinstance(clients, str))
        expect(listed, "NoisyClients.clients", "names of clients, or null for all", clients)
        self.feature_noise, self.shares = feature_noise, shares
        self.clients, self.seed = None if clients is None else list(clients), seed

    def on_federation_start(self, trainer: Run) -> None:
        names = trainer.federated_data.clients if trainer.federated_data is not None else []
        for name in self.clients or ():
            expect(name in names, "NoisyClients.clients", f"among {', '.join(names)}", name)

    def client_data(self, client: str, data: Any) -> Any:
        """A copy of the client's data with noise and gaps, where it is one of the noisy ones."""
        if self.clients is not None and client not in self.clients:
            return data
        known = isinstance(data, NodeDataModule | GraphDataModule) and not isinstance(data, LinkDataModule)
        expect(known, "data", "graphs, or nodes of one kind, not links, for NoisyClients,", type(data).__name__)
        done: dict[str, Any] = {"feature_noise": self.feature_noise, "feature_missing": self.shares["feature_missing"]}

        def draw(use: str) -> torch.Generator:
            return torch.Generator().manual_seed(derive_seed(self.seed, "noise", client, use))

        noisy = copy.copy(data)
        graphs = data.graph if isinstance(data, NodeDataModule) else data.graphs
        changed: dict[str, Any] = {}
        if self.feature_noise or self.shares["feature_missing"]:
            changed["x"] = self._features(graphs.x, draw)
        if self.shares["label_flips"]:
            changed["y"], done["flipped"] = self._flipped(graphs.y, data.train, data.model_args["num_classes"], draw)
        if self.shares["label_missing"]:
            noisy.train = self._some(data.train, 1 - self.shares["label_missing"], draw("unlabelled"))
            done["unlabelled"] = data.train.numel() - noisy.train.numel()
        rewired = bool(self.shares["edges_dropped"] or self.shares["edges_added"])
        bare = not rewired or getattr(graphs, "edge_attr", None) is None
        require(bare, "data", "without features of edges, where NoisyClients changes edges,", "one with them")
        if isinstance(data, NodeDataModule):
            if rewired:
                edges, ends = data.graph.edge_index, torch.tensor([0, data.graph.num_nodes])
                changed["edge_index"], counts = self._rewired(edges, ends, data.graph.undirected, draw)
                done |= counts
                cross = getattr(data, "cross_edges", None)
                if cross is not None:
                    kept = torch.rand(cross.size(1), generator=draw("dropped across")) >= self.shares["edges_dropped"]
                    noisy.cross_edges = cross[:, kept]
                    done["cross_edges_dropped"] = int((~kept).sum())
            noisy.graph = data.graph._like(**changed)
        else:
            if rewired:
                require(not data.graphs.views, "data", "without second views, where NoisyClients changes edges,", "one")
                done |= self._rewire_graphs(data, changed, draw)
            noisy.graphs = data.graphs._like(**changed)
        noisy.settings = {**data.settings, "noise": done}
        return noisy

    def _features(self, x: Tensor, draw: Draw) -> Tensor:
        missing = self.shares["feature_missing"]
        if x.layout == torch.sparse_csr:
            # What is 0 already stays so: only the others need a draw.
            there = torch.rand(x.values().shape, generator=draw("missing")) >= missing
            x = csr(x.crow_indices(), x.col_indices(), x.values() * there, x.size(1))
            x = x.to_dense() if self.feature_noise else x
        else:
            x = x * (torch.rand(x.shape, generator=draw("missing")) >= missing)
        if not self.feature_noise:
            return x
        return x.float() + self.feature_noise * torch.randn(x.shape, generator=draw("features"))

    def _flipped(self, y: Tensor, train: Tensor, num_classes: int, draw: Draw) -> tuple[Tensor, int]:
        classes = y.dim() == 1 and not y.is_floating_point() and num_classes > 1
        require(classes, "data", "of two classes or more, one for each, for NoisyClients.label_flips,", "other data")
        generator = draw("flipped")
        some = self._some(train, self.shares["label_flips"], generator)
        y = y.clone()
        y[some] = (y[some] + torch.randint(1, num_classes, some.shape, generator=generator)) % num_classes
        return y, some.numel()

    @staticmethod
    def _some(index: Tensor, share: float, generator: torch.Generator) -> Tensor:
        """A random share of them, at least one, in their order."""
        count = max(1, round(share * index.numel()))
        return index[torch.randperm(index.numel(), generator=generator)[:count].sort().values]

    def _rewired(
        self, edge_index: Tensor, node_ptr: Tensor, undirected: bool, draw: Draw
    ) -> tuple[Tensor, dict[str, int]]:
        """Edges of graphs that own the nodes from one of ``node_ptr`` to the next, and how many are gone and new.

        Self-loops stay as they are, and edges that are there twice become one.
        """
        once = edge_index[:, edge_index[0] < edge_index[1] if undirected else edge_index[0] != edge_index[1]]
        both = 2 if undirected else 1
        kept = torch.rand(once.size(1), generator=draw("dropped")) >= self.shares["edges_dropped"]
        generator = draw("added")
        like = once[:, torch.rand(once.size(1), generator=generator) < self.shares["edges_added"]]
        graph = torch.searchsorted(node_ptr, like[0], right=True) - 1
        first, size = node_ptr[graph], node_ptr[graph + 1] - node_ptr[graph]
        new = first + (torch.rand(2, like.size(1), generator=generator, dtype=torch.float64) * size).long()
        before = sorted_edges(once[:, kept], int(node_ptr[-1]), undirected)
        after = sorted_edges(torch.cat([once[:, kept], new], dim=1), int(node_ptr[-1]), undirected)
        gone = int((~kept).sum())
        loops = edge_index[:, edge_index[0] == edge_index[1]]
        edges = coalesce(torch.cat([after, loops], dim=1), num_nodes=int(node_ptr[-1]))
        return edges, {"edges_dropped": gone, "edges_added": (after.size(1) - before.size(1)) // both}

    def _rewire_graphs(self, data: GraphDataModule, changed: dict[str, Any], draw: Draw) -> dict[str, int]:
        graphs = data.graphs
        edges, counts = self._rewired(graphs._global_edges(), graphs.node_ptr, graphs.undirected, draw)
        owner = torch.searchsorted(graphs.node_ptr, edges[0], right=True) - 1
        changed["edge_index"] = (edges - graphs.node_ptr[owner]).to(graphs.edge_index.dtype)
        changed["edge_ptr"] = offsets(torch.bincount(owner, minlength=len(graphs)))
        if "s" in graphs.node_tensors:
            names = ("structure", "dse_dim", "rwse_dim")
            require(
                set(names) <= set(data.settings), "data", f"with {', '.join(names)} among its settings", "other data"
            )
            how = [data.settings[name] for name in names]
            s = structure_embedding(changed["edge_index"], graphs.node_ptr, changed["edge_ptr"], *how)
            changed["node_tensors"] = {**graphs.node_tensors, "s": s}
        return counts
