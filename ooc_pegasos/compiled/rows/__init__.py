"""Rows as stored: codings of indices and values, random orders, the checksum."""
