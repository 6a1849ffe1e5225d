"""flgraph: federated learning on graphs, built on PyTorch Lightning and PyTorch Geometric."""

from pathlib import Path

# In a checkout `callbacks/` and `configs/` lie beside this package; an installed one has them inside.
_CHECKOUT = Path(__file__).resolve().parent.parent
if not (Path(__file__).parent / "callbacks").is_dir() and (_CHECKOUT / "callbacks" / "fedavg.py").is_file():
    __path__.append(str(_CHECKOUT))

__version__ = "0.1.0"
