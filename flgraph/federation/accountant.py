"""What noise is worth, by `dp-accounting`."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from flgraph.errors import InputError

_EXACT_BELOW = 50.0
"""Of an epsilon: distributions of larger privacy losses take long, and promise nothing."""

_ORDERS = (*range(2, 65), 96, 128, 256, 512)
"""Of Renyi divergences of sampled mechanisms: whole numbers, for which these are finite sums."""


@lru_cache(maxsize=4096)
def spent(multiplier: float, clients: int, events: tuple[tuple[int, int], ...], delta: float) -> float:
    """Epsilon of Gaussian mechanisms one after another, one client's data being exchanged for others.

    The smaller of two bounds: by Renyi divergences, and where all clients take part, by privacy loss distributions.

    Args:
        multiplier: standard deviation of the noise in units of the norm of one client's part of a sum.
        clients: of the federation.
        events: how many of them are drawn without replacement, and how often that was done.
        delta: see :class:`Privacy`.

    Raises:
        InputError: the accountant is not installed.
    """
    dp_accounting, pld, rdp = _accountants()
    if not sum(times for _, times in events):
        return 0.0
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    # Renyi divergences are told in units of the sensitivity, which is two norms; privacy losses in units of one.
    gaussian = dp_accounting.GaussianDpEvent(multiplier / 2)
    renyi = rdp.RdpAccountant(neighboring_relation=relation)
    for drawn, times in events:
        sampled = dp_accounting.SampledWithoutReplacementDpEvent(clients, drawn, gaussian)
        renyi.compose(gaussian if drawn == clients else sampled, times)
    bound = float(renyi.get_epsilon(delta))
    if any(drawn != clients for drawn, _ in events) or bound > _EXACT_BELOW:
        return bound
    losses = pld.PLDAccountant(relation, value_discretization_interval=1e-3)
    losses.compose(dp_accounting.GaussianDpEvent(multiplier), sum(times for _, times in events))
    return min(bound, float(losses.get_epsilon(delta)))


@lru_cache(maxsize=4096)
def spent_on_records(events: tuple[tuple[float, float, int], ...], delta: float) -> float:
    """Epsilon of Gaussian mechanisms one after another, each on records that are drawn, one record being there or not.

    By Renyi divergences (Mironov et al., "Renyi Differential Privacy of the Sampled Gaussian Mechanism", 2019).

    Args:
        events: multiplier of the noise, the chance of each record to be drawn, and how often that was done.
        delta: see :class:`Privacy`.

    Raises:
        InputError: the accountant is not installed.
    """
    dp_accounting, _, rdp = _accountants()
    accountant = rdp.RdpAccountant(_ORDERS, neighboring_relation=dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    for multiplier, rate, times in events:
        gaussian = dp_accounting.GaussianDpEvent(multiplier)
        accountant.compose(dp_accounting.PoissonSampledDpEvent(rate, gaussian), times)
    return float(accountant.get_epsilon(delta)) if events else 0.0


def _accountants() -> tuple[Any, Any, Any]:
    try:
        import dp_accounting
        from dp_accounting import pld, rdp
    except ImportError as error:
        wanted = "without noise where `dp-accounting` is not installed (`pip install 'flgraph[privacy]'`)"
        raise InputError("trainer", wanted, "one with it") from error
    return dp_accounting, pld, rdp
