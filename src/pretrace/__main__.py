"""`python -m pretrace` is `pretrace`."""

from pretrace.cli.main import main

main()
