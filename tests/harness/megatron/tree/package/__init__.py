"""A package with a script, which is run by `python -m package.pretrain`."""
