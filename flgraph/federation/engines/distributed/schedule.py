"""Which process gets which clients."""

from __future__ import annotations

from collections.abc import Mapping

WORTH = 0.1
"""Clients move if that saves more than this share of a round."""


def assign(costs: Mapping[str, float], processes: int) -> dict[str, int]:
    """Assigns clients to processes, longest processing time first, each to the one with least to do (Graham, 1969).

    The process with most to do then has at most 4/3 of what the best possible schedule would leave it. Clients of the
    same cost go in turns, in their order.

    Args:
        costs: client to seconds per round, or anything proportional to them.
        processes: how many there are.

    Returns:
        Client to process, in the order of ``costs``.
    """
    loads = [(0.0, 0)] * processes  # cost, and number of clients where costs are zero
    owners = {}
    for name in sorted(costs, key=lambda name: -costs[name]):  # stable, so ties stay in order
        least = loads.index(min(loads))
        owners[name] = least
        loads[least] = (loads[least][0] + costs[name], loads[least][1] + 1)
    return {name: owners[name] for name in costs}


def makespan(costs: Mapping[str, float], owners: Mapping[str, int]) -> float:
    """What the process with most to do has to do."""
    loads: dict[int, float] = {}
    for name, cost in costs.items():
        loads[owners[name]] = loads.get(owners[name], 0.0) + cost
    return max(loads.values(), default=0.0)


def reassign(costs: Mapping[str, float], owners: Mapping[str, int], processes: int) -> dict[str, int]:
    """A better schedule by measured costs, if it saves more than :data:`WORTH` of a round; else the same one."""
    better = assign(costs, processes)
    saves = makespan(costs, owners) - makespan(costs, better) > WORTH * makespan(costs, owners)
    return better if saves else dict(owners)
