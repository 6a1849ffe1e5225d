"""What a job could take from a site, in words, before anything runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flgraph.errors import FAILED, POLICY, REFUSED, PolicyError
from flgraph.federation.budget import SPENDING, Spending
from flgraph.federation.client import Client
from flgraph.federation.policy import NUM_SAMPLES, Policy
from flgraph.federation.routes import RouteKind, matches
from flgraph.federation.transforms import Transform
from flgraph.flare.run import clients_of
from flgraph.flare.settings import clients_folder, read_settings


def explain(kit: Path, config: str) -> Iterator[str]:
    """Lines that say what leaves a site in a job, what stays, and why its policy would refuse it.

    The site's data is read and its models are made; nothing is trained, and nothing is sent.

    Args:
        kit: the site's.
        config: the job's configuration as YAML, without data.

    Raises:
        InputError: the configuration names a class that the site does not allow, or cannot be used with its data.
        PolicyError: after all lines, if the policy refuses a client.
    """
    settings = read_settings(kit)
    policy = Policy.of(settings.policy)
    clients = clients_of(config, settings, policy=None)
    spent = {name: Spending(clients_folder(settings) / name / SPENDING) for name in clients}
    job = next(iter(clients.values())).door.job
    yield f"The job: {job.algorithm}, {job.rounds} rounds, {job.local_epochs} local epochs in each exchange."
    if job.reveals:
        yield f"What it reveals of single records: {job.reveals}"
    refused = []
    for name, client in clients.items():
        refusals = list(policy.refusals(client.door.job))
        refused += [name] if refusals else []
        yield ""
        yield f"Client {name}: {'REFUSED, so that nothing would leave' if refusals else 'takes part'}."
        yield from (f"  refused: {refusal}" for refusal in refusals)
        would = "would be sent, were it not refused:" if refusals else "sent"
        yield from (f"  {line}" for line in _leaves(client, policy, would, settings.trainer))
    yield ""
    yield from _limits(policy, clients)
    yield from _privacy(policy, spent)
    if refused:
        raise PolicyError("job", "allowed by the site's policy", f"refused for {', '.join(refused)}, see above")


def _leaves(client: Client, policy: Policy, sent: str, trainer: Mapping[str, Any]) -> Iterator[str]:
    routing, job = client.routing, client.door.job
    forms = {name: routing.rows[name].form for kind in _LEAVING for name in routing.names(kind)}
    exchanges = ", ".join(job.exchanges) or "there is none"
    yield f"{sent} in each exchange ({exchanges}): {len(forms)} tensors of the model, as trained on the data"
    yield from (f"  {name}, {form}" for name, form in forms.items())
    yield from (f"  and {pattern}, which is {_KINDS[kind]}" for pattern, kind in routing.extra.items())
    yield from (f"  changed before by {_settings_of(transform)}" for transform in client.transforms.transforms)
    if client.transforms and policy.min_noise is None:
        yield "  That is the job's choice: the policy has no `min_noise`."
    if job.noise is not None:
        covered = f", but not {', '.join(job.uncovered)}" if job.uncovered else ""
        yield f"  with noise of a multiplier of {job.noise:g} or more that the site adds{covered}"
    for name in job.scalars:
        known = name == NUM_SAMPLES and policy.num_samples is not None
        yield f"  and {name}" + (f", {policy.count(job.num_samples)}" if known else "")
    if job.masks:
        yield "  all of it masked: the server can read the sum over an exchange's clients, and no client's own part"
    parts = ["the client's name", "names and shapes of these tensors"]
    if job.asks_samples and policy.num_samples == 1:
        parts.append(f"the number of training samples ({job.num_samples})")
    parts.append("a keyed digest of the data's settings, which tells that these have changed and nothing else")
    if trainer:
        parts.append(f"the site's own choices for its trainers ({', '.join(trainer)})")
    yield f"{sent} once: {'; '.join(parts)}"
    metrics = [f"{pattern}{_rounding(digits)}" for pattern, digits in policy.metrics.items()]
    few = f", if measured on {policy.min_samples} samples or more" if policy.min_samples > 1 else ""
    yield f"{sent} after evaluations: {', '.join(metrics) if metrics else 'no metrics'}{few}"
    if metrics:
        yield "  These are measured with weights that the server chooses: of some, they tell the shares of classes."
    withheld = [pattern for pattern in routing.metrics if not matches(pattern, policy.metrics)]
    if withheld:
        yield f"  withheld, though the algorithm reports them: {', '.join(withheld)}"
    yield f"{sent} where something fails: one word, {POLICY}, {REFUSED} or {FAILED}; the site's log has the text"
    yield f"stays: {len(routing.rows) - len(forms)} other tensors of the model, all data, all predictions"


def _settings_of(transform: Transform) -> str:
    """Its class and arguments, among which is what it leaves as it is."""
    given = {name: value for name, value in vars(transform).items() if not name.startswith("_")}
    return f"{type(transform).__name__} ({', '.join(f'{name}: {value}' for name, value in given.items())})"


def _rounding(digits: int | None) -> str:
    return " as measured" if digits is None else f" to {digits} decimals"


def _limits(policy: Policy, clients: dict[str, Client]) -> Iterator[str]:
    job = next(iter(clients.values())).door.job
    yield "At most, for each client, over all jobs of a run of this name:"
    yield f"  {min(job.rounds, policy.rounds)} rounds of {min(job.local_epochs, policy.local_epochs)} local epochs"
    yield f"  {policy.most_turns(job)} requests for work, {policy.most_evaluations(job)} evaluations"
    yield f"  {policy.megabytes:g} megabytes sent and received"
    yield "A run of another name begins with all of this anew: whether there is one is decided where jobs are approved."
    if policy.secure_sums is not None:
        yield f"Uploads leave in secure sums over {policy.secure_sums} clients or more only."
    yield f"The server {'may' if policy.accept_states else 'may not'} put clients into states that it sends."
    yield "It sees, too, when an answer comes and how long it is. What it does with what it gets, no policy decides."
    yield "FLARE's own privacy filters do not see these messages; the section `policy` stands in their place."


def _privacy(policy: Policy, spent: Mapping[str, Spending]) -> Iterator[str]:
    """What clients have spent in all jobs before, as the site counts it."""
    limit = "" if policy.max_epsilon is None else f" of {policy.max_epsilon:g} that the policy allows in all"
    for name, own in spent.items():
        for unit in sorted({event.unit for event in own.events}):
            epsilon = f"{own.epsilon(unit, policy.delta):.4g}{limit}"
            yield f"Client {name} has spent epsilon {epsilon} (delta {policy.delta:g}, unit: {unit})."
    if policy.max_epsilon is not None:
        yield f"A client answers nothing that would cost more than epsilon {policy.max_epsilon:g}, all jobs together."


_KINDS = {
    "weights": "weights",
    "update": "a change of weights",
    "gradient": "a gradient, of the data that it was taken on",
    "data": "computed of the data itself",
}
_LEAVING = (RouteKind.SHARED, RouteKind.COLLECTED)
