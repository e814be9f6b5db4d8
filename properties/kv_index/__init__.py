"""What holds of a router's index, by the events that arrived."""
