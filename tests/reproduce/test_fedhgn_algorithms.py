"""What FedHGN is compared with, as its published code runs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from federations import ten_relations

from flgraph.models import RGCN
from flgraph.reproduce.fedhgn.published import PublishedSchemaFedAvg


def test_those_who_lack_a_relation_count_with_its_last_mean(federate: Callable[..., Any], recorder: Any) -> None:
    """The plain weighted mean over clients that all have all relations, where lacking ones come back as they went."""
    trainer: Any = federate(PublishedSchemaFedAvg(), rounds=2, engine=recorder)
    federation = ten_relations()
    trainer.fit(RGCN(hidden_channels=4, num_bases=0), federation)
    held = {
        name: dict(zip(federation.client(name).weight_rows, client.module.state_dict()["convs.1.weight"], strict=True))
        for name, client in trainer.engine.clients.items()
    }
    first, sent_by_all = recorder.uploads("schema"), recorder.uploads()
    rounds = [dict(sent_by_all[:3]), dict(sent_by_all[3:])]
    lacking = 0
    for relation in {relation for rows in held.values() for relation in rows}:
        key = "relations/convs.1.weight/" + "|".join(relation)
        mean = next(payload.tensors[key] for _, payload in first if key in payload.tensors).double()
        for sent in rounds:
            total = sum(float(payload.scalars["num_samples"]) for payload in sent.values())
            mean = sum(
                payload.tensors.get(key, mean).double() * float(payload.scalars["num_samples"]) / total
                for payload in sent.values()
            )
        for rows in held.values():
            lacking += relation not in rows
            if relation in rows:
                torch.testing.assert_close(rows[relation], mean.float())
    assert lacking
