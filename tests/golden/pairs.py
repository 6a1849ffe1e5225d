"""Small runs, a method on data each: name to command line. Together they touch every algorithm and every kind of data.

A name stays when classes, files or options get other names; only its command line changes then, not its digests.
"""

from __future__ import annotations

import shlex

COMMON = (
    "--trainer.rounds 2 --trainer.local_epochs 1 --trainer.accelerator cpu --trainer.precision 32-true "
    "--trainer.logger false --trainer.enable_progress_bar false --trainer.enable_checkpointing false"
)
"""What every run has, after its files and before its own options."""

# ---------------------------------------------------------------------------------------------------- data
TU = "--data flgraph.data.TUFederation --data.datasets [MUTAG,BZR] --data.batch_size 64"
SHARDS = "--data flgraph.data.TUFederation --data.datasets [MUTAG] --data.shards 3 --data.batch_size 32"
SYNTHETIC = (
    "-c configs/quickstart.yaml --data.domains [trees,rings,ladders] --data.num_graphs 24 "
    "--data.fractions [0.5,0.25,0.25] --data.batch_size 8"
)
LABEL_SKEW = "-c configs/data/cora.yaml --data.num_clients 3 --data.local_fraction 0.1 --data.num_test 60"
CITESEER = "-c configs/data/citeseer.yaml --data.num_clients 3 --data.local_fraction 0.1 --data.num_test 60"
PUBLISHED = (
    "-c configs/data/citeseer.yaml --data flgraph.reproduce.fedego.published.PublishedNodeFederation "
    "--data.local_fraction 0.5 --data.num_test 200 --data.partition_seed 1027"
)
CORA_PUBLISHED = (
    "-c configs/data/cora.yaml --data flgraph.reproduce.fedego.published.PublishedNodeFederation "
    "--data.local_fraction 0.5 --data.num_test 200 --data.partition_seed 2333"
)
DBLP = "-c configs/data/dblp.yaml --data.num_clients 2 --data.local_fraction 0.04 --data.num_test 30"
DIRICHLET = "-c configs/data/cora.yaml --data.num_clients 3 --data.partition dirichlet"
LOUVAIN = "-c configs/data/cora.yaml --data.num_clients 3 --data.partition louvain"
METIS = "-c configs/data/cora.yaml --data.num_clients 3 --data.partition metis"
DEALT = "-c configs/data/proteins.yaml --data.dataset MUTAG --data.emd null --data.num_clients 3 --data.batch_size 32"

# ---------------------------------------------------------------------------------------------------- sizes
GIN = "--model.hidden_channels 8 --model.num_layers 2"
EGO = "--model.hidden_channels 8 --data.fanouts [3,3] --data.batch_size 64"
FEDEGO = f"{EGO} --trainer.aggregator.server_accelerator cpu"
WIDE = "--model.hidden_channels 8"
LIKE_PUBLISHED = "--model.lr 3e-4 --model.dropout 0.0"
BC = (
    "--trainer.aggregator.rows '[\"*.coefficients\"]' "
    "--trainer.aggregator.common [convs.*.bases,convs.*.bias,classifier.*]"
)
RET = "-c configs/data/aifb.yaml --data.partition random_edge_types"
RGCN = "--model.hidden_channels 8 --model.num_bases 3"


def _method(name: str) -> str:
    return f"-c configs/method/{name}.yaml"


def _data(name: str) -> str:
    return f"-c configs/data/{name}.yaml"


def _authors(name: str, partition: str) -> str:
    data = "flgraph.reproduce.fedhgn.published.PublishedHeteroFederation"
    return f"-c configs/data/{name}.yaml --data {data} --data.partition {partition} --data.num_clients 3"


def _aggregator(**options: object) -> str:
    return " ".join(f"--trainer.aggregator.{name} {value}" for name, value in options.items())


def _class(name: str, **options: object) -> str:
    return f"--trainer.aggregator flgraph.reproduce.fedego.published.{name} {_aggregator(**options)}"


def _stopping(scope: str) -> str:
    """Nothing rises by so much: a run of four rounds ends after the second."""
    given = f"{{patience: 1, min_delta: 0.9, scope: {scope}}}"
    callback = f"{{class_path: flgraph.callbacks.EarlyStopping, init_args: {given}}}"
    return f"--trainer.callbacks '[{callback}]' --trainer.rounds 4"


