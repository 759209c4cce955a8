"""The entry point: an interrupt during the imports of the command line ends in one sentence, too."""

import sys


def main() -> None:
    """Run the command `kprune`."""
    try:
        from kprune.cli.main import main as run

        run(prog_name="kprune")
    except KeyboardInterrupt:  # before the command began
        sys.stderr.write("kprune: interrupted; no model was written.\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
