"""The release, in one place: the package's metadata is made from it."""

__version__ = "0.1.0"
