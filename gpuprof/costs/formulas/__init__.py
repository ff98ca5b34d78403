"""FLOPs and bytes of kernels, one file per kind of op."""
