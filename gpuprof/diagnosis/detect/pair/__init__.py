"""What a comparison looks at of two recordings, and how a finding claims a part of their difference."""
