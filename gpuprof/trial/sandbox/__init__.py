"""Where a trial's processes run: in a private mount namespace if the kernel allows it, else under Landlock rules.
Everything here uses only the standard library and system calls: neither `unshare` nor bubblewrap is needed.
"""
