"""Fakes and builders that several test folders share."""
