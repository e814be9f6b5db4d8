"""Block tables to slots."""
