"""Rounds on one process and on several: seconds of a round of FedStar, and what an engine costs per turn.

See README.md beside this file for what each figure means.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from many_clients import settle
from timing import QUIET, clocks, since

from flgraph.callbacks import FedAvg
from flgraph.federation import (
    Client,
    FederatedCallback,
    FederatedTrainer,
    Payload,
    ProcessGroup,
    Request,
    Sequential,
    Sums,
    Turn,
    WeightedMean,
    weighted_mean,
)
from flgraph.federation.callback import Run
from flgraph.federation.engines.distributed.launcher import launch
from flgraph.federation.summing import Group, Summing
from flgraph.runs.history import read_records
from flgraph.runs.ledger_reader import read_ledger

WARM = 6
"""Rounds before the first that counts: clients have moved by then."""

ENGINE = "--trainer.engine"
WAYS = {
    "sequential, 2 threads": ("2", ()),
    "1 process, 1 thread": ("1", (ENGINE, "ProcessGroup", f"{ENGINE}.processes", "1")),
    "2 processes, 1 thread": ("1", (ENGINE, "ProcessGroup", f"{ENGINE}.processes", "2")),
    "forked, 1 thread": ("1", (ENGINE, "flgraph.federation.engines.forked.Forked")),
}


# --------------------------------------------------------------------------------------------------------- real rounds
def real(shards: int, rounds: int, repeats: int) -> list[str]:
    """Lines about seconds per round of FedStar on CHEM, the ways taking turns."""
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(repeats):
        for way in WAYS:
            found[way] += _fit(way, shards, rounds)
    base = statistics.median(found["sequential, 2 threads"])
    lines = [f"FedStar on CHEM, {7 * shards} clients, {rounds} rounds, {repeats} times each: seconds of a round"]
    for way, seconds in found.items():
        middle = statistics.median(seconds)
        lines.append(f"  {way:24s} median {middle:6.3f}  least {min(seconds):6.3f}  ratio {middle / base:5.2f}")
    return lines


def _fit(way: str, shards: int, rounds: int) -> list[float]:
    threads, options = WAYS[way]
    with tempfile.TemporaryDirectory() as folder:
        given = {"rounds": WARM + rounds, "default_root_dir": folder, "name": "run", **QUIET}
        settings = [
            f"--trainer.{name}={str(value).lower() if value is False else value}" for name, value in given.items()
        ]
        files = ["-c", "configs/data/chem.yaml", "-c", "configs/method/fedstar.yaml"]
        command = [sys.executable, "-m", "flgraph", "fit", *files, f"--data.shards={shards}", *settings, *options]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": threads}, stdout=subprocess.DEVNULL)
        records = read_records(Path(folder) / "run" / "version_0" / "history.jsonl")
    return [record["seconds"] for record in records[WARM:]]


# --------------------------------------------------------------------------------------------------------- idle rounds
class Idle(FedAvg):
    """Sends and takes weights, and does nothing with them."""

    def local_update(self, client: Client, round: int, exchange: str) -> None:
        """Nothing."""


class Weights(pl.LightningModule):
    """Weights that nothing is done with."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.weight = torch.nn.Parameter(torch.zeros(size))

    def configure_optimizers(self) -> Any:
        """Never called."""


class Nothing:
    """A client without data."""

    num_train_samples = 1
    model_args: Mapping[str, Any] = {}

    def train_dataloader(self) -> None:
        """None."""

    val_dataloader = test_dataloader = predict_dataloader = train_dataloader


class Crowd(pl.LightningDataModule):
    """Many clients without data."""

    name = "crowd"

    def __init__(self, count: int) -> None:
        super().__init__()
        self.clients = [f"client-{number:05d}" for number in range(count)]

    def client(self, name: str) -> Nothing:
        """The same for all."""
        return Nothing()


