"""Measurements of tokenloom, alone and beside its peers: see README.md in this folder."""
