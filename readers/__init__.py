"""One module an input format: readers turn inputs into CSR blocks, independently of stores and training.
May import: compiled, config, store, util.
"""
