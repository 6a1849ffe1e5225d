"""Keeping a client's model where it is between its turns."""

from __future__ import annotations

from itertools import chain

from pytorch_lightning.strategies import SingleDeviceStrategy


class ResidentStrategy(SingleDeviceStrategy):
    """Lightning on one device, without the way to the CPU and back.

    Lightning moves model and optimizers to the CPU at the end of every ``fit``, ``validate`` and ``test``, and back to
    the device at the beginning of the next. A client does all three in every round.
    """

    strategy_name = "resident"

    def model_to_device(self) -> None:
        """Moves the model if it is elsewhere, as it is the first time."""
        assert self.model is not None
        tensors = chain(self.model.parameters(), self.model.buffers())
        if any(tensor.device != self.root_device for tensor in tensors):
            super().model_to_device()

    def teardown(self) -> None:
        """Leaves everything where it is."""
        self.precision_plugin.teardown()
        self.checkpoint_io.teardown()
