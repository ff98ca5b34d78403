"""Texts that terminal, page and notebook share."""
