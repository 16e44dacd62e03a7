"""The command line: parse, call, print, and turn errors into exit codes. No logic."""
