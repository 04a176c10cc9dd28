"""The columns that we write into OVSDB and read from it, a module for each table. Pure: no session, no files, no clock.

Column values are in the Python form of ovs.db.idl: a map is a dict, a set or an optional value is a list. Tables and columns are
those of ovs-vswitchd.conf.db(5).
"""
