"""The command line for people; never on the path of a CNI verb."""
