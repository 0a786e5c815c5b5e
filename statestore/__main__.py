"""`python -m statestore`: the same as the command `statestore`."""

from statestore.cli import main

if __name__ == "__main__":
    main()
