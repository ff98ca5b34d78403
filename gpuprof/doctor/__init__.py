"""Checks for what would stop or spoil a recording here: facts are collected once, each check is a pure function."""
