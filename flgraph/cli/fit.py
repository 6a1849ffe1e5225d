"""``flgraph fit``, ``validate``, ``test`` and ``predict``: a LightningCLI for federations."""

from __future__ import annotations

import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import yaml
from jsonargparse.typing import NonNegativeInt
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI

import flgraph.callbacks
import flgraph.data
import flgraph.models  # noqa: F401
from flgraph.cli.arguments import with_data_first, with_packaged_configs
from flgraph.cli.exits import ENDINGS, FAILED, ending_of, stopped
from flgraph.cli.parser import Refusing, translated
from flgraph.console import Console
from flgraph.federation import FederatedTrainer
from flgraph.federation.display import MetricsTable, ignore_deprecations
from flgraph.federation.engines.distributed import launcher, transport
from flgraph.federation.engines.distributed.engine import num_cores
from flgraph.federation.engines.distributed.environment import ProcessEnvironment
from flgraph.federation.engines.forked import Forked
from flgraph.federation.lightning import flushing_denormals
from flgraph.federation.seeding import derive_seed, seed_all
from flgraph.runs.files import writing
from flgraph.runs.history import Metrics
from flgraph.runs.predictions import write_predictions


class Parser(Refusing, LightningArgumentParser):
    """For commands that take a model, data and a trainer."""

    def instantiate_classes(self, cfg: Any, **kwargs: Any) -> Any:
        """What Lightning calls; newer versions of jsonargparse have another name for it."""
        instantiate = getattr(super(), "instantiate", super().instantiate_classes)
        return instantiate(cfg, **kwargs)


