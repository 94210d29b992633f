"""Modules that several tests share, each named for what it holds."""
