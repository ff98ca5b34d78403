"""What would stop or spoil a recording on this machine: facts are collected once, and each check is a pure function."""
