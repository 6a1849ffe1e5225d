"""A stand-in for a GPU: tensors that compute on the CPU but say that they lie elsewhere, and refuse to be mixed.

What a GPU would refuse is refused here, so that a machine without one shows whether everything is where it should be.
Importing this registers the device ``stand_in`` with PyTorch and an accelerator of that name with Lightning, for the
whole process.

Source: PyTorch's notes on backends outside of its tree, and `FakeTensor`'s rules for operators that mix devices.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
from pytorch_lightning.accelerators import Accelerator, AcceleratorRegistry
from pytorch_lightning.strategies import SingleDeviceStrategy
from pytorch_lightning.trainer.connectors.accelerator_connector import _AcceleratorConnector
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAME = "stand_in"
aten = torch.ops.aten


class _Module(_DummyBackendModule):
    """What stands in for :mod:`torch.cuda`."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


_setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
DEVICE = torch.device(NAME, 0)


class Elsewhere(Tensor):
    """A tensor on the device; ``here`` is what it is on the CPU."""

    here: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, here: Tensor) -> Elsewhere:
        strides: dict[str, Any] = {}
        if here.layout == torch.strided:  # wrappers have no other layout
            strides = {"strides": here.stride(), "storage_offset": here.storage_offset()}
        new: Elsewhere = Tensor._make_wrapper_subclass(cls, here.size(), dtype=here.dtype, device=DEVICE, **strides)
        new.here = here
        return new

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(func, args, kwargs or {})

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Files hold the tensor on the CPU, where loading would move it."""
        return self.here.__reduce_ex__(protocol)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Elsewhere({self.here})"


class Counted:
    """How many operators ran on the device."""

    operators: ClassVar[int] = 0


_COPIES = (aten._to_copy.default, aten.copy_.default, aten.lift_fresh.default)
_BY_INDEX = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default)


def _compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    ours: list[Tensor] = []
    others: list[Tensor] = []

    def here(leaf: Any) -> Any:
        if isinstance(leaf, Elsewhere):
            ours.append(leaf)
            return leaf.here
        if isinstance(leaf, Tensor):
            others.append(leaf)
        return leaf

    given, named = _map(here, args), _map(here, dict(kwargs))
    if ours:
        Counted.operators += 1
        _refuse_mixtures(func, args, others)
    wanted = None if kwargs.get("device") is None else torch.device(kwargs["device"])
    if wanted is not None:
        named["device"] = torch.device("cpu") if wanted.type == NAME else wanted
    if func is aten._to_copy.default and given[0].layout != torch.strided:
        named.pop("layout", None)
    out = func(*given, **named)
    if "out" in kwargs:
        return kwargs["out"]
    if func._schema.is_mutable and func.overloadpacket.__name__.endswith("_"):
        return args[0]
    on_device = bool(ours) if wanted is None else wanted.type == NAME
    return _map(_elsewhere, out) if on_device else out


def _refuse_mixtures(func: Any, args: Any, others: list[Tensor]) -> None:
    """As CUDA: numbers may come from the CPU, and indices of rows by brackets."""
    if func in _COPIES or (func in _BY_INDEX and isinstance(args[0], Elsewhere)):
        return
    if any(tensor.dim() for tensor in others):
        raise RuntimeError(f"Expected all tensors of {func} to be on {DEVICE} but got one on the CPU.")


def _map(function: Callable[[Any], Any], value: Any) -> Any:
    """``function`` of what lists, tuples and dictionaries hold; quicker than PyTorch's own, which knows more kinds."""
    if isinstance(value, (list, tuple)):
        return type(value)([_map(function, item) for item in value])
    if isinstance(value, dict):
        return {key: _map(function, item) for key, item in value.items()}
    return function(value)


def _elsewhere(leaf: Any) -> Any:
    return Elsewhere(leaf) if isinstance(leaf, Tensor) and not isinstance(leaf, Elsewhere) else leaf


class _Operators(TorchDispatchMode):
    """Operators that make tensors on the device out of nothing, or of the CPU's."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(func, args, kwargs or {})


class _Functions(TorchFunctionMode):
    """Functions that PyTorch answers before any operator is called, and so without regard to wrappers."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") is not None:
            device = kwargs.pop("device")
            return func(*args, **kwargs).to(device)
        if args and isinstance(args[0], Elsewhere) and func in self._of_wrappers:
            return self._of_wrappers[func](*args, **kwargs)
        return func(*args, **kwargs)

    _of_wrappers: ClassVar[dict[Any, Callable[..., Any]]] = {
        Tensor.layout.__get__: lambda tensor, *_: tensor.here.layout,
        Tensor.to_dense: lambda tensor: Elsewhere(tensor.here.to_dense()),
        Tensor.tolist: lambda tensor: tensor.here.tolist(),
        Tensor.new_tensor: lambda tensor, data: torch.tensor(data, dtype=tensor.dtype).to(DEVICE),
    }


@contextlib.contextmanager
def stand_in() -> Iterator[None]:
    """Within, the device can be used."""
    with _Operators(), _Functions():
        yield


# The backward pass runs in a thread of its own for every device, where no mode is set.
_KERNELS = torch.library.Library("aten", "IMPL")


def _empty(size: Any, *, dtype: Any = None, **_: Any) -> Elsewhere:
    return Elsewhere(torch.empty(size, dtype=dtype))


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> Elsewhere:
    return Elsewhere(torch.empty_strided(size, stride, dtype=dtype))


_KERNELS.impl("empty.memory_format", _empty, "PrivateUse1")
_KERNELS.impl("empty_strided", _empty_strided, "PrivateUse1")


class StandIn(Accelerator):
    """What ``trainer.accelerator`` names."""

    def setup_device(self, device: torch.device) -> None:
        """Nothing to do."""

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        """There are none."""
        return {}

    def teardown(self) -> None:
        """Nothing to do."""

    @staticmethod
    def parse_devices(devices: Any) -> list[int]:
        """The only one."""
        return [0]

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        """The only one."""
        return [DEVICE]

    @staticmethod
    def auto_device_count() -> int:
        """The only one."""
        return 1

    @staticmethod
    def is_available() -> bool:
        """Always."""
        return True

    @staticmethod
    def name() -> str:
        """As in ``trainer.accelerator``."""
        return NAME


AcceleratorRegistry.register(NAME, StandIn)
_lightnings_choice = _AcceleratorConnector._choose_strategy


def _choose_strategy(self: Any) -> Any:
    """Lightning takes the CPU for accelerators that it does not know."""
    return SingleDeviceStrategy(device=DEVICE) if self._accelerator_flag == NAME else _lightnings_choice(self)


_AcceleratorConnector._choose_strategy = _choose_strategy  # type: ignore[method-assign]
