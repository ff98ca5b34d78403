"""Which files a program writes, and where to a trial lets it write them instead."""
