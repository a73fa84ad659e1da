"""Text to HDF5 token shards: sources -> documents -> split -> tokens -> shards -> manifest.

scripts/prepare_data.py is the command; prepare.py is the flow; the format is docs/shard-format.md.
"""
