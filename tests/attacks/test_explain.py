"""What a site is told of a job beforehand is what the job then does; nothing is sent or trained for it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from flgraph.cli.main import main
from flgraph.federation import Client
from flgraph.federation.accountant import spent
from flgraph.federation.budget import SPENDING, Event, Spending
from flgraph.flare.run import Site, clients_of
from flgraph.flare.settings import SiteSettings

pytestmark = pytest.mark.filterwarnings("ignore:LightningCLI's args")  # pytest's own are on the command line

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "flare"
JOB = str(EXAMPLE / "federation.yaml")


@pytest.fixture
def explain(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """What ``flgraph flare explain`` prints for a site with a policy."""
    for name in ("turn", "fit"):
        monkeypatch.setattr(Client, name, lambda *args, **kwargs: pytest.fail("a client worked"))
    monkeypatch.setattr(Site, "answer", lambda *args: pytest.fail("a site answered"))

    def run(*args: str, policy: dict[str, Any] | None = None, **settings: Any) -> str:
        (tmp_path / "local").mkdir(exist_ok=True)
        content = {**yaml.safe_load((EXAMPLE / "north.yaml").read_text()), "policy": policy or {}, **settings}
        (tmp_path / "local" / "flgraph.yaml").write_text(yaml.safe_dump(content))
        try:
            main(["flare", "explain", str(tmp_path), "-c", JOB, *args])
        except SystemExit:
            text, said = capsys.readouterr()
            sys.stderr.write(said)
            if not text:
                raise
            assert "REFUSED" in text
            assert "Expected `job` to be allowed by the site's policy but got refused for trees, see above." in said
            return text
        text = capsys.readouterr().out
        assert "REFUSED" not in text
        return text

    return run


def test_what_leaves_and_what_stays(explain: Callable[..., str], tmp_path: Path) -> None:
    text = explain()
    content = yaml.safe_load((EXAMPLE / "north.yaml").read_text())
    settings = SiteSettings(**{**content, "clients": ("trees",), "folder": str(tmp_path)})
    (client,) = clients_of(Path(JOB).read_text(), settings, None).values()
    shared = client.routing.signature()
    assert len(shared) == 8
    for name, form in shared.items():
        assert f"    {name}, {form}\n" in text
    stays = [name for name in client.routing.rows if name not in shared]
    assert not any(name in text for name in stays)
    assert f"stays: {len(stays)} other tensors of the model, all data, all predictions" in text
    assert "Client trees: takes part." in text
    assert "and num_samples, 24\n" in text
    assert "the number of training samples (24)" in text
    assert "REFUSED" not in text
    assert "metrics" not in text
    assert "train/* to 4 decimals, val/* to 4 decimals, test/* to 4 decimals" in text
    assert "measured with weights that the server chooses" in text
    for limit in (
        "10 rounds of 1 local epochs",
        "80 requests for work, 40 evaluations",
        "100000 megabytes sent and received",
    ):
        assert f"  {limit}\n" in text
    assert "The server may not put clients into states that it sends." in text


def test_secure_sums_are_told_and_demanded(explain: Callable[..., str]) -> None:
    text = explain("--trainer.secure_sums={threshold: 0.7}", policy={"secure_sums": 5})
    assert "all of it masked: the server can read the sum over an exchange's clients, and no client's own part" in text
    assert "Uploads leave in secure sums over 5 clients or more only." in text
    assert "the number of training samples" not in text
    assert "refused: Expected `trainer.secure_sums` to be given: uploads leave in" in explain(policy={"secure_sums": 5})


def test_a_strict_policy(explain: Callable[..., str]) -> None:
    policy = {"metrics": {}, "num_samples": 10, "turns": 3, "evaluations": 2, "megabytes": 1, "min_samples": 5}
    text = explain(policy=policy, trainer={"accelerator": "cpu"})
    assert "after evaluations: no metrics, if measured on 5 samples or more\n" in text
    assert "and num_samples, 20\n" in text
    assert "24" not in text
    assert "3 requests for work, 2 evaluations" in text
    assert "  1 megabytes sent" in text
    assert "the site's own choices for its trainers (accelerator)" in text


@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        ({"algorithms": ["FedAvg"]}, "`aggregator` to be among the algorithms that the policy allows (FedAvg) but got"),
        ({"tensors": ["other.*"]}, "`structure.pre.weight` to be of tensors that the policy lets out (other.*)"),
        ({"exchanges": []}, "`exchange` to be among those of the policy"),
        ({"rounds": 9}, "`trainer.rounds` to be 9 or fewer, as the policy says, but got 10."),
        ({"num_samples": None}, "`aggregator` to be one that does without `num_samples` (such as"),
        ({"min_samples": 25}, "`data` to be of 25 training samples or more but got 24."),
    ],
)
def test_refusals(explain: Callable[..., str], policy: dict[str, Any], sentence: str) -> None:
    text = explain(policy=policy)
    assert "Client trees: REFUSED, so that nothing would leave." in text
    assert f"  refused: Expected {sentence}" in text
    assert "would be sent, were it not refused: in each exchange (train): 8 tensors" in text


def test_transforms_and_what_they_leave(explain: Callable[..., str]) -> None:
    arguments = {"norm": 1, "multiplier": 2, "leave": ["structure.*"]}
    noise = [{"class_path": "flgraph.federation.GaussianNoise", "init_args": arguments}]
    text = explain("--trainer.transforms", json.dumps(noise), policy={"tensors": ["structure.*"]})
    assert "changed before by GaussianNoise (leave: ['structure.*'], norm: 1.0, multiplier: 2.0, at: client)" in text
    assert "the policy has no `min_noise`" in text
    assert "REFUSED" not in text
    codes = '{"class_path": "flgraph.federation.Quantise"}'
    text = explain("--trainer.transforms", f"[{codes}]", policy={"tensors": ["structure.*"]})
    assert "refused: Expected `transforms/*` to be of tensors that the policy lets out (structure.*)" in text
    assert "    and transforms/*, which is" in text


def test_what_clients_have_spent(explain: Callable[..., str], tmp_path: Path) -> None:
    spending = Spending(tmp_path / "flgraph" / "clients" / "trees" / SPENDING)
    spending.add(Event("client", 20.0, 1.0), 3, 1e-5, None)
    noise = [{"class_path": "flgraph.federation.GaussianNoise", "init_args": {"norm": 1, "multiplier": 20}}]
    text = explain("--trainer.transforms", json.dumps(noise), policy={"max_epsilon": 5, "min_noise": 4})
    epsilon = spent(20.0, 1, ((1, 3),), 1e-5)
    limit = "of 5 that the policy allows in all (delta 1e-05, unit: client)"
    assert f"Client trees has spent epsilon {epsilon:.4g} {limit}." in text
    assert "with noise of a multiplier of 20 or more that the site adds, but not num_samples" in text
    assert "A client answers nothing that would cost more than epsilon 5, all jobs together." in text
    assert "REFUSED" in text
    assert "uploads have nothing that noise does not cover" in text


def test_what_an_algorithm_reveals(explain: Callable[..., str]) -> None:
    own = ("--trainer.aggregator", "flgraph.callbacks.FedEgo", "--model", "flgraph.models.FedEgo")
    text = explain(*own)
    assert "    and ego_graphs/*, which is computed of the data itself\n" in text
    assert "withheld, though the algorithm reports them: mixing/lambda, mixing/emd, mixing/divergence\n" in text
    assert "REFUSED" not in text
    text = explain(*own, "--trainer.aggregator.mixup", "false")
    assert "What it reveals of single records: The server gets representations and classes of single nodes" in text
    assert "REFUSED" in text


def test_bad_policies_in_one_sentence(explain: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        explain(policy={"round": 3})
    assert ended.value.code == 2
    assert "Expected `policy.round` to be among algorithms, tensors," in capsys.readouterr().err
