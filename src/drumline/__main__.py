"""`drumline`, and `python -m drumline` for launchers that start modules."""

import sys


def start() -> None:
    """Run the command line; Ctrl-C while it still loads ends it without a traceback."""
    try:
        from drumline.cli.main import main
    except KeyboardInterrupt:
        sys.exit(130)
    main()


if __name__ == "__main__":
    start()
