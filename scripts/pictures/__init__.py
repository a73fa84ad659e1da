"""Pictures of what `cplm compare` and `cplm eval` found: one look for all, one module a task."""
