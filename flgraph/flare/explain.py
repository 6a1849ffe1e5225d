"""What a job could take from a site, in words, before anything runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from flgraph.federation.client import Client
from flgraph.federation.policy import NUM_SAMPLES, Policy
from flgraph.federation.routes import RouteKind
from flgraph.flare.run import clients_of
from flgraph.flare.settings import read_settings


def explain(kit: Path, config: str) -> Iterator[str]:
    """Lines that say what leaves a site in a job, what stays, and why its policy would refuse it.

    The site's data is read and its models are made; nothing is trained, and nothing is sent.

    Args:
        kit: the site's.
        config: the job's configuration as YAML, without data.

    Raises:
        InputError: the configuration names a class that the site does not allow, or cannot be used with its data.
    """
    settings = read_settings(kit)
    policy = Policy.of(settings.policy)
    clients = clients_of(config, settings, policy=None)
    job = next(iter(clients.values())).door.job
    yield f"{job.algorithm}, {job.rounds} rounds, {job.local_epochs} local epochs in each."
    if job.reveals:
        yield f"Of single records: {job.reveals}"
    for name, client in clients.items():
        refusals = list(policy.refusals(client.door.job))
        yield ""
        yield f"Client {name}: {'REFUSED' if refusals else 'takes part'}."
        yield from (f"  refused: {refusal}" for refusal in refusals)
        yield from (f"  {line}" for line in _leaves(client, policy))
    yield ""
    yield from _limits(policy, clients)


def _leaves(client: Client, policy: Policy) -> Iterator[str]:
    routing, job = client.routing, client.door.job
    forms = {name: routing.rows[name].form for kind in _LEAVING for name in routing.names(kind)}
    yield f"leaves in each exchange ({', '.join(job.exchanges) or 'none'}): {len(forms)} tensors of the model"
    yield from (f"  {name}, {form}" for name, form in forms.items())
    yield from (f"  and {pattern}, which is {kind}" for pattern, kind in routing.extra.items())
    for name in job.scalars:
        known = name == NUM_SAMPLES and policy.num_samples is not None
        yield f"  and {name}" + (f", {policy.count(job.num_samples)}" if known else "")
    count = "" if policy.num_samples is None else f", the number of training samples ({policy.count(job.num_samples)})"
    yield f"told once: names and shapes of these tensors{count}, and a keyed digest of the data's settings"
    metrics = [f"{pattern}{_rounding(digits)}" for pattern, digits in policy.metrics.items()]
    few = f", if measured on {policy.min_samples} samples or more" if policy.min_samples > 1 else ""
    yield f"told after evaluations: metrics {', '.join(metrics) or 'none'}{few}"
    withheld = [pattern for pattern in routing.metrics if pattern not in policy.metrics]
    if withheld:
        yield f"withheld: {', '.join(withheld)}"
    yield f"stays: {len(routing.rows) - len(forms)} other tensors of the model, all data, predictions, texts of errors"


def _rounding(digits: int | None) -> str:
    return "" if digits is None else f" to {digits} decimals"


def _limits(policy: Policy, clients: dict[str, Client]) -> Iterator[str]:
    job = next(iter(clients.values())).door.job
    yield "At most, in this run and for each client:"
    yield f"  {job.rounds} rounds of {job.local_epochs} local epochs"
    yield f"  {policy.most_turns(job)} requests for work, {policy.most_evaluations(job)} evaluations"
    yield f"  {policy.megabytes:g} megabytes sent"
    yield f"The server {'may' if policy.accept_states else 'may not'} put clients into states that it sends."
    yield "FLARE's own privacy filters do not see these messages; the section `policy` stands in their place."


_LEAVING = (RouteKind.SHARED, RouteKind.COLLECTED)
