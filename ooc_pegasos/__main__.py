"""`python -m ooc_pegasos` is `oocpeg`."""

from ooc_pegasos.command import main

main()
