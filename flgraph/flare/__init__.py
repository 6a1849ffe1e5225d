"""NVIDIA FLARE: a federation between organisations (`pip install 'flgraph[flare]'`, see docs/deployment.md)."""
