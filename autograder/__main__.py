"""Start of the command: nothing heavy is imported before Ctrl-C has an answer."""

import sys


def main() -> None:
    """Entry point of `autograde` and of `python -m autograder`."""
    try:
        from autograder.cli import main as command

        command()
    except KeyboardInterrupt:  # before the command could take care of it
        sys.stderr.write("autograde: interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
