"""Pictures of the embeddings of all clients' graphs at some rounds."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning.loggers import TensorBoardLogger
from pytorch_lightning.utilities import rank_zero_warn
from torch import Tensor

from flgraph.errors import InputError, expect
from flgraph.federation.callback import FederatedCallback, Run
from flgraph.runs.files import writing


class EmbeddingPictures(FederatedCallback):
    """Collects the embeddings of all clients' graphs after some rounds, and shows them in two dimensions (t-SNE).

    Each client embeds its own graphs with the model it would use, the newest aggregate included, as ``predict`` does.
    The run folder gets ``embeddings/round-N.csv`` (client, graph, label, x, y) and ``embeddings/round-N.png``;
    TensorBoard gets the picture, and the embeddings themselves for its projector. For simulations only: embeddings and
    labels of all clients come to one place.

    Args:
        rounds: after which rounds.

    Raises:
        InputError: a value is out of range; predictions are no rows of numbers, one per graph; the run folder does not
            take the files.
    """

    def __init__(self, rounds: Sequence[int] = (1, 10, 20)) -> None:
        valid = len(rounds) > 0 and all(number >= 1 for number in rounds)
        expect(valid, "callbacks.rounds", "numbers of 1 or more", list(rounds))
        self.rounds = list(rounds)

    def on_federation_start(self, trainer: Run) -> None:
        """Tells which of the rounds this run will not reach."""
        late = [number for number in self.rounds if number > trainer.rounds]
        if late:
            rank_zero_warn(f"EmbeddingPictures: no pictures of {late}, the run has {trainer.rounds} rounds")

    def on_round_end(self, trainer: Run) -> None:
        if trainer.current_round not in self.rounds:
            return
        trainer.install()  # where the round was not evaluated, clients have not installed its aggregate yet
        names, embeddings, labels = _collect(trainer)
        if not trainer.writes:
            return
        points = _tsne(embeddings)
        assert trainer.run_dir is not None
        folder = trainer.run_dir / "embeddings"
        with writing(trainer.run_dir):
            folder.mkdir(exist_ok=True)
            self._write(folder, trainer.current_round, names, labels, points)
            self._show(trainer, folder, labels, points, embeddings)

    def _write(
        self, folder: Path, number: int, names: Sequence[tuple[str, int]], labels: Tensor, points: Tensor
    ) -> None:
        with open(folder / f"round-{number}.csv", "w", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(["client", "graph", "label", "x", "y"])
            for (client, graph), label, point in zip(names, labels.tolist(), points.tolist(), strict=True):
                writer.writerow([client, graph, label, *(f"{value:.4f}" for value in point)])

    def _show(self, trainer: Run, folder: Path, labels: Tensor, points: Tensor, embeddings: Tensor) -> None:
        from flgraph.report.charts import embedding_panels, save_figure  # matplotlib loads slowly

        number = trainer.current_round
        panel = {f"round {number}": (points.tolist(), labels.tolist())}
        save_figure(embedding_panels(panel), folder / f"round-{number}.png", dpi=160)
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                logger.experiment.add_figure("embeddings/tsne", embedding_panels(panel), number)
                logger.experiment.add_embedding(embeddings, [str(y) for y in labels.tolist()], global_step=number)


def _collect(trainer: Run) -> tuple[list[tuple[str, int]], Tensor, Tensor]:
    """Client and number of every graph, embeddings ``[n, C]`` and classes ``[n]``."""
    names: list[tuple[str, int]] = []
    rows: list[Tensor] = []
    labels: list[Tensor] = []
    for client, predictions in trainer.predictions():
        batches = predictions.batches
        fits = bool(batches) and all(isinstance(part, Tensor) and part.dim() == 2 for part in batches)
        expect(fits, f"predictions of client {client}", "tensors [graphs, columns]", type(batches).__name__)
        own = torch.cat(batches).float().cpu()
        valid = bool(own.isfinite().all())
        expect(valid, f"predictions of client {client}", "finite numbers", "some that are not")
        y = _labels(trainer, client)
        if rows:
            width, first = rows[0].size(1), names[0][0]
            wanted = f"of {width} columns, as those of client `{first}`,"
            expect(own.size(1) == width, f"predictions of client {client}", wanted, own.size(1))
        wanted = f"{y.numel()} rows, one per graph,"
        expect(y.numel() == len(own), f"predictions of client {client}", wanted, len(own))
        names += [(client, number) for number in range(len(own))]
        rows.append(own)
        labels.append(y)
    return names, torch.cat(rows), torch.cat(labels)


def _labels(trainer: Run, client: str) -> Tensor:
    """Classes of a client's graphs, in the order of its prediction data."""
    assert trainer.federated_data is not None
    data: Any = trainer.federated_data.client(client)
    loader = data.predict_dataloader()
    try:
        return torch.cat([batch.y.view(-1).cpu() for batch in loader])
    except AttributeError as error:
        raise InputError(f"data` of client `{client}", "of graphs with classes", error) from error


def _tsne(embeddings: Tensor) -> Tensor:
    """Places in the plane ``[n, 2]``; on one thread, so that they are the same every time."""
    from sklearn.manifold import TSNE  # loads slowly, too
    from threadpoolctl import threadpool_limits

    count = len(embeddings)
    expect(count > 3, "callbacks", "for four graphs or more, which t-SNE can place,", count)
    perplexity = min(30, (count - 1) / 3)
    with threadpool_limits(limits=1):
        points = TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(embeddings.double().numpy())
    return torch.from_numpy(points)
