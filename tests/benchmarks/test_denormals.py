from __future__ import annotations

from types import ModuleType


def test_times_every_step(benchmark: ModuleType) -> None:
    seconds = benchmark.step_times(0.25, 3, 4)
    assert len(seconds) == 3
    assert all(second > 0 for second in seconds)
