"""`planner` and `python -m planner`: the command line, which Ctrl-C ends quietly from its first import on."""

import atexit
import gc
import os
import sys

# A process with one answer to give: many objects and few cycles, which are not looked for at its end either.
COLLECT_AFTER = 1_000_000
# Read when the libraries are loaded. Of OpenBLAS a thread a core, each of which spins before it sleeps, though planner
# multiplies no large matrices; of pydantic a search of all installed packages for plug-ins.
COUNTS_ITS_OBJECTS = "triton"  # with nanobind, which lists on stderr what nobody has collected
ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "PYDANTIC_DISABLE_PLUGINS": "1"}


def _leave() -> None:
    """Leave what is held to the system: to collect it takes 2 s behind a dry run. The last that a process does in
    Python."""
    gc.freeze()
    if COUNTS_ITS_OBJECTS in sys.modules and sys.stderr is not None:
        sys.stderr.flush()
        os.close(2)


def main() -> None:
    """Run the command line."""
    gc.set_threshold(COLLECT_AFTER)
    atexit.register(_leave)
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        from planner.cli import main as run

        run()
    except KeyboardInterrupt:  # while importing; verbs see to their own
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
