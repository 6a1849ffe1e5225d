"""The papers' tables and figures as data, and what runs them."""

from flgraph.reproduce.cells import collect, finished
from flgraph.reproduce.runner import run_study
from flgraph.reproduce.study import Study, list_studies, load_study
from flgraph.reproduce.tables import write_tables

__all__ = ["Study", "collect", "finished", "list_studies", "load_study", "run_study", "write_tables"]
