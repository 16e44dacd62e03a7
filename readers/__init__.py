"""One file per input format. A reader turns inputs into blocks of rows and knows nothing of what follows.

The package lives at the top level of the repository and is imported as `ooc_pegasos.readers`.
"""
