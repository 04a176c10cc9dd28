"""Any database of OVSDB (RFC 7047): a session, the rows that it replicates, and transactions. Knows no schema."""
