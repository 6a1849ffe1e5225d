"""What happens to uploads between an algorithm and the doors: clipping, noise, compression."""

from flgraph.federation.transforms.base import Draw, Pipeline, Transform, Update, check_order, draw_key
from flgraph.federation.transforms.coding import HalfPrecision, Quantise, TopK
from flgraph.federation.transforms.noise import GaussianNoise
from flgraph.federation.transforms.norms import Clip

__all__ = [
    "Clip",
    "Draw",
    "GaussianNoise",
    "HalfPrecision",
    "Pipeline",
    "Quantise",
    "TopK",
    "Transform",
    "Update",
    "check_order",
    "draw_key",
]
