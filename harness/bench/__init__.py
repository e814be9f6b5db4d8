"""Speed, as ratios inside one run, and the figures of a GPU."""
