"""The command line: parse, call, print.
May import: all.
"""
