"""`python -m ooc_pegasos` is `oocpeg`."""

from ooc_pegasos.cli import main

main()
