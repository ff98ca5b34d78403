"""The facts of two recordings that a comparison uses, and how a finding claims a part of their difference."""
