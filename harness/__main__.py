"""`python -m kvlockstep`."""

from kvlockstep.cli import main

main()
