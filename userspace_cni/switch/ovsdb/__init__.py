"""OVSDB: one session, its rows, and transactions that calls share."""
