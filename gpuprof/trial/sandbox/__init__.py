"""Where a trial's processes run: a mount namespace of their own where the kernel allows it, else Landlock's rules.

Everything here is standard library only and talks to the kernel itself: neither `unshare` nor bubblewrap is needed.
"""
