"""`python -m distilvec` is the command line."""

from distilvec.cli.app import main

if __name__ == "__main__":
    main()
