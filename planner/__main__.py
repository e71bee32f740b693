"""`planner` and `python -m planner`: the command line, which Ctrl-C ends quietly from its first import on."""

import atexit
import gc
import os

# A process with one answer to give: many objects and few cycles, which are not looked for at its end either.
COLLECT_AFTER = 1_000_000
# Read when the libraries are loaded. Of OpenBLAS a thread a core, each of which spins before it sleeps, though planner
# multiplies no large matrices; of pydantic a search of all installed packages for plug-ins.
ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "PYDANTIC_DISABLE_PLUGINS": "1"}


def main() -> None:
    """Run the command line."""
    gc.set_threshold(COLLECT_AFTER)
    atexit.register(gc.freeze)
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        from planner.cli import main as run

        run()
    except KeyboardInterrupt:  # while importing; verbs see to their own
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
