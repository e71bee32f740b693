"""`planner` and `python -m planner`: the command line, which Ctrl-C ends quietly from its first import on."""


def main() -> None:
    """Run the command line."""
    try:
        from planner.cli import main as run

        run()
    except KeyboardInterrupt:  # while importing; verbs see to their own
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
