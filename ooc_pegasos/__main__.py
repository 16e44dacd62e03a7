"""`python -m ooc_pegasos` is `oocpeg`."""

try:
    from ooc_pegasos.cli.start import main
except KeyboardInterrupt:
    import os

    os._exit(130)  # as `exit_codes.INTERRUPTED`, which may not be there

main()
