"""What networks on heterogeneous graphs begin with: an embedding for each node, or a map of its type's features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from flgraph.errors import InputError, expect
from flgraph.models.base import expect_sizes
from flgraph.nn.batches import HeteroBatch, LinkBatch


class HeteroInputs(torch.nn.Module):
    """A base for modules whose first layer gets a row per node, type after type.

    Nodes of types without features have learned embeddings (``embedding.weight``), those of type number ``T`` with
    features a linear map of these (``inputs.T.*``).

    Attributes:
        schema_tensors: patterns of what belongs to node types and relations. Every client has these in an order of its
            own, so that a mean by position would mix different ones: no algorithm shares them but one that aligns them
            (FedHGN, SchemaFedAvg).
    """

    schema_tensors: ClassVar[tuple[str, ...]] = ("embedding.*", "inputs.*", "*.coefficients", "convs.*.weight")

    num_nodes: list[int] | int
    num_features: list[int] | int
    num_relations: int
    embedding: torch.nn.Embedding
    inputs: torch.nn.ModuleDict
    _schema = ""  # of the first batch that the module got

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds a digest of the types that the weights are of, in their order."""
        checkpoint["schema"] = self._schema

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Puts it back."""
        self._schema = checkpoint.get("schema", "")

    def _check_types(self) -> None:
        """Sizes of node types are lists, or left to the data; so is the number of relations.

        Raises:
            InputError: they are neither, or contradict each other.
        """
        expect_sizes(num_relations=self.num_relations)
        for field, size in (("num_nodes", self.num_nodes), ("num_features", self.num_features)):
            wanted = "a list with a number for each node type, or -1 for given by the data"
            expect(not isinstance(size, int) or size == -1, f"model.{field}", wanted, size)
        if isinstance(self.num_nodes, int) or isinstance(self.num_features, int):
            return
        fits = len(self.num_nodes) > 0 and all(count >= 0 for count in self.num_nodes)
        expect(fits, "model.num_nodes", "numbers of 0 or more", list(self.num_nodes))
        fits = len(self.num_features) == len(self.num_nodes) and all(width >= 0 for width in self.num_features)
        expect(fits, "model.num_features", f"{len(self.num_nodes)} numbers of 0 or more", list(self.num_features))

    @property
    def _node_types(self) -> list[tuple[int, int]]:
        """Number of nodes of each type, and columns of their features."""
        assert not isinstance(self.num_nodes, int)
        assert not isinstance(self.num_features, int)
        return list(zip(self.num_nodes, self.num_features, strict=True))

    def _make_inputs(self, channels: int) -> None:
        """Makes the embedding and the maps, once both sizes are given."""
        embedded = sum(count for count, width in self._node_types if not width)
        self.embedding = torch.nn.Embedding(embedded, channels)
        self.inputs = torch.nn.ModuleDict(
            {str(t): torch.nn.Linear(width, channels) for t, (_, width) in enumerate(self._node_types) if width}
        )

    def _embed(self, x: Sequence[Tensor | None]) -> Tensor:
        """What the first layer gets, ``[N, channels]``, type after type; of types with features any number of nodes."""
        if not len(self.inputs):
            return self.embedding.weight
        embedded = iter(self.embedding.weight.split([count for count, width in self._node_types if not width]))
        parts = []
        for t, (_, width) in enumerate(self._node_types):
            if not width:
                parts.append(next(embedded))
                continue
            features = x[t] if t < len(x) else None
            shape = None if features is None else list(features.shape)
            expect(shape is not None and shape[1:] == [width], f"batch.x[{t}]", f"of shape [n, {width}]", shape)
            parts.append(self.inputs[str(t)](features))
        return torch.cat(parts)

    def _check_relations(self, batch: HeteroBatch | LinkBatch, rows: str = "weights") -> None:
        """Relations are between the module's nodes, and of as many rows as it has, which are called ``rows``.

        Types are those of earlier batches, in the same order. Data whose contents order its types, as that of
        :class:`~flgraph.data.HeteroClients`, may have another order of them as soon as it has another content.

        Raises:
            InputError: they are not.
        """
        relations, self._schema = batch.relations, self._schema or batch.schema
        if batch.schema not in ("", self._schema):
            wanted = "of the node types and relations of training, in that order (see `flgraph.data.reordered`),"
            raise InputError("batch.schema", wanted, "another order or other names")
        nodes = sum(self._counts(batch.x))
        found = [relations.num_targets, relations.num_rows]
        wanted = f"between {nodes} nodes, of {self.num_relations} {rows},"
        expect(found == [nodes, self.num_relations], "batch.relations", wanted, found)

    def _counts(self, x: Sequence[Tensor | None]) -> list[int]:
        """Number of nodes of each type: as in training, or as many as have features."""
        kinds = enumerate(self._node_types)
        return [x[t].size(0) if width and t < len(x) else count for t, (count, width) in kinds]  # type: ignore[union-attr]

    def _types_of_nodes(self, x: Sequence[Tensor | None]) -> Tensor:
        """The type of each node ``[N]``."""
        counts = self._counts(x)
        numbers = torch.tensor(counts, device=self.embedding.weight.device)
        return torch.repeat_interleave(numbers, output_size=sum(counts))
