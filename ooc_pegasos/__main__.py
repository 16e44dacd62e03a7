"""`python -m ooc_pegasos` is `oocpeg`."""

try:
    from ooc_pegasos.cli.start import main
except KeyboardInterrupt:
    import os

    os._exit(130)  # `exit_codes.INTERRUPTED`, whose import may have been interrupted

main()
