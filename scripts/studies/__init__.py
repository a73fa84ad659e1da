"""Studies: arms that `cplm train` makes, and what they show. scripts/study_*.py are their commands."""
