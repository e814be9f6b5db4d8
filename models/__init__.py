"""What can happen: one list of commands per contract, run in lockstep on the reference and on a target."""