class FederatedCLI(LightningCLI):
    """``fit``, ``validate``, ``test`` and ``predict`` for :class:`FederatedTrainer`.

    Args:
        args: the command line; that of the process when ``None``.
        run: whether it begins with a subcommand, which is run; otherwise model, data and trainer are only made.
        given: what the user wrote, where that is less.
    """

    trainer: FederatedTrainer

    def __init__(self, args: Sequence[str] | None = None, run: bool = True, given: Sequence[str] | None = None) -> None:
        self._given = list(given or (sys.argv[1:] if args is None else args))
        super().__init__(
            model_class=pl.LightningModule,
            datamodule_class=pl.LightningDataModule,
            save_config_callback=None,
            trainer_class=FederatedTrainer,
            parser_class=Parser,
            subclass_mode_model=True,
            subclass_mode_data=True,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
            args=None if args is None else list(args),
            run=run,
        )

    def subcommands(self) -> dict[str, set[str]]:  # type: ignore[override]
        """Only the one that is given: to make the parsers of the other three takes longer than to parse."""
        every = super().subcommands()
        return {name: every[name] for name in self._given[:1] if name in every} or every

    def add_default_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """The one seed of a run."""
        parser.add_argument(
            "--seed_everything",
            type=NonNegativeInt,
            default=0,
            help="Seed from which all randomness of the run derives.",
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """The seed's way to the trainer."""
        parser.link_arguments("seed_everything", "trainer.seed")

    def _set_seed(self) -> None:
        """Seeds what classes draw when they are made; the trainer seeds every client's model and turn."""
        seed_all(derive_seed(self._get(self.config, "seed_everything"), "classes"))

    def _parse_ckpt_path(self) -> None:
        """Nothing to do: a checkpoint is a folder, and does not change the configuration."""

    def before_instantiate_classes(self) -> None:
        """Starts the processes that the engine asks for, if this is not one of them, and ends when they have ended."""
        engine = self._get(self.config, "trainer.engine")
        if engine is None or ProcessEnvironment.here().launched:
            return
        module, _, name = engine.class_path.rpartition(".")
        cls = getattr(import_module(module), name)
        if cls.launched:
            wanted = cls(**engine.init_args.as_dict()).processes
            raise SystemExit(launcher.launch([sys.executable, *_as_module(), *self._given], wanted))

    @cached_property
    def config_text(self) -> str:
        """The effective configuration as YAML, with what is null."""
        config = self.config[self.subcommand] if self.subcommand else self.config
        return str(self._parser(self.subcommand).dump(config, "yaml", False))

    def _forks(self, trainer: FederatedTrainer) -> bool:
        """Whether clients go to all cores: nobody said where they are to run, or with how many threads."""
        silent = self._get(self.config, "trainer.engine") is None and "OMP_NUM_THREADS" not in os.environ
        able = sys.platform == "linux" and num_cores() > 1 and trainer.strategy.root_device.type == "cpu"
        alone = trainer.world_size == 1 and not ProcessEnvironment.here().launched
        return silent and able and alone and self.subcommand != "predict"

    def instantiate_classes(self) -> None:
        """Brings out what a class raised, which the parser wraps; what the parser cannot take is said in a sentence."""
        try:
            super().instantiate_classes()
            return
        except ValueError as refused:
            error = _first(refused)
            if _module_of(error).startswith(("jsonargparse", "pytorch_lightning", "lightning_fabric")):
                error = translated(str(refused))
        raise error  # here, where nothing of the parser's is shown with it

    def instantiate_trainer(self, **kwargs: Any) -> FederatedTrainer:
        """Hands the effective configuration to the trainer, which writes it into the run folder."""
        trainer = super().instantiate_trainer(**kwargs)
        assert isinstance(trainer, FederatedTrainer)
        if self._forks(trainer):
            trainer.engine = Forked()
        trainer.config_text, trainer.config = self.config_text, yaml.safe_load(self.config_text)
        return trainer

    # -------------------------------------------------------------------------------------------- the subcommands
    def fit(self, **kwargs: Any) -> None:
        """Trains; who is asked to stop says which command line goes on."""
        try:
            self.trainer.fit(**kwargs)
        except (KeyboardInterrupt, SystemExit) as error:
            folder = self.trainer.run_dir
            if folder is not None and (folder / "checkpoints" / "last").exists():
                error.add_note(shlex.join(["flgraph", *_without_checkpoint(self._given), "--ckpt_path", str(folder)]))
            raise

    def validate(self, ckpt_path: str | None, **kwargs: Any) -> None:
        """Validates the run's newest checkpoint if none is named."""
        self._print("val", self.trainer.validate(ckpt_path=ckpt_path or "last", **kwargs))

    def test(self, ckpt_path: str | None, **kwargs: Any) -> None:
        """Tests the run's newest checkpoint if none is named."""
        self._print("test", self.trainer.test(ckpt_path=ckpt_path or "last", **kwargs))

    def _print(self, split: str, metrics: Metrics) -> None:
        """Prints what was asked for where the trainer is silent (``trainer.enable_progress_bar`` is false)."""
        if self.trainer.writes and self.trainer.console.quiet:
            Console().print(MetricsTable(metrics, f"{split}, round {self.trainer.current_round}"))

    def predict(self, ckpt_path: str | None, **kwargs: Any) -> None:
        """Writes ``predictions/CLIENT.csv`` into the run folder: what the model says of each graph, node or link."""
        predictions = self.trainer.predict(ckpt_path=ckpt_path or "last", **kwargs)
        if not self.trainer.writes:
            return
        assert self.trainer.run_dir is not None
        folder, names = self.trainer.run_dir / "predictions", getattr(self.datamodule, "class_names", ())
        with writing(folder):
            folder.mkdir(exist_ok=True)
            for client, batches in predictions.items():
                rows, predicted = self.trainer.prediction_rows[client], self.trainer.predicted[client]
                write_predictions(client, batches, rows, predicted, folder / f"{client}.csv", names)
        print(f"predictions in {folder}, after round {self.trainer.current_round}")


def _as_module() -> list[str]:
    """Python's options to run this package again, found where this process found it."""
    here = str(Path.cwd())
    if sys.path[0] in ("", here):
        return ["-m", "flgraph"]
    if here in sys.path:  # classes of this folder were found, after all that is installed
        return ["-P", "-c", f"import sys; sys.path.append({here!r}); from flgraph.cli.main import main; main()"]
    return ["-P", "-m", "flgraph"]


def _without_checkpoint(args: Sequence[str]) -> list[str]:
    """The arguments without ``--ckpt_path``."""
    kept = list(args)
    while "--ckpt_path" in kept:
        position = kept.index("--ckpt_path")
        del kept[position : position + 2]
    return [arg for arg in kept if not arg.startswith("--ckpt_path=")]


def main(args: Sequence[str], own: Sequence[str] = ()) -> None:
    """Runs a subcommand of :class:`FederatedCLI`; of several processes one says how it ended.

    Args:
        args: the command line.
        own: import paths of the user's classes in it.
    """
    ignore_deprecations()
    try:
        with flushing_denormals():  # before there are further threads, which take it over
            for path in own:
                _import_module_of(path)
            FederatedCLI(with_data_first(with_packaged_configs(args)), given=args)
    except SystemExit as error:
        transport.exit_code = error.code if isinstance(error.code, int) else FAILED
        if hasattr(error, "__notes__"):
            sentence = stopped("stopped", error)
            if not launcher.say(sentence, transport.exit_code):
                print(f"flgraph: error: {sentence}", file=sys.stderr)
        raise
    except ENDINGS as error:
        sentence, transport.exit_code = ending_of(error)
        if launcher.say(sentence, transport.exit_code) or ProcessEnvironment.here().rank > 0:
            raise SystemExit(transport.exit_code) from None
        raise


def _import_module_of(path: str) -> None:
    """Imports a user's module before the parser does, which would call any mistake in it a class that is not there."""
    module = path.rpartition(".")[0]
    if not module or module.startswith(".") or path.endswith((".yaml", ".yml")):
        return
    try:
        import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{path}.".startswith(f"{error.name}."):
            raise


def _first(error: BaseException) -> BaseException:
    """What an error began with."""
    return error if error.__cause__ is None else _first(error.__cause__)


def _module_of(error: BaseException) -> str:
    """Where it was raised."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals["__name__"])
