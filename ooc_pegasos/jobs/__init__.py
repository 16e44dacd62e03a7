"""Scheduled retraining: append new files, train, compare, promote or refuse, with a record of each run.
May import: all but cli, distributed.
"""
