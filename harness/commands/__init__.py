"""The commands: each reads its options, calls runs/ or campaign/, and hands the results to show/."""
