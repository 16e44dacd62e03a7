"""Rows as they are stored: codings of indices and values, random orders, the checksum."""
