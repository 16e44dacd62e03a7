"""The format on disk: manifest, chunk files, labels, row identifiers, vocabulary; append, expire, verify.
May import: compiled, config, reporting, util.
"""
