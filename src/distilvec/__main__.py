"""`python -m distilvec` is the command line."""

from distilvec.cli import main

if __name__ == "__main__":
    main()
