"""Laws: small pure functions over observations, which must always hold."""
