"""One module an input format: readers turn inputs into CSR blocks and know nothing of stores and training.
May import: compiled, config, store, util.
"""
