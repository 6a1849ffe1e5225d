"""What runs import; the process from which :mod:`flgraph.reproduce.runner` forks them does it once.

Nothing is computed here: threads that torch begins would be missing in the runs.
"""

import os
import signal

from flgraph.importing import without_collections

os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported
os.environ["JE_ARROW_MALLOC_CONF"] = "background_thread:false"  # read by pyarrow, where PyG finds it
handler = signal.getsignal(signal.SIGINT)
if handler is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # whoever interrupts sees no traceback of these lines
try:
    with without_collections():
        import sklearn.cluster
        import sklearn.model_selection  # noqa: F401
        import torch.utils.tensorboard  # noqa: F401

        import flgraph.cli.fit  # noqa: F401
finally:
    signal.signal(signal.SIGINT, handler)
