"""Models: the commands of each contract, run in lockstep on the reference and on a target."""