def idle_rounds(engine: ProcessGroup | None, size: int, clients: int, rounds: int) -> list[float]:
    """Seconds of rounds in which nothing is done, evaluation (which installs) included."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = FederatedTrainer(
            Idle(),
            engine=engine,
            rounds=WARM + rounds,
            default_root_dir=folder,
            **QUIET,
        )
        trainer.fit(Weights(size), Crowd(clients))
        if trainer.run_dir is None:
            return []
        return [record["seconds"] for record in read_records(trainer.run_dir / "history.jsonl")][WARM:]


def idle(size: int, clients: int, rounds: int, processes: Sequence[int]) -> list[str]:
    """Lines about what an engine costs per turn."""
    lines = [
        f"{clients} clients with {size} parameters ({4 * size / 1e3:.0f} kB) that do no work: ms per client and round"
    ]
    alone = 1e3 * statistics.median(idle_rounds(None, size, clients, rounds)) / clients
    lines.append(f"  sequential               {alone:6.3f}")
    for count in processes:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "seconds.json"
            worker = ["--worker", str(out), "--size", str(size), "--clients", str(clients), "--rounds", str(rounds)]
            assert launch([sys.executable, __file__, *worker], count) == 0
            each = 1e3 * statistics.median(json.loads(out.read_text())) / clients
        turn = count * each  # every process has a share, and does one turn after another
        lines.append(f"  {count} processes              {each:6.3f}, {turn:.3f} per turn: engine {turn - alone:+.3f}")
    payload = {str(n): {"weight": torch.rand(size)} for n in range(clients)}
    began = time.perf_counter()
    weighted_mean(payload, dict.fromkeys(payload, 1.0))
    lines.append(f"  weighted mean            {1e3 * (time.perf_counter() - began) / clients:6.3f} per upload")
    return lines


# ------------------------------------------------------------------------------------------------------- a large crowd
class Held(WeightedMean):
    """The same mean; of another class than the default's the loop holds all uploads until it is taken."""


MEANS = {"uploads held": Held, "uploads added up as they come": WeightedMean}


class Drawn(Sequential):
    """One client that speaks for all, and drawn weights for uploads: what is left is the server's part of a round."""

    def setup(self, build: Callable[[str], Client], names: Sequence[str], release: Any = None) -> None:
        super().setup(build, names[:1])
        self.names, (self.client,) = names, self.clients.values()

    def run(self, turns: Mapping[str, Turn]) -> Mapping[str, bytes]:
        return {name: self._answer(turn) for name, turn in turns.items()}

    def _answer(self, turn: Turn) -> bytes:
        if turn.request != Request.EXCHANGE:
            return self.client.turn(turn)
        drawn = {name: 0.05 * torch.randn(tensor.shape) for name, tensor in self.client.shared_tensors().items()}
        return Payload(drawn, {"num_samples": 1}).to_bytes()

    def about(self) -> dict[str, dict[str, Any]]:
        (about,) = super().about().values()
        return dict.fromkeys(self.names, about)


class Watch(FederatedCallback):
    """What rounds take in process 0, the first aside: seconds, and memory above what was there before."""

    def __init__(self) -> None:
        self.rounds: list[dict[str, float]] = []

    def on_round_start(self, trainer: Run) -> None:
        settle()
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
        self._before = clocks(), _peak()

    def on_round_end(self, trainer: Run) -> None:
        began, memory = self._before
        wall, busy = since(began)
        self.rounds.append({"processor": busy, "wall": wall, "before": memory, "memory": _peak() - memory})


