import sys

try:
    from kprune.cli.main import main

    main(prog_name="kprune")
except KeyboardInterrupt:  # before the command began
    sys.stderr.write("kprune: interrupted; no model was written.\n")
    sys.exit(130)
