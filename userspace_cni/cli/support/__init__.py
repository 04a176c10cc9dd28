"""`support`: one archive with what a maintainer needs, without secrets."""