_LINES: dict[str, tuple[str, ...]] = {
    # ------------------------------------------------------------------------------------------ graph classification
    "local/tu": (_method("local"), TU, GIN),
    "fedavg/tu": (_method("fedavg"), TU, GIN),
    "fedavg/shards": (_method("fedavg"), SHARDS, GIN),
    "fedavg-gcn/shards": (
        *(_method("fedavg"), SHARDS, GIN, "--model.conv gcn --model.pool mean --model.optimizer sgd"),
        _aggregator(weighting="uniform", optimizer_state="reset"),
    ),
    "fedavg-max/shards": (
        *(_method("fedavg"), SHARDS, "--data.features degree", GIN, "--model.pool max"),
        "--trainer.gradient_clip_val 0.5 --trainer.accumulate_grad_batches 2",
    ),
    "fedprox/tu": (_method("fedprox"), TU, GIN, _aggregator(mu=0.5)),
    "fedper/tu": (_method("fedper"), TU, GIN),
    "fedsage/tu": (_method("fedsage"), TU, GIN),
    "fedstar/tu": (_method("fedstar"), TU, GIN),
    "fedstar/synthetic": (SYNTHETIC, GIN),
    "fedstar-local/synthetic": (
        SYNTHETIC,
        _method("fedstar"),
        "--trainer.aggregator Local",
        GIN,
        "--data.structure dse",
    ),
    "fedstar-sage/synthetic": (SYNTHETIC, GIN, "--data.structure rwse --model.structure_conv sage"),
    "fedavg-half/synthetic": (
        *(SYNTHETIC, _method("fedavg"), GIN),
        "--trainer.client_fraction 0.5 --trainer.evaluate_every 2 --trainer.rounds 4",
    ),
    "fedavg-mean/synthetic": (
        *(SYNTHETIC, _method("fedavg"), GIN),
        _class("PublishedFedAvg"),
    ),
    "fedavg-stopped/synthetic": (SYNTHETIC, _method("fedavg"), GIN, _stopping("federation")),
    "gcfl/synthetic": (
        *(SYNTHETIC, _method("gcfl"), GIN, "--trainer.rounds 3"),
        _aggregator(eps1=100, eps2=0, warmup=0),
    ),
    "gcflplus/synthetic": (
        *(SYNTHETIC, _method("gcflplus"), GIN, "--trainer.rounds 4"),
        _aggregator(eps1=100, eps2=0, warmup=0, sequence_length=2),
    ),
    "fedstar-wl/tu": (_method("fedstar_wl"), TU, GIN),
    "fedssp/synthetic": (SYNTHETIC, _method("fedssp"), GIN, "--model.heads 2"),
    **{
        f"{name}/synthetic": (SYNTHETIC, _method(name), GIN)
        for name in ("scaffold", "fedopt", "fednova", "ditto", "moon", "fedproto", "fedrep", "apfl", "fedbn")
    },
    # ------------------------------------------------------------------------------------------- node classification
    "fedego/label-skew": (LABEL_SKEW, _method("fedego"), FEDEGO),
    "fedego/citeseer": (CITESEER, _method("fedego"), FEDEGO),
    "fedego-published/published": (PUBLISHED, _method("fedego"), FEDEGO, _class("PublishedFedEgo"), "--model.lr 3e-4"),
    "fedego-noise/dirichlet": (
        *(DIRICHLET, _method("fedego"), FEDEGO),
        _aggregator(noise=0.1, mixing=0.3),
    ),
    "fedego-linear/dirichlet": (
        *(DIRICHLET, _method("fedego"), FEDEGO, "--model.linear true --model.num_reduction_layers 2"),
        _class("PublishedFedEgo", soft_labels="training", install_at="end", initial_weights="first"),
    ),
    "fedego-reduction/cora-published": (
        *(CORA_PUBLISHED, _method("fedego"), FEDEGO),
        _class("PublishedFedEgo", edges="all", initial_weights="first", mixup="false"),
    ),
    "fedego-centers/label-skew": (
        *(LABEL_SKEW, _method("fedego"), FEDEGO, "--model.ego false"),
        _class("PublishedFedEgo", edges="all", install_at="end", initial_weights="first"),
    ),
    "fedego-own-reduction/exclusive": (
        *(
            LABEL_SKEW,
            "--data.local_fraction 0.2 --data.exclusive_test true --data.local_of pool",
            _method("fedego"),
            EGO,
        ),
        _aggregator(average_reduction="false", server_epochs=2, server_lr=0.02),
    ),
    "ego-local/dblp": (DBLP, _method("ego_local"), EGO),
    "ego-local/louvain": (LOUVAIN, _method("ego_local"), EGO),
    "ego-fedavg/metis": (METIS, _method("ego_fedavg"), EGO, "--data.normalize true"),
    "ego-fedavg-published/published": (
        PUBLISHED,
        _method("ego_fedavg"),
        EGO,
        LIKE_PUBLISHED,
        _class("PublishedFedAvg"),
    ),
    "fedprox-adaptive/dirichlet": (
        *(DIRICHLET, _method("fedprox_adaptive"), EGO, "--trainer.rounds 3"),
        _aggregator(patience=1),
    ),
    "fedprox-adaptive-published/label-skew": (
        *(LABEL_SKEW, _method("fedprox_adaptive"), EGO, LIKE_PUBLISHED),
        _class("PublishedFedProx", rule="ratio", mu=0.001),
    ),
    "dfedgnn/louvain": (LOUVAIN, _method("dfedgnn"), EGO),
    "dfedgnn-metropolis/label-skew": (
        *(LABEL_SKEW, _method("dfedgnn"), EGO, LIKE_PUBLISHED, "--data.num_clients 4"),
        _class("PublishedDFedGNN", topology="star", weights="metropolis"),
    ),
    "dfedgnn-regular/dirichlet": (
        *(DIRICHLET, _method("dfedgnn"), EGO, "--data.num_clients 4"),
        _aggregator(topology="random_regular"),
    ),
    "graphfl/label-skew": (LABEL_SKEW, _method("graphfl"), EGO, _aggregator(num_nodes=20)),
    "graphfl-adam/dirichlet": (
        *(DIRICHLET, _method("graphfl"), EGO),
        _aggregator(num_nodes=20, inner_steps=2, meta_optimizer="adam"),
    ),
    "graphfl-first-order/metis": (
        *(METIS, _method("graphfl"), EGO, LIKE_PUBLISHED),
        _class("GraphFLFromMean", num_nodes=20, first_order="true", meta_lr=1.0),
    ),
    "graphfl-published/published": (
        *(PUBLISHED, "--data.num_train 80 --data.num_query 16"),
        *(_method("graphfl"), EGO, LIKE_PUBLISHED, _class("PublishedGraphFL", num_nodes=80, meta_lr=1.0)),
    ),
    "fedgcn/label-skew": (LABEL_SKEW, _method("fedgcn"), WIDE),
    "fedgcn-two-hops/metis": (METIS, _method("fedgcn"), WIDE, _aggregator(num_hops=2)),
    "fedgcn-published/published": (
        PUBLISHED.replace("PublishedNodeFederation", "PublishedWholeGraphFederation"),
        *(_method("fedgcn"), WIDE, "--data.cross_edges false --model.lr 3e-4"),
        _class("PublishedFedGCN", weighting="uniform"),
    ),
    "fedsage-nodes/louvain": (LOUVAIN, _method("fedsage_nodes"), WIDE),
    "fedsageplus/label-skew": (
        *(LABEL_SKEW, _method("fedsageplus"), WIDE),
        _aggregator(pretrain_epochs=2, generator_rounds=2),
    ),
    "adafgl/label-skew": (LABEL_SKEW, _method("adafgl"), WIDE, _aggregator(federated_rounds=1)),
    **{
        f"{name.replace('_', '-')}/label-skew": (LABEL_SKEW, _method(name), WIDE)
        for name in ("gcn_fedavg", "fedgta", "fedpub", "fedtad", "fedthin", "fggp")
    },
    # ---------------------------------------------------------------------------------------- embeddings of graphs
    "fclg/proteins-noniid": (_data("proteins"), _method("fclg"), WIDE, "--trainer.local_epochs 2"),
    "intra-fedavg/proteins-iid": (
        _data("proteins"),
        "--data.emd null",
        _method("fclg"),
        WIDE,
        _aggregator(inter="none"),
    ),
    "fclg/dealt": (DEALT, _method("fclg"), WIDE, "--trainer.local_epochs 2"),
    "fclg-nodes/dealt": (
        DEALT,
        _method("fclg"),
        WIDE,
        _aggregator(level="node"),
        "--model.norm batch --trainer.local_epochs 2",
    ),
    "intra-kl/dealt": (DEALT, _method("fclg"), WIDE, _aggregator(inter="kl")),
    "intra-mse/dealt": (
        DEALT,
        _method("fclg"),
        WIDE,
        _aggregator(inter="mse"),
        "--model.embedding raw --model.similarity dot",
    ),
    "infograph/dealt": (DEALT, _method("infograph"), WIDE),
    "infograph-fedprox/dealt": (DEALT, _method("infograph"), WIDE, "--trainer.aggregator FedProx"),
    "mvgrl/dealt": (DEALT, _method("mvgrl"), WIDE, "--data.features mvgrl"),
    "fclg/heat": (
        *(DEALT, "--data.diffusion.kind heat --data.diffusion.sparsify topk --data.global_test all"),
        *(_method("fclg"), WIDE, "--trainer.local_epochs 2 --model.embedding log"),
    ),
    # ------------------------------------------------------------------------------------------ heterogeneous graphs
    "fedhgn/aifb-re-published": (_authors("aifb", "random_edges"), _method("fedhgn"), RGCN),
    "fedhgn/aifb-ret-published": (_authors("aifb", "random_edge_types"), _method("fedhgn"), RGCN),
    "fedhgn/mutag-re-published": (_authors("mutag", "random_edges"), _method("fedhgn"), RGCN),
    "fedhgn/aifb-re": (
        _data("aifb"),
        "--data.partition random_edges",
        _method("fedhgn"),
        RGCN,
        "--data.tie_names true",
    ),
    "fedhgn-bc/aifb-re": (
        _data("aifb"),
        "--data.partition random_edges",
        _method("schema_fedavg"),
        RGCN,
        BC,
    ),
    "fedhgn-gat/aifb-ret": (
        _data("aifb"),
        "--data.partition random_edge_types",
        _method("fedhgn_gat"),
        RGCN,
        "--model.heads 2",
    ),
    "fedspread/aifb-ret": (RET, _method("fedspread"), RGCN),
    "fedhgn-links/aifb-re": (
        _data("aifb"),
        "--data.partition random_edges",
        _method("fedhgn_links"),
        "--data.task links --data.num_negatives 10",
        RGCN,
    ),
    "fedhgn-links-gat/aifb-ret": (
        *(RET, "--data.task links --data.num_negatives 10"),
        *(_method("fedhgn_links"), RGCN, "--model.encoder gat --model.decoder dot --trainer.aggregator.bases"),
        "[convs.*.bases,convs.*.bias,convs.*.attention]",
    ),
    "schema-fedavg/aifb-ret": (RET, _method("schema_fedavg"), WIDE),
    "schema-fedavg-published/aifb-ret": (
        *(RET, _method("schema_fedavg"), WIDE),
        "--trainer.aggregator flgraph.reproduce.fedhgn.published.PublishedSchemaFedAvg",
    ),
    "schema-fedprox/aifb-re": (
        _data("aifb"),
        "--data.partition random_edges",
        _method("schema_fedavg"),
        WIDE,
        _aggregator(mu=1.0),
    ),
    "rgcn-local-stopped/aifb-re": (
        _data("aifb"),
        "--data.partition random_edges",
        _method("rgcn_local"),
        WIDE,
        _stopping("clients"),
    ),
    "rgcn-central/aifb": (
        *(_data("aifb"), "--data.partition none --data.num_clients 1", _method("rgcn_central"), WIDE),
    ),
}


def _arguments(*parts: str) -> list[str]:
    """Files first, then what all runs have, then the run's own options."""
    words = shlex.split(" ".join(parts))
    given = [words[place : place + 2] for place in range(0, len(words), 2)]
    files = [word for pair in given if pair[0] == "-c" for word in pair]
    options = [word for pair in given if pair[0] != "-c" for word in pair]
    return [*files, *shlex.split(COMMON), *options]


PAIRS = {name: _arguments(*parts) for name, parts in _LINES.items()}
"""Name to arguments, without the subcommand and the run's folder."""


def needs_files(name: str) -> bool:
    """Whether the run's data is read; otherwise it is made in memory."""
    return not name.endswith("/synthetic")


def needs_metis(name: str) -> bool:
    """Whether the run needs a partitioner that may not be installed."""
    return name.endswith("/metis")
