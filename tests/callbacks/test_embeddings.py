from __future__ import annotations

import csv
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch_geometric.data import Data

from flgraph import models
from flgraph.callbacks import FCLG, EmbeddingPictures, Local
from flgraph.data import FlatGraphs, GraphFederation, PartitionedGraphFederation
from flgraph.errors import InputError
from flgraph.federation import FederatedTrainer

Federate = Callable[..., FederatedTrainer]


@pytest.fixture
def data(graph_list: Callable[..., list[Data]]) -> PartitionedGraphFederation:
    return PartitionedGraphFederation(FlatGraphs.from_pyg(graph_list(16), "toy"), 2)


def run(federate: Federate, data: Any, **kwargs: Any) -> Any:
    trainer = federate(FCLG(), rounds=3, local_epochs=2, monitor="train/loss", **kwargs)
    trainer.fit(models.FCLG(hidden_channels=4, num_layers=2, lr=0.05), data)
    return trainer


def test_files_and_tensorboard(federate: Federate, data: PartitionedGraphFederation) -> None:
    trainer = run(federate, data, callbacks=[EmbeddingPictures([1, 3])], logger=True)
    folder: Path = trainer.run_dir / "embeddings"
    assert sorted(path.name for path in folder.iterdir()) == [
        f"round-{number}.{kind}" for number in (1, 3) for kind in ("csv", "png")
    ]
    with open(folder / "round-3.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    for client in data.clients:
        own = [row for row in rows if row["client"] == client]
        assert [int(row["label"]) for row in own] == data.client(client).graphs.y.tolist()
    events = EventAccumulator(str(trainer.run_dir)).Reload()
    assert [event.step for event in events.Images("embeddings/tsne")] == [1, 3]
    text = (trainer.run_dir / "projector_config.pbtxt").read_text()
    assert text.count("tensor_path") == 2
    shown = (trainer.run_dir / "00003" / "default" / "tensors.tsv").read_text().splitlines()
    found = torch.tensor([[float(value) for value in line.split("\t")] for line in shown])
    expected = torch.cat([torch.cat(parts) for parts in trainer.predict().values()])
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_one_process_writes(federate: Federate, data: PartitionedGraphFederation) -> None:
    class Other(EmbeddingPictures):
        def on_round_end(self, trainer: FederatedTrainer) -> None:
            trainer.writes = False
            super().on_round_end(trainer)
            trainer.writes = True

    trainer = run(federate, data, callbacks=[Other([1])])
    assert not (trainer.run_dir / "embeddings").exists()


def test_changes_nothing(
    federate: Federate, data: PartitionedGraphFederation, assert_same: Callable[..., None]
) -> None:
    """Weights, with rounds in between that are not evaluated."""
    states = []
    for callbacks in ([], [EmbeddingPictures([1, 2])]):
        trainer = run(federate, data, callbacks=callbacks, evaluate_every=3)
        states.append([client.state()["state_dict"] for client in trainer.engine.clients.values()])
    assert_same(*states)


def test_a_full_disk_is_told(
    federate: Federate, data: PartitionedGraphFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(EmbeddingPictures, "_write", full)
    with pytest.raises(InputError, match="to be writable but got No space left on device"):
        run(federate, data, callbacks=[EmbeddingPictures([1])])


def test_refusals(federate: Federate, graph_list: Callable[..., list[Data]]) -> None:
    with pytest.raises(InputError, match=r"Expected `callbacks.rounds` to be numbers of 1 or more"):
        EmbeddingPictures([0])
    with pytest.raises(InputError, match=r"Expected `callbacks.rounds` to be numbers of 1 or more but got \[\]"):
        EmbeddingPictures([])
    few = PartitionedGraphFederation(FlatGraphs.from_pyg(graph_list(3), "few"), 1)
    with pytest.raises(InputError, match="four graphs or more"):
        run(federate, few, callbacks=[EmbeddingPictures([1])])


def test_clients_of_other_widths_are_refused(federate: Federate, graph_list: Callable[..., list[Data]]) -> None:
    """As classifiers of other numbers of classes have."""
    data = GraphFederation({"a": graph_list(16), "b": graph_list(16)}, num_classes={"a": 2, "b": 3})
    trainer = federate(Local(), rounds=1, callbacks=[EmbeddingPictures([1])])
    with pytest.raises(InputError, match=r"of client b` to be of 2 columns, as those of client `a`, but got 3"):
        trainer.fit(models.GNN(hidden_channels=4, num_layers=1), data)


def test_rounds_that_a_run_does_not_reach(federate: Federate, data: PartitionedGraphFederation) -> None:
    with pytest.warns(UserWarning, match=r"no pictures of \[7, 9\], the run has 3 rounds"):
        trainer = run(federate, data, callbacks=[EmbeddingPictures([3, 7, 9])])
    assert (trainer.run_dir / "embeddings" / "round-3.png").is_file()
