"""``python -m flgraph``."""

from flgraph.cli import main

main()