def _peak() -> float:
    """The largest memory of this process so far, in MB."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024 / 1e6


def crowd_worker(mean: str, size: int, clients: int, rounds: int, processes: int) -> dict[str, Any] | None:
    """What :class:`Watch` saw in process 0, and the bytes of sums that came from others, per round."""
    watch = Watch()
    with tempfile.TemporaryDirectory() as folder:
        trainer = FederatedTrainer(
            Idle(combine=MEANS[mean]()),
            engine=ProcessGroup(threads=1) if processes > 1 else Drawn(),
            rounds=1 + rounds,
            evaluate_every=1 + rounds,
            callbacks=[watch],
            default_root_dir=folder,
            **QUIET,
        )
        trainer.fit(Weights(size), Crowd(clients))
        if trainer.run_dir is None:
            return None
        lines = read_ledger(trainer.run_dir / "ledger.jsonl")
        uploads = sum(line.bytes for line in lines if line.direction == "up" and line.round == 2)
        sums = sum(line.bytes for line in lines if line.event == "sum" and line.round == 2)
    return {"rounds": watch.rounds[1:], "uploads": uploads, "sums": sums}


def crowd(size: int, clients: int, rounds: int, repeats: int, processes: int) -> list[str]:
    """Lines about a round of many clients, with uploads held and with sums, taking turns."""
    found: dict[str, list[dict[str, Any]]] = {mean: [] for mean in MEANS}
    for _ in range(repeats):
        for mean in MEANS:
            with tempfile.TemporaryDirectory() as folder:
                out = Path(folder) / "seen.json"
                numbers = {"size": size, "clients": clients, "rounds": rounds, "crowd": processes}
                options = [text for name, value in numbers.items() for text in (f"--{name}", str(value))]
                command = [sys.executable, __file__, "--worker", str(out), "--mean", mean, *options]
                assert launch(command, processes) == 0
                found[mean].append(json.loads(out.read_text()))
    many = f"{processes} processes, clients do no work" if processes > 1 else "uploads are drawn"
    lines = [f"{clients:,} clients with {size:,} parameters, {many}: process 0 in a round"]
    for mean, runs in found.items():
        rows = [row for run in runs for row in run["rounds"]]
        middle = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
        lines.append(
            f"  {mean:30s} {middle['memory']:8.1f} MB above {middle['before']:8.1f}, "
            f"{middle['processor']:6.2f} s of its processor, {middle['wall']:6.2f} s on the clock"
        )
        if processes > 1:
            away = runs[0]["uploads"] * (processes - 1) / processes
            told = f"sums of {runs[0]['sums'] / 1e6:.2f} MB" if runs[0]["sums"] else f"uploads of {away / 1e6:.2f} MB"
            lines.append(f"  {'':30s} {told} from the other processes")
    return lines


# --------------------------------------------------------------------------------------------------------------- FLARE
def flare(size: int, each: int, rounds: int) -> list[str]:
    """Lines about what FLARE costs per turn, with two sites on this machine that hold ``each`` clients."""
    alone = 1e3 * statistics.median(idle_rounds(None, size, 2 * each, rounds)) / (2 * each)
    seconds = 1e3 * statistics.median(_on_flare(size, each, rounds))
    turn = seconds / each  # the sites have their turns side by side
    return [
        f"NVIDIA FLARE, 2 sites with {each} such clients each, mutual TLS, no checkpoints: {seconds:.1f} ms a round, "
        f"{turn:.3f} per client of a site: engine {turn - alone:+.3f}"
    ]


def _on_flare(size: int, each: int, rounds: int) -> list[float]:
    clients = Crowd(2 * each).clients
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "flgraph", "flare"]
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe, ExitStack() as running:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        kits = Path(folder) / "kits"
        quiet: dict[str, Any] = {"env": environment, "cwd": folder, "stdout": subprocess.DEVNULL}
        subprocess.run([*command, "provision", "--sites", "a,b", "--port", str(port)], check=True, **quiet)
        data = {"class_path": "engines.Crowd", "init_args": {"count": 2 * each}}
        allow = ["flgraph.*", "engines.*"]
        for number, site in enumerate("ab"):
            own = {"data": data, "clients": clients[number * each :][:each], "allow": allow}
            (kits / site / "local" / "flgraph.yaml").write_text(json.dumps(own))
        (kits / "server" / "local" / "flgraph.yaml").write_text(json.dumps({"allow": allow}))
        for kit in ("server", "a", "b"):
            process = subprocess.Popen([*command, "start", str(kits / kit)], **quiet)
            running.callback(process.wait, 30)
            running.callback(process.terminate)
        run = Path(folder) / "run.yaml"
        model = {"class_path": "engines.Weights", "init_args": {"size": size}}
        trainer = {"rounds": WARM + rounds, "aggregator": {"class_path": "engines.Idle"}}
        trainer |= {"enable_checkpointing": False, "logger": False, "accelerator": "cpu"}
        run.write_text(json.dumps({"model": model, "trainer": trainer}))
        time.sleep(10)  # sites connect
        subprocess.run([*command, "submit", "--sites", "a,b", "--name", "idle", "-c", str(run)], check=True, **quiet)
        (file,) = (kits / "server" / "flgraph" / "idle").glob("version_*/history.jsonl")
        return [record["seconds"] for record in read_records(file)[WARM:]]


# ------------------------------------------------------------------------------------------------------------ on paper
def paper(size: int, clients: int, turn: float, network: float) -> list[str]:
    """Lines with what a round of many clients would take, from what its parts take here."""
    weights = Payload({f"{n}": 0.05 * torch.randn(size // 10) for n in range(10)}, {"num_samples": 1})
    data, count, names = weights.to_bytes(), 50, list(weights.tensors)

    def added() -> Summing:
        summing = Summing(Idle())
        for number in range(count):
            summing.add(str(number), Payload.from_bytes(data), names, data)
        return summing

    (group,) = added().groups.values()
    told, sums = json.dumps(group.told()), group.sums.to_payload().to_bytes()
    each = _busy(added, 5) / count
    take = _busy(lambda: Sums().merge(Sums.from_payload(Payload.from_bytes(sums))), 20)
    line = _busy(lambda: Group.of(json.loads(told), sums), 5) / count
    thread = _busy(_threads, 5) / 100
    # A client's file is made of weights and Adam's two moments.
    digest = _busy(lambda: hashlib.sha256(data).digest(), count) * 3
    lines = [
        f"assumed: {1e3 * turn:.0f} ms a turn, {network / 1e9:.2f} GB/s; an upload is {len(data) / 1e3:.0f} kB, "
        f"a sum {len(sums) / 1e3:.0f} kB, a client's line {len(told) / count / 1e3:.2f} kB",
        f"every process: {1e3 * each:.3f} ms to read, digest and add an upload, {1e3 * digest:.3f} to digest a file; "
        f"process 0: {1e3 * take:.3f} to take a sum, {1e3 * line:.3f} a line, {1e3 * thread:.3f} a process and message",
        f"{clients:,} clients, seconds of: processes, turns, adding, network, sums and lines, threads; digests",
    ]
    for processes in (8, 64, 512):
        parts = (
            clients * turn / processes,
            clients * each / processes,
            (processes * len(sums) + clients * len(told) / count) / network,
            processes * take + clients * line,
            2 * processes * thread,
        )
        seconds = "".join(f"{part:9.2f}" for part in (*parts, clients * digest / processes))
        lines.append(f"  {processes:4d}{seconds}")
    return lines


def _busy(work: Callable[[], Any], times: int) -> float:
    """Seconds of processor time of one call."""
    work()
    began = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - began) / times


def _threads() -> None:
    threads = [threading.Thread(target=int) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=60_000, help="parameters of clients that do no work")
    parser.add_argument("--clients", type=int, default=64, help="clients that do no work")
    parser.add_argument("--rounds", type=int, default=20, help="rounds that count")
    parser.add_argument("--repeats", type=int, default=2, help="turns of each way on CHEM")
    parser.add_argument("--shards", type=int, nargs="*", default=[1, 4], help="clients per data set of CHEM")
    parser.add_argument("--processes", type=int, nargs="*", default=[2], help="of clients that do no work")
    parser.add_argument("--flare", type=int, nargs="*", default=[1, 32], help="of them, at each of two sites of FLARE")
    parser.add_argument("--paper", action="store_true", help="instead: a round of 10,000 clients, on paper")
    parser.add_argument("--turn", type=float, default=0.05, help="seconds of a client's turn, on paper")
    parser.add_argument("--network", type=float, default=1.25e9, help="bytes per second into process 0, on paper")
    parser.add_argument("--crowd", type=int, metavar="PROCESSES", help="instead: memory of process 0 in a round")
    parser.add_argument("--mean", choices=MEANS, help=argparse.SUPPRESS)
    parser.add_argument("--worker", metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if options.crowd and options.worker:
        seen = crowd_worker(options.mean, options.size, options.clients, options.rounds, options.crowd)
        if seen:
            Path(options.worker).write_text(json.dumps(seen))
        return 0
    if options.crowd:
        lines = crowd(options.size, options.clients, options.rounds, options.repeats, options.crowd)
        print("\n".join(lines))
        return 0
    if options.worker:
        seconds = idle_rounds(ProcessGroup(threads=1), options.size, options.clients, options.rounds)
        if seconds:
            Path(options.worker).write_text(json.dumps(seconds))
        return 0
    if options.paper:
        print("\n".join(paper(options.size, 10_000, options.turn, options.network)))
        return 0
    print("\n".join(idle(options.size, options.clients, options.rounds, options.processes)), flush=True)
    for each in options.flare:
        print("\n".join(flare(options.size, each, options.rounds)), flush=True)
    for shards in options.shards:
        print("\n".join(real(shards, options.rounds, options.repeats)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
