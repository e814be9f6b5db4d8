"""What always holds: laws, small pure functions over what is observed."""
