"""``python -m flgraph``."""

from flgraph.cli.main import main

main()
