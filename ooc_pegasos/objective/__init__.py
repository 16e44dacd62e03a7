"""The objective and bounds on its optimum: losses, the models of a run, exact pass, certificates, rounding errors.
May import: compiled, config, loading, store, util.
"""
