"""The version, in the one place where the build reads it as well."""

__version__ = "0.1.0"
