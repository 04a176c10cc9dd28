"""What we write into OVSDB and read from it. Pure: no session, no files, no clock."""
