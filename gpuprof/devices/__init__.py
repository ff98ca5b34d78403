"""The GPUs of this machine as their driver reports them: which there are, what they do now, and what runs on them."""
