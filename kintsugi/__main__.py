"""`python -m kintsugi`: the command `kintsugi` of a checkout."""

from kintsugi.cli.main import main

if __name__ == "__main__":
    main()
