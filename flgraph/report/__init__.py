"""One page that compares runs: ``flgraph report RUN ...``."""
