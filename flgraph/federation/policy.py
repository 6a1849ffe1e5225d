"""What a site allows: whoever owns the data decides, and the site's door enforces it whatever a server asks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from typing import Any

from flgraph.errors import PolicyError, expect
from flgraph.federation.payload import Scalar
from flgraph.federation.routes import matches
from flgraph.runs.history import SAMPLES, samples_of

NUM_SAMPLES = "num_samples"
"""The uploaded scalar that says how many training samples a client has."""


@dataclass(frozen=True)
class Policy:
    """What may leave a client, and how often; what is not named here does not.

    The algorithm's routes say what it needs, the policy what it gets: both must agree before a client takes part, and
    each answer is held against the policy once more at the client's door. Metrics that are not allowed are left out of
    the answer; everything else that is not allowed is refused.

    Args:
        algorithms: class names of algorithms, or patterns of these (``FedAvg``, ``Fed*``). When empty, all of flgraph's
            own are allowed that reveal nothing of single records (:attr:`Aggregator.reveals`).
        tensors: patterns of tensors that may leave, of the model and others (``convs.*``, ``rows/*``).
        exchanges: patterns of exchanges that the client takes part in.
        metrics: patterns of metrics that may be told, and to how many decimals they are rounded, and to as few digits
            where they are above 1: who chooses the weights could make any number of a loss. ``None`` for all digits.
        num_samples: numbers of samples are rounded to multiples of it; never told when ``None``.
        min_samples: a client with fewer training samples takes no part, and metrics measured on fewer are not told.
        rounds: of a run, at most.
        local_epochs: of an exchange, at most, whatever the algorithm calls them.
        turns: requests for work that a client answers in a run; when ``None``, three for each exchange of the run's
            rounds, and 50.
        evaluations: evaluations that a client answers in a run; when ``None``, two for each round, and 20.
        megabytes: that a client sends and is sent in a run, at most.
        min_noise: the smallest multiplier of noise that a job must add to all tensors before they leave the client
            (:class:`GaussianNoise` there, or :class:`~flgraph.callbacks.RecordNoise`); none is asked for when ``None``.
        max_epsilon: a client answers no request that would cost it more, all runs together; then jobs without such
            noise, or with uploads that it does not cover, are refused. No limit when ``None``.
        delta: with which that is counted.
        accept_states: whether a server may put clients into states that it sends, as a run needs that began elsewhere.
        secure_sums: uploads leave in secure sums only (:class:`SecureSums`), over so many clients or more (of as many
            sites, where these sign), with as many neighbours; when ``None``, as the job says.

    Raises:
        InputError: a number is out of range.
    """

    algorithms: Sequence[str] = ()
    tensors: Sequence[str] = ("*",)
    exchanges: Sequence[str] = ("*",)
    metrics: Mapping[str, int | None] = field(
        default_factory=lambda: {"train/*": 4, "val/*": 4, "test/*": 4, "global_test/*": 4}
    )
    num_samples: int | None = 1
    min_samples: int = 1
    rounds: int = 1000
    local_epochs: int = 100
    turns: int | None = None
    evaluations: int | None = None
    megabytes: float = 100_000.0
    min_noise: float | None = None
    max_epsilon: float | None = None
    delta: float = 1e-5
    accept_states: bool = False
    secure_sums: int | None = None

    def __post_init__(self) -> None:
        for name in ("num_samples", "min_samples", "rounds", "local_epochs", "turns", "evaluations", "secure_sums"):
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
            optional = value is None and name not in ("min_samples", "rounds", "local_epochs")
            expect(whole or optional, f"policy.{name}", "a whole number of 1 or more", value)
        number = type(self.megabytes) in (int, float) and 0 < self.megabytes < float("inf")
        expect(number, "policy.megabytes", "a finite number above 0", self.megabytes)
        for name in ("min_noise", "max_epsilon"):
            value = getattr(self, name)
            fits = value is None or (type(value) in (int, float) and 0 < value < math.inf)
            expect(fits, f"policy.{name}", "a finite number above 0, or null", value)
        expect(type(self.delta) is float and 0 < self.delta < 1, "policy.delta", "above 0 and below 1", self.delta)
        for name in ("algorithms", "tensors", "exchanges"):
            given = getattr(self, name)
            listed = isinstance(given, list | tuple) and all(isinstance(pattern, str) for pattern in given)
            expect(listed, f"policy.{name}", "a list of patterns", given)
        expect(isinstance(self.metrics, Mapping), "policy.metrics", "patterns with numbers of decimals", self.metrics)
        for pattern, digits in self.metrics.items():
            fits = digits is None or (type(digits) is int and 0 <= digits <= 17)
            expect(isinstance(pattern, str) and fits, f"policy.metrics.{pattern}", "a number of decimals", digits)
        expect(isinstance(self.accept_states, bool), "policy.accept_states", "true or false", self.accept_states)

    @classmethod
    def of(cls, given: Any) -> Policy:
        """The policy of a section of a site's settings; the default one where there is none.

        Raises:
            InputError: it is no mapping, a field is not known, or what is in it cannot be used.
        """
        given = {} if given is None else given
        expect(isinstance(given, Mapping), "policy", "a mapping", given)
        known = [item.name for item in fields(cls)]
        for name in given:
            expect(name in known, f"policy.{name}", f"among {', '.join(known)}", "a field that is not known")
        return cls(**given)

    # ------------------------------------------------------------------------------------------------ what may be asked
    def refusals(self, job: Job) -> Iterator[PolicyError]:
        """Why a client takes no part in a job: nothing where it does."""
        allowed = ", ".join(self.algorithms) or "those of flgraph that reveal nothing of single records"
        if not self._allows(job):
            found = f"{job.algorithm}{f': {job.reveals}' if job.reveals else ''}"
            yield PolicyError("aggregator", f"among the algorithms that the policy allows ({allowed})", found)
        yield from self.kept(job.tensors)
        for name in job.exchanges:
            if not matches(name, self.exchanges):
                yield PolicyError("exchange", f"among those of the policy, {', '.join(self.exchanges)},", name)
        yield from self.excess(job.rounds, job.local_epochs)
        if self.secure_sums is not None and not job.masks:
            wanted = f"given: uploads leave in sums over {self.secure_sums} clients or more only, as the policy says,"
            yield PolicyError("trainer.secure_sums", wanted, "null")
        others = (self.secure_sums or 1) - 1
        if job.neighbours is not None and job.neighbours < others:
            wanted = f"{others} or more, as the policy wants sums over {self.secure_sums} clients,"
            yield PolicyError("trainer.secure_sums.neighbours", wanted, job.neighbours)
        if self.num_samples is None and NUM_SAMPLES in job.scalars:
            without = "one that does without `num_samples` (such as `weighting: uniform`), which the policy withholds,"
            yield PolicyError("aggregator", without, job.algorithm)
        least = self.min_noise or 0.0
        if (self.min_noise is not None or self.max_epsilon is not None) and (job.noise is None or job.noise < least):
            wanted = "with noise before anything leaves the client (GaussianNoise there, or RecordNoise), "
            wanted += f"of a multiplier of {least:g} or more, as the policy says," if least else "as the policy says,"
            yield PolicyError("trainer", wanted, "none" if job.noise is None else job.noise)
        asks = "a `max_epsilon`" if self.max_epsilon is not None else "a `min_noise`"
        bare = [name for name in job.uncovered if self.max_epsilon is not None or name not in job.scalars]
        if bare and (self.min_noise is not None or self.max_epsilon is not None):
            wanted = f"one whose uploads have nothing that noise does not cover, as the policy has {asks},"
            yield PolicyError("trainer", wanted, ", ".join(bare))
        if job.num_samples < self.min_samples:
            yield PolicyError("data", f"of {self.min_samples} training samples or more", job.num_samples)

    def kept(self, tensors: Iterable[str]) -> Iterator[PolicyError]:
        """Why tensors do not leave: nothing where they do."""
        for name in tensors:
            if not matches(name, self.tensors):
                yield PolicyError(name, f"of tensors that the policy lets out ({', '.join(self.tensors)})", "none")

    def excess(self, rounds: int, local_epochs: int) -> Iterator[PolicyError]:
        """Why a job is refused for its length: known before any data is loaded."""
        for name, found, most in (
            ("rounds", rounds, self.rounds),
            ("local_epochs", local_epochs, self.local_epochs),
        ):
            if found > most:
                yield PolicyError(f"trainer.{name}", f"{most} or fewer, as the policy says,", found)

    def _allows(self, job: Job) -> bool:
        if self.algorithms:
            return matches(job.algorithm, self.algorithms)
        return job.own and not job.reveals

    def most_turns(self, job: Job) -> int:
        """How many requests for work a client answers in a run."""
        return 50 + 3 * job.num_exchanges if self.turns is None else self.turns

    def most_evaluations(self, job: Job) -> int:
        """How many evaluations a client answers in a run."""
        return 20 + 2 * job.rounds if self.evaluations is None else self.evaluations

    # --------------------------------------------------------------------------------------------- what may be answered
    def count(self, samples: float) -> int:
        """A number of samples as it is told."""
        step = self.num_samples or 1
        return max(step, round(samples / step) * step)

    def tell(self, metrics: Mapping[str, float], train_samples: int) -> dict[str, Scalar]:
        """Those metrics that may be told, as they may be told."""
        told: dict[str, Scalar] = {}
        for name, value in metrics.items():
            pattern = next((pattern for pattern in self.metrics if fnmatchcase(name, pattern)), None)
            if pattern is None:
                continue
            if name.rpartition("/")[2] == SAMPLES:
                if self.num_samples is not None and value >= self.min_samples:
                    told[name] = float(self.count(value))
                continue
            measured = metrics.get(samples_of(name), train_samples if name.startswith("train/") else None)
            if self.min_samples > 1 and (measured is None or measured < self.min_samples):
                continue
            digits = self.metrics[pattern]
            told[name] = value if digits is None else _rounded(value, digits)
        return told


@dataclass(frozen=True)
class Job:
    """What an algorithm asks of a client, as far as a policy looks at it.

    Args:
        algorithm: its class name.
        own: whether the class is flgraph's.
        reveals: see :attr:`Aggregator.reveals`.
        tensors: names of shared and collected tensors and patterns of further ones that it sends.
        scalars: names of the scalars that it sends.
        exchanges: names of those of the first rounds.
        num_exchanges: of the whole run, at most.
        rounds: of the run.
        local_epochs: of an exchange.
        num_samples: training samples of the client.
        noise: the smallest multiplier of what adds noise before anything leaves the client; ``None`` without any.
        uncovered: what of its uploads such noise does not cover.
        masks: whether uploads are masked.
        neighbours: with how many others masks are agreed on, if not with all.
    """

    algorithm: str
    own: bool
    reveals: str
    tensors: Sequence[str]
    scalars: Sequence[str]
    exchanges: Sequence[str]
    num_exchanges: int
    rounds: int
    local_epochs: int
    num_samples: int
    noise: float | None = None
    uncovered: Sequence[str] = ()
    masks: bool = False
    neighbours: int | None = None

    @property
    def asks_samples(self) -> bool:
        """Whether the server is to know the number of training samples: not where masked sums, or it, do without."""
        return NUM_SAMPLES in self.scalars and not self.masks


def _rounded(value: float, decimals: int) -> float:
    """To so many decimals below 1, and to as many digits in all as a number below 10 then has above."""
    if math.isfinite(value) and abs(value) >= 10:
        decimals -= math.floor(math.log10(abs(value)))
    return round(value, decimals)
