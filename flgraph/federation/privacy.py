"""How much of a client can be told from what it uploads, counted over a run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flgraph.errors import InputError, expect
from flgraph.federation.accountant import spent
from flgraph.federation.aggregator import Aggregator, needs_only_sums
from flgraph.federation.budget import AddsNoise
from flgraph.federation.callback import FederatedCallback, Run
from flgraph.federation.transforms import GaussianNoise, Pipeline, Transform
from flgraph.runs.history import EPSILON
from flgraph.runs.ledger import ASKED, LEDGER
from flgraph.runs.ledger_reader import read_ledger


@dataclass(frozen=True)
class Privacy:
    """What a run may cost a client, where its transforms have :class:`GaussianNoise`.

    Args:
        delta: of (epsilon, delta)-differential privacy; below one over the number of clients.
        max_epsilon: the run ends before a round that would cost more; no limit when ``None``.

    Raises:
        InputError: a number is out of range.
    """

    delta: float = 1e-5
    max_epsilon: float | None = None

    def __post_init__(self) -> None:
        number = isinstance(self.delta, int | float) and not isinstance(self.delta, bool)
        expect(number and 0 < self.delta < 1, "trainer.privacy.delta", "above 0 and below 1", self.delta)
        most = self.max_epsilon
        fits = most is None or (isinstance(most, int | float) and 0 < most < math.inf)
        expect(fits, "trainer.privacy.max_epsilon", "a finite number above 0, or null", most)


class Account:
    """What a run has cost its clients: kept by the server, in its checkpoints.

    The guarantee is of a client: whoever sees all that it uploaded (or, with noise at the server, all that the server
    sent out) cannot tell its data from any others (neighbours are federations that differ in one client's data).
    Replacing an update of a length up to ``norm`` by another one changes a sum by up to twice that.

    With noise at the client each upload counts for the client that sent it, and the dearest client is told. With noise
    at the server each exchange counts for all; where clients are drawn for each round, for as much as a draw without
    replacement costs (Wang et al., AISTATS 2019), but only in a simulation: at sites everybody knows the run's seed,
    and so who was drawn.

    Args:
        privacy: the limits.
        noise: the run's.
        aggregator: the server half.
        clients: of the federation.
        trusted: whether all is a simulation.
        sums_only: whether uploads are masked, so that the server sees sums.
        leave: patterns of tensors that the run's transforms leave as they are.
        drawn: how many clients are drawn for a round; all when ``None``.

    Raises:
        InputError: the noise hides nothing in this algorithm, or a limit is set where nothing can be claimed.
    """

    def __init__(
        self,
        privacy: Privacy,
        noise: GaussianNoise,
        aggregator: Aggregator,
        clients: Sequence[str],
        trusted: bool,
        sums_only: bool = False,
        leave: Sequence[str] = (),
        drawn: int | None = None,
    ) -> None:
        self.drawn = len(clients) if drawn is None else drawn
        self.privacy, self.noise, self.clients, self.trusted = privacy, noise, list(clients), trusted
        self.sums_only, self.leave = sums_only, list(leave)
        self.uploads: Counter[str] = Counter()
        """Client to how many uploads it was asked for."""
        self.sums: Counter[str] = Counter()
        """Number of clients that were drawn for an exchange, as text, to how many of these there were."""
        self.aggregator = aggregator
        wanted = "client with this algorithm, whose server does not take a plain mean that counts all alike"
        expect(noise.at == "client" or _takes_plain_mean(aggregator), "GaussianNoise.at", wanted, noise.at)
        few = privacy.delta < 1 / len(clients)
        expect(few, "trainer.privacy.delta", f"below 1 / {len(clients)}, one over the number of clients", privacy.delta)
        limited = privacy.max_epsilon is not None
        if limited and self.uncovered:
            field, wanted = "trainer.privacy.max_epsilon", "null where uploads hold more than noise hides"
            raise InputError(field, wanted, f"{privacy.max_epsilon} with {', '.join(self.uncovered)}")

    @property
    def uncovered(self) -> list[str]:
        """What of uploads leaves without noise; nothing is claimed then."""
        return self.noise.uncovered(self.aggregator, self.leave)

    def count(self, clients: Collection[str], drawn: int) -> None:
        """Counts an exchange.

        Args:
            clients: that are asked.
            drawn: how many were drawn for it.
        """
        self.uploads.update(list(clients))  # a mapping would add its values
        self.sums[str(drawn)] += 1

    def epsilon(self, further: int = 0) -> float:
        """What was spent, and what so many further exchanges would cost.

        Raises:
            InputError: the accountant is not installed.
        """
        if self._sampled:
            sums = self.sums + Counter({str(self.drawn): further})
            events = tuple(sorted((int(drawn), times) for drawn, times in sums.items() if times))
        else:  # of the client that was asked most, as if it were asked again
            events = ((len(self.clients), max(self.uploads.values(), default=0) + further),)
        return spent(self.noise.multiplier, len(self.clients), events, self.privacy.delta)

    @property
    def _sampled(self) -> bool:
        """Whether it counts that not all clients are drawn: for each exchange anew, as there is one a round."""
        drawn_anew = all(len(self.aggregator.exchanges(round)) < 2 for round in (0, 1))
        at_server = self.noise.at == "server" and self.trusted
        return at_server and drawn_anew and any(n < len(self.clients) for n in (self.drawn, *map(int, self.sums)))

    def summary(self) -> dict[str, Any]:
        """For ``results.json``."""
        told: dict[str, Any] = {
            "unit": "client",
            "noise_at": self.noise.at,
            "clip": self.noise.norm,
            "noise_multiplier": self.noise.multiplier,
            "delta": self.privacy.delta,
            "neighbours": "federations in which one client has other data",
            "noise_drawn": noise_drawn(self.trusted),
            "outside_of_the_guarantee": [
                *self.uncovered,
                *self.aggregator.reported_scalars,
                "metrics of training and of evaluations",
                "who took part",
            ],
        }
        if self.uncovered:
            return {**told, "epsilon": None, "claim": f"none: {', '.join(self.uncovered)} leave without noise"}
        epsilon = self.epsilon()
        whom = "the server and everybody else" if self.noise.at == "client" else "everybody but the server"
        claim = f"({epsilon:.3g}, {self.privacy.delta:g})-differential privacy of each client's uploads towards {whom}"
        if self.noise.at == "server" and self.sums_only:
            claim += ", which sees sums of these without noise"
        if self._sampled:
            claim += ", as long as nobody else learns who took part when"
        return {**told, "epsilon": epsilon, "claim": claim}

    def recount(self, ledger: Path, after: int) -> None:
        """Counts what was asked for in rounds that a run has lost, and does again: its noise is another one at sites.

        Args:
            ledger: of the run.
            after: the last round that is not lost.
        """
        if self.trusted or not ledger.is_file():
            return
        self.uploads.update(line.client for line in read_ledger(ledger) if line.event == ASKED and line.round > after)

    def state(self) -> dict[str, Any]:
        """For checkpoints."""
        return {"uploads": dict(self.uploads), "sums": dict(self.sums)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Puts back what :meth:`state` returned."""
        self.uploads, self.sums = Counter(state["uploads"]), Counter(state["sums"])


def noise_drawn(simulated: bool) -> str:
    """Where noise is from, for ``results.json``."""
    seed = "from the run's seed: this is a simulation, and hides nothing from who knows the seed"
    return seed if simulated else "from the operating system"


def check_noise(privacy: Privacy | None, transforms: Sequence[Transform], callbacks: Sequence[object]) -> None:
    """Refuses limits without noise, and noise of which a run could not claim all.

    Raises:
        InputError: names the field.
    """
    noisy = privacy is None or any(isinstance(own, GaussianNoise) for own in transforms)
    expect(noisy, "trainer.privacy", "null without GaussianNoise in `trainer.transforms`", privacy)
    units = {own.unit for own in [*transforms, *callbacks] if isinstance(own, AddsNoise)}
    wanted = "with noise that hides clients, or records, not both, as a run claims one of these,"
    expect(len(units) < 2, "trainer.transforms", wanted, " and ".join(sorted(units)))


def account_of(
    transforms: Pipeline,
    privacy: Privacy,
    aggregator: Aggregator,
    clients: Sequence[str],
    trusted: bool,
    sums_only: bool = False,
    drawn: int | None = None,
) -> Account | None:
    """The account of a run with noise; see :class:`Account`."""
    noise = next((own for own in transforms.transforms if isinstance(own, GaussianNoise)), None)
    if noise is None:
        return None
    return Account(privacy, noise, aggregator, clients, trusted, sums_only, transforms.leave, drawn)


class PrivacyBudget(FederatedCallback):
    """Tells what was spent after every round, and ends the run before it is more than may be.

    Args:
        account: the run's.
    """

    def __init__(self, account: Account) -> None:
        self.account = account

    def on_federation_start(self, trainer: Run) -> None:
        if trainer.run_dir is not None:
            self.account.recount(trainer.run_dir / LEDGER, trainer.current_round)
        most = self.account.privacy.max_epsilon
        if most is not None and trainer.current_round < trainer.rounds:
            cost = self.account.epsilon(self._further(trainer))
            wanted = f"{cost:.4g} or more, which round {trainer.current_round + 1} costs,"
            expect(cost <= most, "trainer.privacy.max_epsilon", wanted, most)

    def on_round_end(self, trainer: Run) -> None:
        if self.account.uncovered:
            return
        trainer.record.server[EPSILON] = self.account.epsilon()
        most = self.account.privacy.max_epsilon
        if most is not None and self.account.epsilon(self._further(trainer)) > most:
            trainer.should_stop = True

    def on_federation_end(self, trainer: Run) -> None:
        trainer.console.print(f"privacy: {self.account.summary()['claim']}", soft_wrap=True)

    def _further(self, trainer: Run) -> int:
        return len(self.account.aggregator.exchanges(trainer.current_round + 1))


def _takes_plain_mean(aggregator: Aggregator) -> bool:
    """Whether all that becomes of uploads is their mean, in which all count alike."""
    exchanges = [(round, exchange) for round in (0, 1) for exchange in aggregator.exchanges(round)]
    plain = all(needs_only_sums(aggregator, *exchange) for exchange in exchanges)
    alike = "num_samples" not in aggregator.upload_scalars
    return plain and alike and type(aggregator).download is Aggregator.download
