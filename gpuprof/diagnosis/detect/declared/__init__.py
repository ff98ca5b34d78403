"""What a finding is made of: its declaration, proposals, ledger items and memory remedies."""
