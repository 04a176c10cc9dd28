"""The one idea: steps, their record, and the verbs as folds over them; knows no switch and no file system."""
