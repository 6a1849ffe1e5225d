"""flgraph: federated learning on graphs, built on PyTorch Lightning and PyTorch Geometric."""

__version__ = "0.1.0"
