"""Models and operations: the parts that the model of every contract uses."""
